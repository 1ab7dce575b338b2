# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fault tests share: runs that end, fail or are killed, and a look at the host."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
STATE = Path("/var/lib/llmetal-sandbox")
SANDBOX = "playbooks/sandbox.yml"
_RUN_LIMIT = 600
_RUNS = itertools.count()
_RECAP = re.compile(r"^(?P<host>[\w-]+)\s+: (?P<counts>ok=.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """What a playbook run said, and how it ended."""

    rc: int
    output: str

    def counts(self, host: str) -> dict[str, int]:
        """A host's line of the recap: ok, changed, unreachable, failed, ..."""
        found = {match["host"]: match["counts"] for match in _RECAP.finditer(self.output)}
        assert host in found, self.output
        return {
            name: int(number)
            for name, _, number in (pair.partition("=") for pair in found[host].split())
        }

    def failure(self, host: str) -> str:
        """What it says of a host's failure, with every run of white space as one blank."""
        # More than one where a failed task was followed by one that says what it means.
        found = re.findall(
            rf"^fatal: \[{host}\].*?(?=^\S|\Z)", self.output, re.MULTILINE | re.DOTALL
        )
        assert found, f"{host} did not fail\n{self.output}"
        return re.sub(r"\s+", " ", " ".join(found))

    def changed_tasks(self) -> list[str]:
        """The tasks that changed something, for the message of a failed test."""
        task, changed = "", []
        for line in self.output.splitlines():
            if line.startswith("TASK ["):
                task = line
            elif line.startswith("changed: "):
                changed.append(task)
        return changed

    @property
    def said(self) -> str:
        """The output with every run of white space as one blank, for messages that are folded."""
        return re.sub(r"\s+", " ", self.output)


def descendants(pid: int) -> list[int]:
    """The processes below one, those nearest to it first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(children.get(pid, []))
    for one in found:
        found += children.get(one, [])
    return found


def _can_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class NotReachedError(Exception):
    """A run ended well without having come to a task."""


@dataclass(frozen=True)
class Lab:
    """Playbook runs on one sandbox host of an inventory."""

    host: str
    inventory: Path
    folder: Path
    """Where reports and locks of these runs go."""
    playbook: str = "site.yml"

    def _command(self, playbook: str, arguments: tuple[str, ...]) -> list[str]:
        locks = json.dumps({"llmetal_lock_dir": str(self.folder / "locks")})
        command = ["ansible-playbook", playbook, "-i", str(self.inventory), "-e", locks]
        return [*command, "--limit", f"{self.host},localhost", *arguments]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_FORCE_COLOR": "0",
            # A connection of its own: one to a host that lost its power hangs for a minute.
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / f"ssh{next(_RUNS)}"),
            "ANSIBLE_NOCOLOR": "1",
            "LLMETAL_REPORT_DIR": str(self.folder / "reports"),
            "PYTHONUNBUFFERED": "1",
        }

    def _run(self, command: list[str]) -> Run:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_RUN_LIMIT,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    def run(self, *arguments: str, playbook: str = "") -> Run:
        """Run a playbook to its end."""
        return self._run(self._command(playbook or self.playbook, arguments))

    def llmetal(self, *arguments: str) -> Run:
        """Run the command, as a user does."""
        return self._run([str(ROOT / "llmetal"), *arguments])

    def sandbox(self, state: str) -> None:
        """Bring the host to a state: started, reset (as new) or absent."""
        done = self.run("-e", f"sandbox_state={state}", playbook=SANDBOX)
        assert done.rc == 0, done.output

    def break_it(self, *faults: str) -> None:
        """Switch faults on."""
        done = self.llmetal("sandbox", "break", self.host, *faults)
        assert done.rc == 0, done.output

    def mend(self, *faults: str) -> None:
        """Switch faults off; all of them where none is named."""
        done = self.llmetal("sandbox", "break", self.host, *faults, "--fix")
        assert done.rc == 0, done.output

    def health(self, **arguments: object) -> dict[str, Any]:
        """What the module gpu_health answers, asked for all that this says."""
        command = ["ansible", self.host, "-i", str(self.inventory), "--one-line"]
        module = ["-m", "llmetal.inference.gpu_health", "-a", json.dumps(arguments)]
        done = self._run([*command, *module])
        assert done.rc == 0, done.output
        found: dict[str, Any] = json.loads(done.output.partition("=> ")[2])
        return found

    def converge(self, *arguments: str) -> Run:
        """A run that must succeed."""
        done = self.run(*arguments)
        assert done.rc == 0, done.output
        return done

    def assert_settled(self, *arguments: str) -> None:
        """One more run changes nothing."""
        again = self.converge(*arguments)
        assert again.counts(self.host)["changed"] == 0, again.changed_tasks()

    def kill_at(self, task: str, *, after: float, power: bool = False) -> str:
        """Start a run and SIGKILL it, with all its children, some seconds into a task.

        Args:
            task: a part of the task's name as Ansible prints it.
            after: seconds to wait after the task began.
            power: the host loses its power in the moment before.

        Returns:
            What it had printed until then.

        Raises:
            NotReachedError: the run ended well without that task.
        """
        with subprocess.Popen(
            self._command(self.playbook, ()),
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
                else:
                    if process.wait(timeout=30) == 0:
                        raise NotReachedError(task)
                    message = f"the run failed before {task!r}:\n{''.join(lines)}"
                    raise AssertionError(message)
                threading.Event().wait(after)
                assert process.poll() is None, f"the run ended within {task!r}"
                if power:
                    self.power_off()
            finally:
                limit.cancel()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        assert process.returncode == -signal.SIGKILL
        return "".join(lines)

    def power_off(self) -> None:
        """Take the power away: the supervisor and with it every process of the host die at once."""
        lock = STATE / "hosts" / self.host / "supervisor.pid"
        supervisor = int(lock.read_text(encoding="ascii"))
        for pid in [supervisor, *descendants(supervisor)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 30
        with lock.open("a+", encoding="ascii") as file:
            while not _can_lock(file) or Path("/sys/class/net", f"vb-{self.host}").exists():
                assert time.monotonic() < end, f"{self.host} does not go down"
                time.sleep(0.05)

    def wait_for_ssh(self) -> None:
        """Wait until the host lets somebody in, for a minute at most."""
        end = time.monotonic() + 60
        while True:
            try:
                self.ssh("true")
            except AssertionError:
                assert time.monotonic() < end, f"{self.host} does not answer within 60 s"
                time.sleep(0.5)
            else:
                return

    def ssh(self, *command: str) -> str:
        """What a command on the host prints; it must succeed."""
        done = subprocess.run(
            ["ssh", "-F", str(STATE / "ssh/ssh_config"), self.host, *command],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
