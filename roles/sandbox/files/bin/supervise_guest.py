#!/usr/bin/env python3
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep one sandbox host running: start its guest, start it again when it reboots, end with it.

    supervise_guest.py FOLDER

FOLDER holds guest.json (how to start the guest), and supervisor.pid, which is locked by this
process for as long as it lives: whoever can take that lock knows that no supervisor is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

REBOOT = 133
"""What systemd-nspawn returns when the guest asks to be started again."""
PATIENCE = 25.0
_PR_SET_PDEATHSIG = 1
_CGROUPS = Path("/sys/fs/cgroup")


class Supervisor:
    """One guest and whether it is to run."""

    def __init__(self, folder: Path) -> None:
        """Read how to start the guest."""
        self.folder = folder
        self.name = folder.name
        self.guest: subprocess.Popen[bytes] | None = None
        self.stopping = False

    def ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Pass the wish on: the guest's init powers off, and is killed when it takes too long."""
        if self.stopping:
            return
        self.stopping = True
        (self.folder / "stopping").touch()
        if self.guest and self.guest.poll() is None:
            self.guest.send_signal(signal.SIGTERM)
            signal.signal(signal.SIGALRM, self.kill)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)

    def kill(self, _number: int, _frame: FrameType | None) -> None:
        """End the guest by force."""
        if self.guest and self.guest.poll() is None:
            self.guest.kill()

    def run(self) -> int:
        """Run the guest until it powers off."""
        status = 0
        while not self.stopping:
            plan = json.loads((self.folder / "guest.json").read_text(encoding="utf-8"))
            self.guest = start(plan)
            status = self.guest.wait()
            say(f"{self.name}: the guest ended with status {status}")
            if status != REBOOT or self.must_stay_down():
                break
            time.sleep(0.2)
        return status

    def must_stay_down(self) -> bool:
        """Whether a fault keeps the host from coming back."""
        try:
            faults = json.loads((self.folder / "faults.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        return any(fault.get("supervisor") == "no_restart" for fault in faults.values())


def start(plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start systemd-nspawn so that it cannot outlive this process."""
    libc = ctypes.CDLL(None, use_errno=True)

    def bind_to_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(  # noqa: S603 - a list of arguments written by the sandbox
        plan["argv"],
        env={**os.environ, **plan["env"]},
        stdin=subprocess.DEVNULL,
        preexec_fn=bind_to_parent,  # noqa: PLW1509 - this process has one thread
    )


def enter_own_cgroup(name: str, memory_mib: int) -> list[Path]:
    """Move into a control group of this host's own, in each hierarchy that systemd uses.

    systemd-nspawn makes the guest's groups below the one it is started in; two guests started
    in one would share them. A scope of systemd's already is one of its own.
    """
    if Path("/run/systemd/system").is_dir():
        return []
    roots = [_CGROUPS] if (_CGROUPS / "cgroup.controllers").exists() else []
    parts = ["systemd", "unified", *(["memory"] if memory_mib else [])]
    roots += [_CGROUPS / part for part in parts if (_CGROUPS / part).is_dir()]
    groups = []
    for root in roots:
        group = root / f"llmetal-sandbox-{name}"
        with contextlib.suppress(OSError):
            group.mkdir(exist_ok=True)
            for limit in ("memory.limit_in_bytes", "memory.max"):
                if memory_mib and (group / limit).exists():
                    (group / limit).write_text(str(memory_mib << 20), encoding="ascii")
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            groups.append(group)
    return groups


def leave_cgroups(groups: list[Path]) -> None:
    """Go back to the root group and remove the host's own, the deepest first."""
    for group in groups:
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        for _ in range(20):
            folders = [Path(folder) for folder, _, _ in os.walk(group, topdown=False)]
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if not group.exists():
                break
            time.sleep(0.1)


def say(text: str) -> None:
    """One line for the host's log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> int:
    """Hold the lock, run the guest, clean up."""
    folder = Path(sys.argv[1])
    with (folder / "supervisor.pid").open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{folder.name}: has a supervisor already")
            return 1
        (folder / "stopping").unlink(missing_ok=True)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        supervisor = Supervisor(folder)
        signal.signal(signal.SIGTERM, supervisor.ask_to_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        plan = json.loads((folder / "guest.json").read_text(encoding="utf-8"))
        groups = enter_own_cgroup(folder.name, plan["memory_mib"])
        try:
            return supervisor.run()
        finally:
            leave_cgroups(groups)


if __name__ == "__main__":
    sys.exit(main())
