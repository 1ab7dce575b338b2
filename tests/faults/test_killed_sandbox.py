# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox run that is killed anywhere is finished by the next one, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import processes, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE = Path("/var/lib/llmetal-sandbox-killed")
PARAMS: dict[str, Any] = {
    "name": "killed-1",
    "os": "debian12",
    "address": "10.213.3.5",
    "scenario": "rtx_4090",
    "binds": [],
    "faults": None,
    "memory_mib": 0,
    "files": Path(__file__).parents[2] / "roles/sandbox/files",
    "state_dir": str(STATE),
    "cache_dir": None,
    "bridge": "llmetal3",
    "subnet": "10.213.3.0/24",
    "port": 8216,
    "debian_mirror": "",
}
LOOK = (
    ("ps", "-eo", "args"),
    ("cat", "/proc/self/mounts"),
    ("ip", "-o", "link"),
    ("iptables-save",),
    ("find", "/sys/fs/cgroup", "-name", "llmetal-sandbox-killed-1"),
)
MARKS = (str(STATE) + "/", str(PARAMS["bridge"]), "killed-1")


CHANGED, UNCHANGED, FAILED = 10, 0, 1


def begin(state: str) -> int:
    """Begin to bring the host to a state, in a process of its own as a module run is."""
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        outcome = requests.fulfil({**PARAMS, "state": state}, check=False)
        status = CHANGED if outcome.changed else UNCHANGED
    except LlmetalError as error:
        sys.stderr.write(f"{error}\n")
    finally:
        os._exit(status)


def fulfil(state: str) -> bool:
    """Bring the host to a state; whether that changed anything."""
    _, status = os.waitpid(begin(state), 0)
    assert os.waitstatus_to_exitcode(status) in {CHANGED, UNCHANGED}
    return os.waitstatus_to_exitcode(status) == CHANGED


def kill_after(state: str, seconds: float) -> None:
    """Begin to bring the host to a state, and be killed."""
    pid = begin(state)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def leftovers() -> list[str]:
    """Everything on this machine that bears one of the host's marks."""
    found = [str(STATE)] if STATE.exists() else []
    for argv in LOOK:
        shown = subprocess.run(argv, check=False, capture_output=True, text=True).stdout
        found += [line for line in shown.splitlines() if any(mark in line for mark in MARKS)]
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Take the host down, whatever a test left of it."""
    if os.geteuid() != 0:
        pytest.skip("the sandbox needs root")
    yield
    fulfil("absent")


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.4, 0.7, 1.0, 1.6, 2.4])
def test_killed_run_is_finished_by_the_next(seconds: float) -> None:
    """Killed up, up, up again; killed down, up; killed down, down."""
    kill_after("started", seconds)
    fulfil("started")
    assert not fulfil("started")
    kill_after("absent", seconds)
    fulfil("started")
    assert not fulfil("started")
    kill_after("absent", seconds)
    fulfil("absent")
    assert leftovers() == []


def crash() -> None:
    """Kill the supervisor and systemd-nspawn: the guest's own processes may live on."""
    folder = STATE / "hosts" / str(PARAMS["name"])
    supervisor = int((folder / "supervisor.pid").read_text(encoding="ascii"))
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="ascii")
    assert processes.in_root(folder / "root")
    for pid in (supervisor, *map(int, children.split())):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("then", ["started", "absent"])
def test_guest_that_outlived_its_supervisor(then: str) -> None:
    """The next run, up or down, ends what is left of it."""
    fulfil("started")
    crash()
    assert fulfil(then)
    assert not fulfil(then)
    fulfil("absent")
    assert leftovers() == []
