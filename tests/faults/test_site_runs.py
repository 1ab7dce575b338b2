# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Site runs that fail or are killed: what they say, and that the next run finishes the work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = Path(__file__).parent / "inventory"
HOST = "fault-1"
_RUN_LIMIT = 600
_SHUTDOWN = 3.0
"""Seconds in which a host that was told to reboot has gone down."""
_RECAP = re.compile(rf"^{HOST}\s+: (?P<counts>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """What a playbook run said, and how it ended."""

    rc: int
    output: str

    def counts(self) -> dict[str, int]:
        """The host's line of the recap: ok, changed, unreachable, failed, ..."""
        found = _RECAP.search(self.output)
        assert found, self.output
        return {
            name: int(number)
            for name, _, number in (pair.partition("=") for pair in found["counts"].split())
        }


@dataclass(frozen=True)
class Site:
    """Playbook runs over the fault inventory."""

    folder: Path

    def _command(self, playbook: str, arguments: tuple[str, ...]) -> list[str]:
        locks = json.dumps({"llmetal_lock_dir": str(self.folder / "locks")})
        return [
            *("ansible-playbook", playbook, "-i", str(INVENTORY), "-e", locks),
            *arguments,
        ]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            "LLMETAL_REPORT_DIR": str(self.folder / "reports"),
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, *arguments: str, playbook: str = "site.yml") -> Run:
        """Run a playbook to its end."""
        done = subprocess.run(
            self._command(playbook, arguments),
            capture_output=True,
            check=False,
            cwd=ROOT,
            env=self._environment(),
            text=True,
            timeout=_RUN_LIMIT,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    def kill_at(self, task: str, *, after: float) -> str:
        """Start a site run and SIGKILL it, with all its children, some seconds into a task.

        Args:
            task: a part of the task's name as Ansible prints it.
            after: seconds to wait after the task began.

        Returns:
            What it had printed until then.
        """
        with subprocess.Popen(
            self._command("site.yml", ()),
            cwd=ROOT,
            env=self._environment(),
            start_new_session=True,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            limit = threading.Timer(_RUN_LIMIT, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            lines: list[str] = []
            try:
                assert process.stdout
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("TASK") and task in line:
                        break
                assert process.poll() is None, f"the run ended before {task!r}:\n{''.join(lines)}"
                threading.Event().wait(after)
                assert process.poll() is None, f"the run ended within {task!r}"
            finally:
                limit.cancel()
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        assert process.returncode == -signal.SIGKILL
        return "".join(lines)

    def llmetal(self, *arguments: str) -> Run:
        """Run the command, as a user does."""
        done = subprocess.run(
            [str(ROOT / "llmetal"), *arguments],
            capture_output=True,
            check=False,
            cwd=ROOT,
            env=self._environment(),
            text=True,
            timeout=_RUN_LIMIT,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    def wait_for_ssh(self) -> None:
        """Wait until the host lets somebody in, for a minute at most."""
        end = time.monotonic() + 60
        while True:
            try:
                self.ssh("true")
            except AssertionError:
                assert time.monotonic() < end, f"{HOST} does not answer within 60 s"
                time.sleep(0.5)
            else:
                return

    def ssh(self, *command: str) -> str:
        """What a command on the host prints; it must succeed."""
        done = subprocess.run(
            ["ssh", "-F", "/var/lib/llmetal-sandbox/ssh/ssh_config", HOST, *command],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A fresh sandbox host, gone again at the end."""
    made = Site(tmp_path)
    up = made.run(playbook="playbooks/sandbox.yml")
    assert up.rc == 0, up.output
    try:
        yield made
    finally:
        down = made.run("-e", "sandbox_state=absent", playbook="playbooks/sandbox.yml")
        assert down.rc == 0, down.output


def test_killed_in_the_driver_role_converges_then_changes_nothing(site: Site) -> None:
    """Killed while packages unpack, killed again while it reboots; then one run does it all."""
    first_boot = site.ssh("cat", "/proc/sys/kernel/random/boot_id")

    site.kill_at("nvidia_driver : Install headers", after=2.0)
    site.kill_at("nvidia_driver : Reboot", after=0.5)
    # A host that is down is reported, not waited for: the next run begins when it answers again.
    time.sleep(_SHUTDOWN)
    site.wait_for_ssh()

    finished = site.run()
    assert finished.rc == 0, finished.output
    assert site.ssh("cat", "/proc/sys/kernel/random/boot_id") != first_boot
    version = site.ssh("modinfo", "-F", "version", "nvidia").strip()
    assert version in site.ssh("cat", "/proc/driver/nvidia/version")
    assert len(site.ssh("nvidia-smi", "-L").splitlines()) == 8
    assert not site.ssh("dpkg", "--audit")

    again = site.run()
    assert again.rc == 0, again.output
    assert again.counts()["changed"] == 0, again.output


@pytest.mark.parametrize(
    ("fault", "stage", "what", "fix"),
    [
        ("disk_full", "Converge", "the disk is full", "make room in /var"),
        ("repo_404", "Resolve", "(404)", "check address and suite in the inventory"),
    ],
)
def test_a_fault_is_named_and_the_next_run_converges(
    site: Site, fault: str, stage: str, what: str, fix: str
) -> None:
    """Exit code 4 with host, stage, cause and what to do; mended, the same command converges."""
    locks = json.dumps({"llmetal_lock_dir": str(site.folder / "locks")})
    command = ("site", "-i", str(INVENTORY), "-e", locks)
    assert site.llmetal("sandbox", "break", HOST, fault).rc == 0

    failed = site.llmetal(*command)
    assert failed.rc == 4, failed.output
    assert f"failed: {HOST} in {stage}" in failed.output
    assert what in failed.output
    assert fix in failed.output

    assert site.llmetal("sandbox", "break", HOST, fault, "--fix").rc == 0
    mended = site.llmetal(*command)
    assert mended.rc == 0, mended.output
    assert len(site.ssh("nvidia-smi", "-L").splitlines()) == 8
