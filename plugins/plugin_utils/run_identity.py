# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run of which controller this is, and whether another one is still alive."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_TIME = 19
"""Field of /proc/PID/stat after the command's name: ticks from the boot to its start."""


@dataclass(frozen=True)
class RunIdentity:
    """The run that a worker process belongs to."""

    controller: str
    host: str
    user: str
    pid: int
    started: str

    @property
    def run_id(self) -> str:
        """One and the same in all worker processes of a run, another in every other run."""
        text = f"{self.controller}/{self.pid}/{self.started}"
        return f"{self.pid}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def owner(self) -> dict[str, Any]:
        """As the module takes it."""
        return asdict(self)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def controller_id() -> str:
    """A name for this machine that does not give its machine identifier away."""
    text = f"llmetal {_read('/etc/machine-id')} {socket.gethostname()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def started(pid: int) -> str:
    """When a process began: boot, process namespace and ticks; empty where it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return ""
    fields = stat.rpartition(")")[2].split()
    # A process that has ended and was not waited for is dead, too.
    if fields[0] in {"Z", "X"}:
        return ""
    return f"{_read('/proc/sys/kernel/random/boot_id')} {_namespace()} {fields[_START_TIME]}"


def this_run() -> RunIdentity:
    """The run of this process: a worker's parent is the process of ansible-playbook."""
    pid = os.getppid()
    return RunIdentity(
        controller=controller_id(),
        host=socket.gethostname(),
        user=getpass.getuser(),
        pid=pid,
        started=started(pid),
    )


def is_dead(owner: Mapping[str, Any]) -> bool:
    """Whether a run is surely over; one that cannot be seen from here is not."""
    if owner.get("controller") != controller_id():
        return False
    then = str(owner.get("started", "")).split(" ")
    now = f"{_read('/proc/sys/kernel/random/boot_id')} {_namespace()}".split(" ")
    if len(then) != 3 or not now[0]:  # noqa: PLR2004 - boot, namespace, ticks
        return False
    if then[0] != now[0]:
        return True
    if then[1] != now[1]:
        return False
    return started(int(owner["pid"])) != str(owner["started"])
