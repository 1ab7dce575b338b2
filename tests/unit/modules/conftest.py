# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded hosts: each folder of tests/fixtures/gpu_info is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import driver_state, gpu, pci
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.driver_state import DriverState

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = Path(__file__).parents[2] / "fixtures" / "gpu_info"


def _make_bus(folder: Path, text: str) -> None:
    """A /sys/bus/pci/devices as the lines of a recording say."""
    for line in text.splitlines():
        address, vendor, device, pci_class, subsystem, driver, numa = line.split()
        entry = folder / address
        entry.mkdir(parents=True)
        values = {
            "vendor": vendor,
            "device": device,
            "class": pci_class,
            "numa_node": numa.removeprefix("numa="),
            "subsystem_vendor": subsystem.split(":")[0],
            "subsystem_device": subsystem.split(":")[1],
        }
        for name, value in values.items():
            (entry / name).write_text(f"{value}\n")
        if name := driver.removeprefix("driver="):
            (entry / "driver").symlink_to(f"../../../bus/pci/drivers/{name}")


def _result(path: Path, rc: int | None) -> CommandResult | None:
    """What a recorded program printed."""
    if rc is None or not path.exists():
        return None
    return CommandResult((path.stem,), rc, path.read_text(), "")


def _evidence(name: str, tmp_path: Path) -> gpu.Evidence:
    """The evidence of a recorded host."""
    folder = FIXTURES / name
    case = json.loads((folder / "case.json").read_text())
    _make_bus(tmp_path, (folder / "pci.txt").read_text())
    proc = folder / "proc_version.txt"
    loaded, flavour = driver_state.parse_proc_version(proc.read_text() if proc.exists() else None)
    devices = pci.scan(tmp_path)
    return gpu.Evidence(
        pci=devices,
        driver=DriverState(
            loaded=loaded,
            flavour=flavour,
            on_disk=case.get("on_disk"),
            user_space=case.get("user_space"),
            nouveau=any(device.kernel_driver == "nouveau" for device in devices),
        ),
        kernel="6.1.0-40-amd64",
        boot_id="boot",
        smi_path="/usr/bin/nvidia-smi" if "query_rc" in case else None,
        query=_result(folder / "query.txt", case.get("query_rc")),
        nvlink=_result(folder / "nvlink.txt", case.get("nvlink_rc")),
    )


@pytest.fixture
def make_bus() -> Callable[[Path, str], None]:
    """Makes a bus of the lines of a recording."""
    return _make_bus


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], gpu.Evidence]:
    """The evidence of a recorded host, by the name of its folder."""
    return lambda name: _evidence(name, tmp_path)
