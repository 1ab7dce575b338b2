# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exchange the driver that is loaded for the one on disk without a reboot, where nothing holds it.

Who holds it is asked before anything is stopped, and again before anything is unloaded. Where it
does not succeed the services run again as before, and a reboot is what is left.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_state,
    gpu_containers,
    processes,
    units,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ORDER = ("nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")
"""The driver's modules in the order in which they can be unloaded."""
_OTHERS = ("nouveau", "nova_core")
_DEVICE = re.compile(r"/dev/nvidia(?:\d|ctl|-|_)")
_COUNT = re.compile(r"^(\S+) \d+ (-?\d+) (\S+) ", re.MULTILINE)
_TIMEOUT = 90.0
_SETTLE = 5.0
_SHOWN = 5


@dataclass(frozen=True)
class Holder:
    """Who uses the driver: a process, a container or another kernel module."""

    kind: str
    name: str
    pid: int | None = None
    unit: str | None = None

    def __str__(self) -> str:
        """For a person."""
        pid = f" {self.pid}" if self.pid else ""
        return f"{self.kind}{pid} {self.name}" + (f" ({self.unit})" if self.unit else "")


@dataclass(frozen=True)
class Loaded:
    """A kernel module as /proc/modules has it."""

    references: int
    used_by: tuple[str, ...]


@dataclass
class Outcome:
    """What was found and done."""

    needed: bool
    loaded: str | None
    version: str | None = None
    reloaded: bool = False
    why: str = ""
    holders: list[Holder] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    not_started: list[str] = field(default_factory=list)

    def as_result(self) -> dict[str, Any]:
        """As a module returns it."""
        return asdict(self)


def parse_modules(text: str | None) -> dict[str, Loaded]:
    """The loaded modules, from /proc/modules."""
    return {
        match[1]: Loaded(
            int(match[2]), tuple(name for name in match[3].split(",") if name and name != "-")
        )
        for match in _COUNT.finditer(text or "")
    }


def loaded_modules(proc: str = "/proc") -> dict[str, Loaded]:
    """The loaded modules; from sysfs where the kernel gives no list of them."""
    text = read_text(Path(proc) / "modules")
    if text is not None:
        return parse_modules(text)
    found = {}
    for name in (*ORDER, *_OTHERS):
        folder = Path(proc).parent / "sys/module" / name
        count = (read_text(folder / "refcnt") or "").strip()
        if count.lstrip("-").isdigit():
            users = sorted(path.name for path in (folder / "holders").glob("*"))
            found[name] = Loaded(int(count), tuple(users))
    return found


def module_holders(modules: Mapping[str, Loaded]) -> list[Holder]:
    """Other kernel modules that use the driver's."""
    users = {user for name in ORDER if name in modules for user in modules[name].used_by}
    return [Holder("kernel module", user) for user in sorted(users - set(ORDER))]


def still_referenced(modules: Mapping[str, Loaded]) -> list[Holder]:
    """The driver's modules that more refer to than the modules that stand there by name."""
    return [
        Holder("kernel", f"{name}: {modules[name].references} references")
        for name in ORDER
        if name in modules and modules[name].references > len(modules[name].used_by)
    ]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _uses_device(process: Path) -> bool:
    """Whether a process has a device file of the driver open or mapped."""
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return False
    if any(_DEVICE.match(_target(link)) for link in links):
        return True
    return bool(_DEVICE.search(read_text(process / "maps") or ""))


def process_holders(proc: str = "/proc", spared: Sequence[str] = ()) -> list[Holder]:
    """The processes that use the driver, but for those of units that will be stopped."""
    found = []
    for process in sorted(Path(proc).glob("[0-9]*"), key=lambda path: int(path.name)):
        if not _uses_device(process):
            continue
        unit = processes.unit_of(read_text(process / "cgroup"))
        if unit in spared:
            continue
        name = processes.program_of(read_text(process / "cmdline")) or "(kernel)"
        found.append(Holder("process", name, int(process.name), unit))
    return found


def container_holders(proc: str = "/proc") -> list[Holder]:
    """The containers that the old libraries were brought into."""
    return [
        Holder("container", f"{one.engine} {one.id}", one.pid, None)
        for one in gpu_containers.running(proc)
    ]


def holders(proc: str, spared: Sequence[str]) -> list[Holder]:
    """Everything that keeps the driver from being unloaded."""
    modules = loaded_modules(proc)
    others = [Holder("kernel module", f"{name}, which has the GPU") for name in _OTHERS]
    return [
        *(one for name, one in zip(_OTHERS, others) if name in modules),
        *process_holders(proc, spared),
        *container_holders(proc),
        *module_holders(modules),
    ]


def _loaded(proc: str) -> tuple[str | None, str | None]:
    """Version and flavour of the loaded driver."""
    return driver_state.parse_proc_version(read_text(Path(proc) / "driver/nvidia/version"))


def _is(found: tuple[str | None, str | None], version: str, flavour: str | None) -> bool:
    """Whether this is the wanted driver; one that hides its flavour passes."""
    return found[0] == version and (flavour is None or found[1] in {None, flavour})


def _call(*argv: str) -> CommandResult:
    return run(argv, timeout=_TIMEOUT)


def _wait_for_release(proc: str) -> list[Holder]:
    """What still refers to the modules after the services were stopped, waiting a little."""
    until = time.monotonic() + _SETTLE
    while True:
        left = still_referenced(loaded_modules(proc))
        if not left or time.monotonic() >= until:
            return left
        time.sleep(0.2)


def _unload(proc: str) -> tuple[list[str], str]:
    """Unload the driver's modules; those that are gone, and why it did not go on."""
    gone: list[str] = []
    loaded = loaded_modules(proc)
    for name in ORDER:
        if name not in loaded:
            continue
        told = _call("rmmod", name)
        if not told.ok:
            return gone, f"{name} cannot be unloaded: {told.tail(1)}"
        gone.append(name)
    return gone, ""


def _load(names: Sequence[str]) -> str:
    """Load modules, `nvidia` first; why one could not be loaded."""
    for name in reversed([one for one in ORDER if one in {*names, "nvidia"}]):
        told = _call("modprobe", name)
        if not told.ok:
            return f"{name} cannot be loaded: {told.tail(1)}"
    return ""


def _stop(services: Sequence[str]) -> tuple[list[str], str]:
    states = units.show(services) if services else {}
    running = [name for name in services if states.get(name, {}).get("active") == "active"]
    for name in reversed(running):
        told = _call("systemctl", "stop", name)
        if not told.ok:
            return running, f"{name} cannot be stopped: {told.tail(1)}"
    return running, ""


def _start(stopped: Sequence[str], services: Sequence[str]) -> list[str]:
    """Start what was stopped, and what should run and failed with the driver of before."""
    states = units.show(services) if services else {}
    wanted = [
        name
        for name in services
        if name in stopped or states.get(name, {}).get("enabled") == "enabled"
    ]
    return [name for name in wanted if not _call("systemctl", "start", name).ok]


def _named(found: Sequence[Holder]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(map(str, found[:_SHOWN])) + more


def converge(  # noqa: PLR0913 - the driver wanted, and where to look
    version: str,
    flavour: str | None = None,
    *,
    services: Sequence[str] = (),
    check_mode: bool = False,
    kernel: str,
    proc: str = "/proc",
) -> Outcome:
    """Exchange the loaded driver for the one on disk; where that cannot be, say why.

    Args:
        version: the driver that should be loaded.
        flavour: that of its modules, `open` or `proprietary`; either where it is null.
        services: units that use the driver and may be stopped for the time, in their order.
        check_mode: only say what would be done.
        kernel: release of the running kernel.
        proc: where the process file system is.
    """
    loaded = _loaded(proc)
    outcome = Outcome(not _is(loaded, version, flavour), loaded[0], version=loaded[0])
    if not outcome.needed:
        return outcome
    outcome.holders = holders(proc, services)
    if outcome.holders:
        outcome.why = f"in use: {_named(outcome.holders)}"
        return outcome
    if check_mode:
        outcome.reloaded, outcome.version = True, version
        return outcome
    on_disk = driver_state.module_on_disk(Path("/"), kernel)
    if not _is(on_disk, version, flavour):
        has = " ".join(word for word in on_disk if word) or "none"
        outcome.why = f"the module on disk for Linux {kernel} is {has}"
        return outcome
    _exchange(outcome, services, proc)
    now = _loaded(proc)
    outcome.version, outcome.reloaded = now[0], _is(now, version, flavour)
    if not outcome.reloaded and not outcome.why:
        outcome.why = f"the driver {now[0] or 'none'} is loaded after it"
    return outcome


def _exchange(outcome: Outcome, services: Sequence[str], proc: str) -> None:
    """Stop, look again, unload, load, start; whatever was stopped or unloaded comes back."""
    outcome.stopped, outcome.why = _stop(services)
    gone: list[str] = []
    if not outcome.why:
        outcome.holders = [*holders(proc, ()), *_wait_for_release(proc)]
        if outcome.holders:
            outcome.why = f"in use: {_named(outcome.holders)}"
    if not outcome.why:
        gone, outcome.why = _unload(proc)
    failed = _load(gone) if gone or not outcome.why else ""
    outcome.why = "; ".join(part for part in (outcome.why, failed) if part)
    outcome.not_started = _start(outcome.stopped, services)
