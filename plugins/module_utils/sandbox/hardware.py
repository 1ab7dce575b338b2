# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hardware inside a host: what its boot unit and its nvidia-smi read.

Everything lies in one folder that no package owns, as hardware would: what the product installs and
removes never touches it.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import repository, smi

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.scenario import (
        Fault,
        Scenario,
    )
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

FOLDER = "usr/lib/sandbox-hardware"
_UNIT = "sandbox-hardware.service"
_NVIDIA = "10de"


def install(settings: Settings, root: Path, name: str, scenario: Scenario | None) -> None:
    """Put a scenario's hardware into a host's root; none hides what the machine itself has."""
    folder = root / FOLDER
    (folder / "faults").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(settings.files / "guest/hardware-boot.py", folder / "boot.py")
    write_atomic(folder / "devices.json", json.dumps(devices(scenario, name), indent=2) + "\n")
    fabric = folder / "has_fabric"
    if scenario and scenario.fabric_manager:
        fabric.touch()
    else:
        fabric.unlink(missing_ok=True)
    write_outputs(settings, root, name, scenario, ())
    system = root / "etc/systemd/system"
    shutil.copyfile(settings.files / "guest" / _UNIT, system / _UNIT)
    wants = system / "sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    link = wants / _UNIT
    link.unlink(missing_ok=True)
    link.symlink_to(f"/etc/systemd/system/{_UNIT}")
    write_atomic(root / "etc/apt/sources.list.d/kernel.sources", repository.kernel_source(settings))


def write_outputs(
    settings: Settings,
    root: Path,
    name: str,
    scenario: Scenario | None,
    faults: Sequence[Fault],
) -> None:
    """Write what nvidia-smi says, and the marks of the faults that are on."""
    folder = root / FOLDER
    outputs = folder / "smi"
    shutil.rmtree(outputs, ignore_errors=True)
    outputs.mkdir(parents=True)
    hurt = damage(faults)
    if scenario:
        recording = settings.files / "recordings" / scenario.recording
        rendered = smi.render(
            scenario,
            name,
            xml=read_text(recording / "nvidia-smi_q_x.xml") or "",
            text=read_text(recording / "nvidia-smi_q.txt") or "",
            damage=hurt,
        )
        for file, text in rendered.items():
            write_atomic(outputs / file, text)
        if hurt.off_bus is not None:
            write_atomic(outputs / "lost", scenario.gpus[hurt.off_bus].address + "\n")
    marks = folder / "faults"
    for mark in marks.iterdir():
        mark.unlink()
    for fault in faults:
        (marks / fault.name).touch()


def damage(faults: Sequence[Fault]) -> smi.Damage:
    """What the faults do to the GPUs."""
    effects = {key: value for fault in faults for key, value in fault.hardware.items()}
    link = effects.get("link_down")
    return smi.Damage(
        link_down=(link["gpu"], link["link"]) if link else None,
        row_remap=effects.get("row_remap", {}).get("gpu"),
        off_bus=effects.get("off_bus", {}).get("gpu"),
    )


def devices(scenario: Scenario | None, host: str) -> dict[str, Any]:
    """The PCI devices of a machine, and what its driver says of its GPUs."""
    if scenario is None:
        return {"open_only": False, "devices": [], "gpus": []}
    kind = scenario.kind
    found = [
        {
            "address": gpu.address,
            "vendor": _NVIDIA,
            "device": kind.device,
            "class": kind.pci_class,
            "subsystem_vendor": kind.subsystem_vendor,
            "subsystem_device": kind.subsystem_device,
            "numa_node": gpu.numa,
            "driver": "nvidia",
        }
        for gpu in scenario.gpus
    ]
    if scenario.switches:
        switches = scenario.switches
        is_nvidia = switches.vendor == _NVIDIA
        found += [
            {
                "address": address,
                "vendor": switches.vendor,
                "device": switches.device,
                "class": switches.pci_class,
                "subsystem_vendor": switches.vendor,
                "subsystem_device": switches.device,
                "numa_node": -1,
                "driver": "nvidia-nvswitch" if is_nvidia else "mlx5_core",
            }
            for address in switches.addresses
        ]
    return {
        "open_only": kind.open_only,
        "vbios": kind.vbios.lower(),
        "name": kind.name,
        "devices": found,
        "gpus": [
            {"address": gpu.address, "uuid": smi.uuid_of(scenario, host, index)}
            for index, gpu in enumerate(scenario.gpus)
        ],
    }
