# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric manager of a host with NVSwitches: of the driver's version, running, and left alone.

It programs the switches when it starts. Programs that compute meanwhile keep the old state of the
fabric and fail later (NVLS: `CUDA failure 1 'invalid argument'`), so it is never started or
restarted under them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import driver_state, gpu
from ansible_collections.llmetal.inference.plugins.module_utils.dpkg import query
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.service import (
    Manager,
    UnitState,
    wall_clock,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = "/usr/bin/nv-fabricmanager"
_DRIVER = "/proc/driver/nvidia/version"
_POLL = 1.0
_STEADY = 3.0
"""Seconds that it must stay up: with a wrong driver it ends within the first."""
_SHOWN = 5
_LOG_LINES = 8
_KNOWN = {
    "don't match with driver version": "install the fabric manager in the driver's version and "
    "hold both (run the site again), or reboot into the driver on disk",
    "NV_WARN_NOTHING_TO_DO": "it found no switch: on B200 and B300 it needs nvlsm and the "
    "ConnectX-7 bridges (infiniband-diags: ibstat); elsewhere look for the switches with "
    "lspci -d 10de::0680",
    "failed with error: NV_ERR": "look for SXid messages of the switches in the journal; "
    "power-cycle the host",
}
"""What it says when it ends, and what to do then."""


@dataclass(frozen=True)
class Seen:
    """The fabric manager as it was found."""

    unit: UnitState
    packages: Mapping[str, str | None]
    """Installed versions of its packages."""
    driver: str | None
    """Version of the loaded kernel module."""
    program_changed: float | None
    """When its program was last written, in seconds since the epoch."""

    @property
    def is_stale(self) -> bool:
        """Whether the running process is of another file than the one on disk."""
        if not self.unit.is_running or self.program_changed is None:
            return False
        return wall_clock(self.unit.started_us) < self.program_changed

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return {
            "active": self.unit.active,
            "enabled": self.unit.is_enabled,
            "stale": self.is_stale,
            "packages": dict(self.packages),
            "driver": self.driver,
        }


@dataclass(frozen=True)
class Wanted:
    """The fabric manager as the lock has it."""

    service: str
    package: str
    version: str
    packages: Mapping[str, str]
    """What comes with it, and the version of each."""


def see(wanted: Wanted, manager: Manager, root: str = "/") -> Seen:
    """Look at the host.

    Raises:
        LlmetalError: no systemd answers.
    """
    unit = manager.state_of(wanted.service)
    if unit is None:
        raise LlmetalError(
            what="no systemd answers",
            where=wanted.service,
            fix="a host with NVSwitches needs systemd for its fabric manager",
        )
    names = [wanted.package, *wanted.packages]
    database = query(names)
    base = Path(root)
    try:
        changed = (base / PROGRAM.lstrip("/")).stat().st_ctime
    except OSError:
        changed = None
    loaded, _ = driver_state.parse_proc_version(read_text(base / _DRIVER.lstrip("/")))
    return Seen(unit, {name: database.version(name) for name in names}, loaded, changed)


def wrong_packages(wanted: Wanted, seen: Seen) -> list[str]:
    """What of its packages is not as the lock has it."""
    asked = {wanted.package: wanted.version, **wanted.packages}
    return [
        f"{name} is {seen.packages.get(name) or 'not installed'}, the lock has {version}"
        for name, version in asked.items()
        if seen.packages.get(name) != version
    ]


def wrong_driver(wanted: Wanted, seen: Seen) -> str:
    """Why it would end at once with the loaded driver; empty where it would not."""
    mine = driver_state.upstream_version(seen.packages.get(wanted.package) or wanted.version)
    if seen.driver is None:
        return "no NVIDIA driver is loaded"
    if mine != seen.driver:
        return f"the fabric manager is {mine}, the loaded driver {seen.driver}"
    return ""


def action_of(seen: Seen) -> str:
    """What has to be done with the service: `none`, `start` or `restart`."""
    if seen.unit.active == "active":
        return "restart" if seen.is_stale else "none"
    return "start"


def computing() -> list[dict[str, Any]]:
    """The processes on the GPUs.

    Raises:
        LlmetalError: nvidia-smi does not say.
    """
    report = gpu.report(gpu.gather())
    answers = any(one["source"] == "driver" for one in report["gpus"])
    if report["driver"]["smi"]["rc"] != 0 or not answers:
        raise LlmetalError(
            what="nvidia-smi does not say which processes compute",
            why=str(report["driver"]["smi"]["message"] or "it describes no GPU"),
            fix="the fabric manager is left alone until it does; see what is wrong with the driver",
        )
    return [process for one in report["gpus"] for process in one["processes"]]


def check(wanted: Wanted, seen: Seen) -> None:
    """Refuse what cannot run.

    Raises:
        LlmetalError: its packages, its unit or the driver are not as they have to be.
    """
    if wrong := wrong_packages(wanted, seen):
        raise LlmetalError(
            what="the fabric manager is not of the lock's version",
            where=wanted.service,
            why="; ".join(wrong),
            fix="it comes with the driver in one transaction: run the site again, so that "
            "nvidia_driver installs the set; see `apt-mark showhold` for what holds it back",
        )
    if why := wrong_driver(wanted, seen):
        raise LlmetalError(
            what="the fabric manager ends at once with this driver",
            where=wanted.service,
            why=why,
            fix="reboot into the driver on disk, or run the site again so that both are installed "
            "in one version",
        )
    if seen.unit.is_masked:
        raise LlmetalError(
            what="the fabric manager is masked",
            where=wanted.service,
            fix=f"somebody forbade it to start; allow it with `systemctl unmask {wanted.service}`",
        )


def refuse_under(processes: Sequence[Mapping[str, Any]], action: str, service: str) -> None:
    """Refuse to touch the fabric under programs that compute.

    Raises:
        LlmetalError: there are some.
    """
    if not processes:
        return
    shown = ", ".join(f"{one['pid']} ({one['name']})" for one in processes[:_SHOWN])
    more = len(processes) - _SHOWN
    raise LlmetalError(
        what=f"the fabric manager must not {action} under programs that use the GPUs",
        where=service,
        why=f"process {shown}" + (f" and {more} more" if more > 0 else ""),
        fix="drain the host: stop these programs, reset the GPUs (nvidia-smi -r) or reboot, then "
        "run again",
    )


def run_it(wanted: Wanted, action: str, manager: Manager) -> UnitState:
    """Start or restart it, and see that it stays up.

    Raises:
        LlmetalError: it does not.
    """
    # A unit that failed too often may not start until it is forgiven.
    manager.systemctl("reset-failed", wanted.service)
    answer = manager.systemctl(action, wanted.service)
    deadline = time.monotonic() + _STEADY
    state = manager.state_of(wanted.service)
    while answer.ok and state and state.active == "active" and time.monotonic() < deadline:
        time.sleep(_POLL)
        state = manager.state_of(wanted.service)
    if answer.ok and state is not None and state.active == "active":
        return state
    lines = manager.log_tail(wanted.service, _LOG_LINES)
    text = "; ".join(line.strip() for line in lines if line.strip())
    skipped = state is not None and state.condition_failed
    if skipped:
        text = "its condition sees no NVSwitch on the PCI bus"
    raise LlmetalError(
        what="the fabric manager did not start" if not skipped else "the fabric manager is skipped",
        where=wanted.service,
        why=text or answer.tail(3),
        fix=_fix(text),
    )


def _fix(text: str) -> str:
    for words, fix in _KNOWN.items():
        if words in text:
            return fix
    return "see its log (/var/log/fabricmanager.log) and `journalctl` of the unit on the host"
