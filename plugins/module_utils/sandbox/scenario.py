# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scenarios and faults: the data files of the sandbox, read and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible.module_utils.common import yaml
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class GpuKind:
    """What the GPUs of a scenario have in common."""

    device: str
    subsystem: str
    pci_class: str
    name: str
    brand: str
    architecture: str
    memory_mib: int
    power_limit_w: int
    vbios: str
    ecc: bool
    open_only: bool = False

    @property
    def subsystem_vendor(self) -> str:
        """Who made the board."""
        return self.subsystem.split(":")[0]

    @property
    def subsystem_device(self) -> str:
        """The board."""
        return self.subsystem.split(":")[1]


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    address: str
    numa: int
    uuid: str = ""
    serial: str = ""


@dataclass(frozen=True)
class NvLink:
    """The links of each GPU, in the words of nvidia-smi."""

    links: int
    speed: str
    topo: str


@dataclass(frozen=True)
class Switches:
    """The devices through which a host sees its NVSwitches."""

    vendor: str
    device: str
    pci_class: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """One kind of machine."""

    name: str
    what: str
    recorded: bool
    recording: str
    kind: GpuKind
    gpus: tuple[Gpu, ...]
    nvlink: NvLink | None = None
    switches: Switches | None = None
    fabric_reported: bool = False
    fabric_manager: bool = False
    cpus: str = "0-31"
    """Those near each GPU, as `nvidia-smi topo -m` writes them."""


@dataclass(frozen=True)
class Fault:
    """One way in which a host can be broken."""

    name: str
    what: str
    hardware: dict[str, dict[str, int]] = field(default_factory=dict)
    server: str = ""
    supervisor: str = ""
    on: str = ""
    off: str = ""
    reboot: bool = False


def names(folder: Path) -> list[str]:
    """The names of the data files of a folder."""
    return sorted(path.stem for path in folder.glob("*.yml"))


def load_scenario(files: Path, name: str) -> Scenario:
    """Read a scenario.

    Raises:
        LlmetalError: there is none of that name, or its file is wrong.
    """
    raw = _load(files / "scenarios", name, "scenario")
    try:
        gpu = dict(raw["gpu"])
        addresses = gpu.pop("addresses")
        numa = gpu.pop("numa")
        uuids = gpu.pop("uuids", [""] * len(addresses))
        serials = gpu.pop("serials", [""] * len(addresses))
        _refuse_uneven(addresses, numa, uuids, serials)
        switches = raw.get("switches")
        fabric = raw.get("fabric", {})
        return Scenario(
            name=name,
            what=raw["what"],
            recorded=raw["recorded"],
            recording=raw["recording"],
            kind=GpuKind(pci_class=gpu.pop("class"), **gpu),
            gpus=tuple(Gpu(*values) for values in zip(addresses, numa, uuids, serials)),
            nvlink=NvLink(**raw["nvlink"]) if "nvlink" in raw else None,
            switches=Switches(
                switches["vendor"],
                switches["device"],
                switches["class"],
                tuple(switches["addresses"]),
            )
            if switches
            else None,
            fabric_reported=fabric.get("reported", False),
            fabric_manager=fabric.get("manager", False),
            cpus=raw.get("cpus", "0-31"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(files / "scenarios" / f"{name}.yml", error) from error


def load_fault(files: Path, name: str) -> Fault:
    """Read a fault.

    Raises:
        LlmetalError: there is none of that name, or its file is wrong.
    """
    raw = _load(files / "faults", name, "fault")
    try:
        return Fault(name=name, **raw)
    except TypeError as error:
        raise _wrong(files / "faults" / f"{name}.yml", error) from error


def _load(folder: Path, name: str, what: str) -> dict[str, Any]:
    if name not in names(folder):
        raise LlmetalError(
            what=f"there is no {what} {name!r}",
            where=str(folder),
            fix=f"use one of {', '.join(names(folder))}",
        )
    if not yaml.HAS_YAML:
        raise LlmetalError(
            what="the controller's Python has no YAML library",
            fix="run the sandbox with the Python that Ansible itself runs on",
        )
    raw = yaml.yaml_load(read_text(folder / f"{name}.yml"))
    if not isinstance(raw, dict):
        raise _wrong(folder / f"{name}.yml", TypeError("it is not a mapping"))
    return raw


def _refuse_uneven(*lists: list[Any]) -> None:
    if len({len(values) for values in lists}) > 1:
        message = "addresses, numa, uuids and serials differ in length"
        raise ValueError(message)


def _wrong(path: Path, error: Exception) -> LlmetalError:
    return LlmetalError(
        what="a data file of the sandbox is wrong",
        where=str(path),
        why=f"{type(error).__name__}: {error}",
        fix="README.md beside it lists its keys",
    )
