# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the PCI bus says, before any driver is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    import os

NVIDIA = "10de"
_GPU_CLASSES = ("0300", "0302")
_BRIDGE_CLASS = "0680"
_CONNECTX7 = ("15b3", "1021")
_SWITCH_MANAGEMENT = b"SW_MNG"
"""Word in the vital product data of the ConnectX-7 functions that stand for the NVSwitches of a
Blackwell board."""


@dataclass(frozen=True)
class PciDevice:
    """One device: identifiers as four lower-case hexadecimal digits, without a prefix."""

    address: str
    vendor: str
    device: str
    subsystem: str
    pci_class: str
    kernel_driver: str | None = None
    numa_node: int | None = None
    manages_switch: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU of NVIDIA (not its sound or USB function)."""
        return self.vendor == NVIDIA and self.pci_class[:4] in _GPU_CLASSES

    @property
    def is_switch(self) -> bool:
        """Whether this is an NVSwitch, or the device that a Blackwell board shows in its place."""
        if self.vendor == NVIDIA:
            return self.pci_class[:4] == _BRIDGE_CLASS
        return self.manages_switch


def normal_address(text: str) -> str:
    """A PCI address with a domain of four digits, as the kernel writes it.

    `nvidia-smi` writes eight digits and capitals: `00000000:3B:00.0`.
    """
    match = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.strip().lower())
    if not match:
        return text.strip().lower()
    return f"{int(match[1] or '0', 16):04x}:{match[2]}"


def _identifier(text: str | None) -> str:
    return (text or "").strip().lower().removeprefix("0x")


def _number(text: str | None) -> int | None:
    try:
        value = int((text or "").strip())
    except ValueError:
        return None
    return value if value >= 0 else None


def _manages_switch(folder: Path) -> bool:
    try:
        return _SWITCH_MANAGEMENT in (folder / "vpd").read_bytes()
    except OSError:
        return False


def _device(folder: Path) -> PciDevice | None:
    vendor = _identifier(read_text(folder / "vendor"))
    if vendor not in {NVIDIA, _CONNECTX7[0]}:
        return None
    device = _identifier(read_text(folder / "device"))
    managing = (vendor, device) == _CONNECTX7 and _manages_switch(folder)
    if vendor != NVIDIA and not managing:
        return None
    try:
        driver = (folder / "driver").readlink().name
    except OSError:
        driver = None
    subsystem = [
        _identifier(read_text(folder / name)) for name in ("subsystem_vendor", "subsystem_device")
    ]
    return PciDevice(
        address=normal_address(folder.name),
        vendor=vendor,
        device=device,
        subsystem=":".join(subsystem) if all(subsystem) else "",
        pci_class=_identifier(read_text(folder / "class")),
        kernel_driver=driver,
        numa_node=_number(read_text(folder / "numa_node")),
        manages_switch=managing,
    )


def scan(folder: str | os.PathLike[str] = "/sys/bus/pci/devices") -> list[PciDevice]:
    """The devices of NVIDIA (and what stands for its switches), by address.

    Devices of other makers are passed over after one file: a large host has hundreds.
    """
    try:
        entries = sorted(Path(folder).iterdir())
    except OSError:
        return []
    return [device for device in map(_device, entries) if device]
