# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running containers that hold GPUs, and having systemd read its units anew beside them.

A daemon-reload makes systemd write the device rules of its scopes again. What a container runtime
let in behind its back is not among them: the container keeps running and has no GPU any more
(`Failed to initialize NVML: Unknown Error`). So nothing reloads while one runs.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.processes import program_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.service import Manager

_CGROUP = re.compile(
    r"/(?:(?P<engine>docker|cri-containerd|crio|libpod|nerdctl)-)?"
    r"(?P<id>[0-9a-f]{64})(?P<scope>\.scope)?(?:/|$)"
)
_ENABLED = {"enabled", "enabled-runtime", "static", "alias", "indirect", "generated"}
_SHOWN = 5
_SHORT = 12


@dataclass(frozen=True)
class GpuContainer:
    """A running container with device files of NVIDIA's."""

    id: str
    engine: str
    pid: int
    program: str | None
    scope: bool
    """Whether systemd manages its cgroup: only then a reload touches its devices."""

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return asdict(self)


def container_of(cgroup: str | None) -> tuple[str, str, bool] | None:
    """Id, engine and whether systemd manages it, in the text of /proc/<pid>/cgroup."""
    for line in (cgroup or "").splitlines():
        found = list(_CGROUP.finditer(line.rpartition(":")[2]))
        if found:
            inner = found[-1]
            engine = inner["engine"] or ("docker" if "/docker/" in line else "container")
            return inner["id"][:_SHORT], engine, inner["scope"] is not None
    return None


def _has_gpu(process: Path) -> bool | None:
    """Whether a process sees a GPU's device file; None where it cannot be looked at."""
    try:
        return any(entry.name.startswith("nvidia") for entry in (process / "root/dev").iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return None


def running(proc: str = "/proc") -> list[GpuContainer]:
    """The running containers with GPUs, and those that cannot be looked into; needs root."""
    found: dict[str, GpuContainer] = {}
    looked: set[str] = set()
    for process in _processes(Path(proc)):
        container = container_of(read_text(process / "cgroup"))
        if container is None or container[0] in looked:
            continue
        identifier, engine, scope = container
        looked.add(identifier)
        if _has_gpu(process) is not False:
            program = program_of(read_text(process / "cmdline"))
            pid = int(process.name)
            found[identifier] = GpuContainer(identifier, engine, pid, program, scope)
    return list(found.values())


def _processes(proc: Path) -> Iterator[Path]:
    try:
        entries = [entry for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return
    yield from sorted(entries, key=lambda entry: int(entry.name))


def described(containers: Sequence[GpuContainer]) -> str:
    """The containers as a person reads them."""
    shown = [f"{one.engine} {one.id} ({one.program or 'unknown'})" for one in containers[:_SHOWN]]
    more = len(containers) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def endangered(proc: str = "/proc") -> list[GpuContainer]:
    """The containers that a daemon-reload would cut off their GPUs."""
    return [one for one in running(proc) if one.scope]


def refuse_reload(proc: str = "/proc") -> None:
    """Refuse to have systemd read its units anew while a container holds GPUs.

    Raises:
        LlmetalError: one does.
    """
    if found := endangered(proc):
        raise LlmetalError(
            what="systemd must not read its units anew while containers hold GPUs",
            where=described(found),
            why="daemon-reload writes the device rules of their scopes again and takes the GPUs "
            "out of them",
            fix="stop these containers, then run again; start them afterwards",
        )


def refuse_packages(proc: str = "/proc") -> None:
    """Refuse to change packages whose scripts reload systemd while a container holds GPUs.

    Raises:
        LlmetalError: one does.
    """
    if found := endangered(proc):
        raise LlmetalError(
            what="driver packages must not change while containers hold GPUs",
            where=described(found),
            why="the packages' own scripts call `systemctl daemon-reload`, which takes the GPUs "
            "out of these containers while they run on",
            fix="drain the host or stop these containers, then run again; start them afterwards",
        )


@dataclass(frozen=True)
class Reload:
    """What has to be done so that systemd knows units as they are on disk."""

    stale: tuple[str, ...]
    """Units whose files changed since systemd read them."""
    to_enable: tuple[str, ...]
    missing: tuple[str, ...]
    """Units that should start at boot and are not there."""
    containers: tuple[GpuContainer, ...] = ()
    """Those that a reload would cut off; not looked for where none is needed."""

    @property
    def is_postponed(self) -> bool:
        """Whether the reload has to wait."""
        return bool(self.stale and self.containers)


def look(units: Sequence[str], enable: Sequence[str], manager: Manager) -> Reload:
    """Find out what has to be done.

    Args:
        units: those that systemd should know as they are on disk.
        enable: those that should start at boot.
        manager: the systemd to ask.
    """
    states = {name: manager.state_of(name) for name in dict.fromkeys([*units, *enable])}
    there = {name: state for name, state in states.items() if state and state.load != "not-found"}
    stale = tuple(name for name in units if name in there and there[name].needs_reload)
    to_enable = tuple(name for name in enable if not _is_enabled(name, manager))
    return Reload(
        stale=stale,
        to_enable=to_enable,
        missing=tuple(name for name in enable if name not in there),
        containers=tuple(endangered()) if stale or to_enable else (),
    )


def _is_enabled(name: str, manager: Manager) -> bool:
    """Whether a unit starts at boot, read from disk: `show` remembers what it was at a reload."""
    return manager.systemctl("is-enabled", name).stdout.strip() in _ENABLED


def act(reload: Reload, manager: Manager, *, postpone: bool) -> None:
    """Enable units, and have systemd read the changed ones.

    Args:
        reload: what has to be done.
        manager: the systemd to do it.
        postpone: whether containers with GPUs make the reload wait for the next boot, not fail.

    Raises:
        LlmetalError: a unit is not there, systemd refuses, or containers hold GPUs.
    """
    if reload.missing:
        raise LlmetalError(
            what="there is no such unit",
            where=", ".join(reload.missing),
            fix="install the package that brings it",
        )
    if reload.is_postponed and not postpone:
        refuse_reload()
    for name in reload.to_enable:
        # On the files alone: asked of systemd, `enable` is a daemon-reload; and with --no-reload it
        # takes all units for changed from then on (seen with systemd 257).
        _ask(manager, name, "--root=/", "enable", name)
    changed = (*reload.stale, *reload.to_enable)
    if changed and not reload.containers:
        _ask(manager, ", ".join(changed), "daemon-reload")


def _ask(manager: Manager, where: str, *arguments: str) -> None:
    answer = manager.systemctl(*arguments)
    if not answer.ok:
        raise LlmetalError(
            what=f"`systemctl {' '.join(arguments)}` failed",
            where=where,
            why=answer.tail(3),
            fix="see `systemctl status` and the journal on the host",
        )
