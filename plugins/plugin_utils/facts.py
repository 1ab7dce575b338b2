# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the survey saw of a host, typed: only what a plan needs, and nothing guessed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ansible_collections.llmetal.inference.plugins.plugin_utils.look import Look

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Raw = Mapping[str, Any]

_T = TypeVar("_T")


class FactsError(Exception):
    """A fact that a plan cannot do without is missing, or is of the wrong type."""

    def __init__(self, key: str, found: object) -> None:
        """Keep which fact, and what stood there."""
        self.key = key
        self.found = type(found).__name__
        super().__init__(f"{key}: {self.found}")


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as the survey saw it."""

    index: int | None
    pci: str
    device_id: str
    name: str
    memory_mib: int | None = None
    """As nvidia-smi shows it; None before there is a driver."""


@dataclass(frozen=True)
class Interpreter:
    """A Python on the host."""

    path: str
    version: str


@dataclass(frozen=True)
class Disk:
    """A file system."""

    path: str
    free_bytes: int


@dataclass(frozen=True)
class UbuntuDrivers:
    """What `ubuntu-drivers` recommends, by package."""

    installed: bool
    server: str | None = None
    """For computing, from Ubuntu's archive."""
    desktop: str | None = None
    """From all that the host's package sources have."""
    said: str | None = None
    """What it said instead of a recommendation."""


@dataclass(frozen=True)
class Facts:
    """A host as the survey saw it."""

    os_key: str
    os_pretty: str
    arch: str
    kernel: str
    kernels: tuple[str, ...]
    """The kernels that can be booted, oldest first; empty where the survey did not say."""
    headers_installed: bool
    headers_version: str | None
    compiler: bool
    secure_boot: str
    memory_bytes: int
    cpu_flags: frozenset[str]
    disks: tuple[Disk, ...]
    packages: Mapping[str, str]
    broken: tuple[str, ...]
    gpus: tuple[SeenGpu, ...]
    switches: tuple[str, ...]
    driver_loaded: str | None
    interpreters: tuple[Interpreter, ...]
    receipts: frozenset[str]
    fabric_active: bool
    platform: Mapping[str, Any]
    user: str
    home: str
    ubuntu_drivers: UbuntuDrivers | None = None
    """None where the survey did not ask."""
    look: Look = field(default_factory=Look)
    """The whole survey, for what no plan depends on: a fact that is not there is unknown."""
    unreadable: tuple[str, ...] = ()
    """Facts of another form than the survey gives them; what depends on them is not checked."""

    @property
    def cpus(self) -> int | None:
        """Processors, where the survey counted them."""
        return self.look.number("cpus")

    @property
    def is_virtual_machine(self) -> bool:
        """Whether the host is a virtual machine; a container on metal is none."""
        kind = str(self.platform.get("virtualization") or "none")
        return kind not in {"none", "unknown"} | _CONTAINERS

    @property
    def has_driver_packages(self) -> bool:
        """Whether any package brought an NVIDIA driver."""
        return any("nvidia" in name for name in self.packages)

    def free_at(self, path: str) -> int | None:
        """Free bytes on the file system that holds a path; None where it is not known."""
        holding = [d for d in self.disks if path == d.path or path.startswith(_folder(d.path))]
        return max(holding, key=lambda disk: len(disk.path)).free_bytes if holding else None


SCHEMA = 1
_FORMS: Mapping[str, tuple[type, ...]] = {
    "cpus": (int,),
    "held": (list,),
    "apt": (dict,),
    "gpu_health": (list,),
    "iommu": (dict,),
    "kernel_log": (dict,),
    "modules": (dict,),
    "libraries": (dict,),
    "toolkits": (dict,),
    "docker": (dict,),
    "container_toolkit": (dict,),
    "limits": (dict,),
    "ports": (list,),
    "lock_sha256": (str,),
    "run_lock": (dict,),
}
"""Facts that only checks look at, and their forms; where one is missing it is unknown."""

_CONTAINERS = {"systemd-nspawn", "docker", "podman", "lxc", "lxc-libvirt", "container-other"}


def parse(raw: object) -> Facts:
    """Read the survey's result.

    Raises:
        FactsError: something that every plan needs is missing or of the wrong type.
    """
    top = _as(raw, dict, "facts")
    system, kernel = _get(top, "os", dict), _get(top, "kernel", dict)
    gpu, user = _get(top, "gpu", dict), _get(top, "user", dict)
    headers = _maybe(kernel, "headers", dict, "kernel.")
    driver = _maybe(gpu, "driver", dict, "gpu.")
    services = _maybe(top, "services", dict)
    return Facts(
        os_key=_get(system, "key", str, "os."),
        os_pretty=str(system.get("pretty") or system["key"]),
        arch=_get(top, "arch", str),
        kernel=_get(kernel, "running", str, "kernel."),
        kernels=tuple(map(str, _maybe(kernel, "installed", list, "kernel."))),
        headers_installed=bool(headers.get("installed")),
        headers_version=_text(headers.get("version")),
        compiler=bool(kernel.get("compiler")),
        secure_boot=str(kernel.get("secure_boot") or "unknown"),
        memory_bytes=_size(top, "memory_bytes"),
        cpu_flags=frozenset(map(str, _maybe(top, "cpu_flags", list))),
        disks=tuple(_disk(row) for row in _get(top, "disks", list)),
        packages={str(k): str(v) for k, v in _get(top, "packages", dict).items()},
        broken=tuple(map(str, _maybe(top, "broken", list))),
        gpus=tuple(_gpu(row) for row in _get(gpu, "gpus", list, "gpu.")),
        switches=tuple(
            str(_as(row, dict, "gpu.switches").get("device_id"))
            for row in _maybe(gpu, "switches", list, "gpu.")
        ),
        driver_loaded=_text(driver.get("loaded")),
        interpreters=tuple(_interpreter(row) for row in _get(top, "python", list)),
        receipts=frozenset(
            str(role)
            for role, receipt in _maybe(top, "receipts", dict).items()
            if isinstance(receipt, dict) and "unreadable" not in receipt
        ),
        fabric_active=_is_active(services.get("nvidia-fabricmanager.service")),
        platform=dict(_get(top, "platform", dict)),
        user=_get(user, "name", str, "user."),
        home=_get(user, "home", str, "user."),
        ubuntu_drivers=_ubuntu_drivers(_maybe(top, "ubuntu_drivers", dict)),
        look=Look(top),
        unreadable=tuple(_unreadable(top)),
    )


def _unreadable(top: Raw) -> Iterator[str]:
    """The facts of another form than the survey gives them."""
    if top.get("schema") != SCHEMA:
        yield f"schema {top.get('schema')!r}"
    for key, kinds in _FORMS.items():
        value = top.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            yield f"{key} of type {type(value).__name__}"


def _gpu(raw: object) -> SeenGpu:
    row = _as(raw, dict, "gpu.gpus")
    index, memory = row.get("index"), row.get("memory_mib")
    return SeenGpu(
        index=index if isinstance(index, int) else None,
        pci=_get(row, "pci_address", str, "gpu.gpus."),
        device_id=_get(row, "device_id", str, "gpu.gpus.").lower().removeprefix("0x"),
        name=str(row.get("name") or ""),
        memory_mib=memory if isinstance(memory, int) and memory > 0 else None,
    )


def _disk(raw: object) -> Disk:
    row = _as(raw, dict, "disks")
    return Disk(_get(row, "path", str, "disks."), _get(row, "free_bytes", int, "disks."))


def _ubuntu_drivers(row: Raw) -> UbuntuDrivers | None:
    if not row:
        return None
    return UbuntuDrivers(
        installed=bool(row.get("path")),
        server=_text(row.get("server")),
        desktop=_text(row.get("desktop")),
        said=_text(row.get("said")),
    )


def _interpreter(raw: object) -> Interpreter:
    row = _as(raw, dict, "python")
    return Interpreter(_get(row, "path", str, "python."), _get(row, "version", str, "python."))


def _get(row: Raw, key: str, kind: type[_T], prefix: str = "") -> _T:
    return _as(row.get(key), kind, prefix + key)


def _maybe(row: Raw, key: str, kind: type[_T], prefix: str = "") -> _T:
    """A value that may be missing: then an empty one."""
    value = row.get(key)
    return kind() if value is None else _as(value, kind, prefix + key)


def _is_active(unit: object) -> bool:
    return isinstance(unit, dict) and unit.get("active") in {"active", True}


def _as(value: object, kind: type[_T], key: str) -> _T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise FactsError(key, value)
    return value


def _size(row: Raw, key: str) -> int:
    value = _get(row, key, int)
    if value < 0:
        raise FactsError(key, f"{value}")
    return value


def _text(value: object) -> str | None:
    return str(value) if value else None


def _folder(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
