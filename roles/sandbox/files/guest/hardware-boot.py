#!/usr/bin/env python3
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a host the simulated hardware that its folder describes, as the kernel would.

Run once at boot, before sysinit.target. It binds a made tree over /sys/bus/pci/devices and over
/proc/driver, and a made list over /proc/modules. The driver "is loaded" when a package installed
its kernel module for the running kernel and nothing forbids it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

HARDWARE = Path("/usr/lib/sandbox-hardware")
RUN = Path("/run/sandbox-hardware")
MODULES = Path("/lib/modules")
NVIDIA_MAJOR = 195
CONTROL_MINOR = 255


def modinfo(path: Path) -> dict[str, str]:
    """The fields of a kernel module."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    pairs = re.findall(rb"(\w+)=([^\0]*)\0", data)
    return {key.decode(): value.decode() for key, value in pairs}


def is_nouveau_blacklisted() -> bool:
    """Whether a file of modprobe's configuration keeps nouveau away."""
    folders = (Path("/etc/modprobe.d"), Path("/usr/lib/modprobe.d"), Path("/run/modprobe.d"))
    for folder in folders:
        for path in folder.glob("*.conf"):
            text = path.read_text(encoding="utf-8", errors="replace")
            if re.search(r"^\s*blacklist\s+nouveau\b", text, re.MULTILINE):
                return True
    return False


def driver_to_load(hardware: dict[str, Any], kernel: str) -> dict[str, str]:
    """What is loaded at this boot: `name`, and for nvidia `version` and `flavour`."""
    if not hardware["devices"]:
        return {}
    if (HARDWARE / "faults/nouveau").exists() and not is_nouveau_blacklisted():
        return {"name": "nouveau"}
    info = modinfo(MODULES / kernel / "updates/dkms/nvidia.ko")
    if not info.get("version"):
        return {}
    is_open = "GPL" in info.get("license", "")
    if hardware["open_only"] and not is_open:
        return {}
    return {
        "name": "nvidia",
        "version": info["version"],
        "flavour": "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module",
    }


def write_pci(folder: Path, hardware: dict[str, Any], loaded: dict[str, str]) -> None:
    """One folder for each device, as sysfs has it."""
    folder.mkdir(parents=True)
    for device in hardware["devices"]:
        entry = folder / device["address"]
        entry.mkdir()
        values = {
            "vendor": f"0x{device['vendor']}",
            "device": f"0x{device['device']}",
            "class": f"0x{device['class']}",
            "subsystem_vendor": f"0x{device['subsystem_vendor']}",
            "subsystem_device": f"0x{device['subsystem_device']}",
            "numa_node": str(device["numa_node"]),
            "revision": "0xa1",
            "enable": "1",
        }
        for name, value in values.items():
            (entry / name).write_text(value + "\n", encoding="ascii")
        driver = device["driver"]
        if driver.startswith("nvidia"):
            is_gpu = driver == "nvidia"
            if loaded.get("name") == "nouveau" and is_gpu:
                driver = "nouveau"
            elif loaded.get("name") != "nvidia":
                driver = ""
        if driver:
            (entry / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")


def write_proc(folder: Path, hardware: dict[str, Any], loaded: dict[str, str]) -> None:
    """What the driver shows below /proc/driver, where it is loaded."""
    folder.mkdir(parents=True)
    if loaded.get("name") != "nvidia":
        return
    version = loaded["version"]
    (folder / "nvidia/gpus").mkdir(parents=True)
    (folder / "nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX {loaded['flavour']}  {version}  Release Build  (sandbox)  \n"
        "GCC version:  gcc version 12.2.0 (simulated)\n",
        encoding="ascii",
    )
    (folder / "nvidia/params").write_text(
        "ModifyDeviceFiles: 1\nDeviceFileMode: 438\nNvLinkDisable: 0\n"
        "OpenRmEnableUnsupportedGpus: 1\n",
        encoding="ascii",
    )
    for minor, gpu in enumerate(hardware["gpus"]):
        entry = folder / "nvidia/gpus" / gpu["address"]
        entry.mkdir()
        (entry / "information").write_text(
            f"Model: \t\t {hardware['name']}\nIRQ:   \t\t {40 + minor}\n"
            f"GPU UUID: \t {gpu['uuid']}\nVideo BIOS: \t {hardware['vbios']}\n"
            "Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {gpu['address']}\nDevice Minor: \t {minor}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n",
            encoding="ascii",
        )


def write_modules(path: Path, loaded: dict[str, str]) -> None:
    """The kernel's own list with the simulated modules in front."""
    with contextlib.suppress(OSError):
        shutil.copyfile("/proc/modules", path)
    text = path.read_text(encoding="ascii") if path.exists() else ""
    flags = "(OE)" if "Open" in loaded.get("flavour", "") else "(POE)"
    lines = {
        "nvidia": f"nvidia_uvm 1814528 0 - Live 0x0 {flags}\n"
        f"nvidia 14376960 1 nvidia_uvm, Live 0x0 {flags}\n",
        "nouveau": "nouveau 2437120 0 - Live 0x0\n",
    }
    path.write_text(lines.get(loaded.get("name", ""), "") + text, encoding="ascii")


def make_nodes(count: int) -> None:
    """The device files; they open nothing."""
    for name, minor in [("nvidiactl", CONTROL_MINOR), *((f"nvidia{i}", i) for i in range(count))]:
        path = Path("/dev", name)
        with contextlib.suppress(OSError):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, minor))
            path.chmod(0o666)
        if not path.exists():
            path.touch()


def bind(source: Path, target: str) -> None:
    """Show one path in the place of another."""
    subprocess.run(["mount", "--bind", str(source), target], check=True)  # noqa: S603, S607 - fixed


def main() -> None:
    """Make the trees and show them."""
    hardware = json.loads((HARDWARE / "devices.json").read_text(encoding="utf-8"))
    loaded = driver_to_load(hardware, os.uname().release)
    write_pci(RUN / "pci", hardware, loaded)
    write_proc(RUN / "proc-driver", hardware, loaded)
    write_modules(RUN / "modules", loaded)
    bind(RUN / "pci", "/sys/bus/pci/devices")
    bind(RUN / "proc-driver", "/proc/driver")
    if Path("/proc/modules").exists():
        bind(RUN / "modules", "/proc/modules")
    if loaded.get("name") == "nvidia":
        make_nodes(len(hardware["gpus"]))


if __name__ == "__main__":
    main()
