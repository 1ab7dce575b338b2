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
STAND_INS = {
    "modprobe": ("sbin", "kernel.py modprobe"),
    "rmmod": ("sbin", "kernel.py rmmod"),
    "lsmod": ("sbin", "kernel.py lsmod"),
    "dkms": ("sbin", "kernel.py dkms-tool"),
    "dmesg": ("bin", "kernel-log.py dmesg"),
    "journalctl": ("bin", "kernel-log.py journalctl"),
    "mokutil": ("bin", "mokutil.py"),
}
"""What a host calls by its plain name: the folder below /usr/local, and what answers."""
_UNIT = "sandbox-hardware.service"
_NVIDIA = "10de"


def install(
    settings: Settings, root: Path, name: str, os_name: str, scenario: Scenario | None
) -> None:
    """Put a scenario's hardware into a host's root; none hides what the machine itself has."""
    folder = root / FOLDER
    (folder / "faults").mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "devices.json", json.dumps(devices(scenario, name), indent=2) + "\n")
    _mark(folder / "has_fabric", is_there=bool(scenario and scenario.fabric_manager))
    switches = scenario.switches if scenario else None
    _mark(folder / "needs_nvlsm", is_there=bool(switches and switches.vendor != _NVIDIA))
    write_outputs(settings, root, name, scenario, ())
    system = root / "etc/systemd/system"
    shutil.copyfile(settings.files / "guest" / _UNIT, system / _UNIT)
    wants = system / "sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    link = wants / _UNIT
    link.unlink(missing_ok=True)
    link.symlink_to(f"/etc/systemd/system/{_UNIT}")
    sources = root / "etc/apt/sources.list.d"
    write_atomic(sources / "kernel.sources", repository.kernel_source(settings))
    if archive := repository.archive_source(settings, os_name):
        write_atomic(sources / "ubuntu.sources", archive)


def _mark(path: Path, *, is_there: bool) -> None:
    if is_there:
        path.touch()
    else:
        path.unlink(missing_ok=True)


def install_programs(settings: Settings, root: Path) -> None:
    """Put the programs of the hardware into a host, and the stand-ins first on everyone's path."""
    folder = root / FOLDER
    for source in sorted((settings.files / "guest").iterdir()):
        if source.suffix not in {".py", ".sh"}:
            continue
        fresh = folder / f".{source.name}"
        shutil.copyfile(source, fresh)
        fresh.chmod(0o755)
        fresh.replace(folder / source.name)
    for name, (place, program) in STAND_INS.items():
        path = root / "usr/local" / place / name
        argv = f"/{FOLDER}/{program}"
        text = f'#!/bin/sh\n# Simulated by the llmetal sandbox.\nexec {argv} "$@"\n'
        if read_text(path) != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text, mode=0o755)


def write_outputs(
    settings: Settings,
    root: Path,
    name: str,
    scenario: Scenario | None,
    faults: Sequence[Fault],
) -> None:
    """Write what nvidia-smi says, and the marks of the faults that are on."""
    folder = root / FOLDER
    install_programs(settings, root)
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
    wanted = {fault.name for fault in faults}
    for mark in marks.iterdir():
        if mark.name not in wanted:
            mark.unlink()
    for name_of in wanted:
        if not (marks / name_of).exists():
            (marks / name_of).touch()


def damage(faults: Sequence[Fault]) -> smi.Damage:
    """What the faults do to the GPUs."""
    effects = {key: value for fault in faults for key, value in fault.hardware.items()}
    down, errors = effects.get("link_down"), effects.get("link_errors")
    return smi.Damage(
        link_down=(down["gpu"], down["link"]) if down else None,
        link_errors=(errors["gpu"], errors["link"]) if errors else None,
        off_bus=effects.get("off_bus", {}).get("gpu"),
        values={kind: effects[kind]["gpu"] for kind in smi.HURTS if kind in effects},
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
