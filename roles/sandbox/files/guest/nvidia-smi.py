#!/usr/bin/python3 -I
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands for nvidia-smi on a sandbox host: answers what a recording or a scenario says.

Before a driver is loaded, after half an upgrade, and with a GPU off the bus it fails with the words
and the exit status of the real one.
"""

from __future__ import annotations

import re
import signal
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

OUTPUTS = Path("/usr/lib/sandbox-hardware/smi")
FAULTS = Path("/usr/lib/sandbox-hardware/faults")
HAS_FABRIC = Path("/usr/lib/sandbox-hardware/has_fabric")
LOADED = Path("/proc/driver/nvidia/version")
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
FABRIC_PID = Path("/run/nvidia-fabricmanager/nv-fabricmanager.pid")
CUDA = {570: "12.8", 575: "12.9", 580: "13.0", 590: "13.1", 595: "13.2"}
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the "
    "NVIDIA Display Driver is properly installed and present in your system.\n"
    "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n"
)
QUERY = {
    "name": "product_name",
    "gpu_name": "product_name",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "serial": "serial",
    "pci.bus_id": "pci/pci_bus_id",
    "gpu_bus_id": "pci/pci_bus_id",
    "pci.device_id": "pci/pci_device_id",
    "pci.sub_device_id": "pci/pci_sub_system_id",
    "vbios_version": "vbios_version",
    "persistence_mode": "persistence_mode",
    "memory.total": "fb_memory_usage/total",
    "memory.reserved": "fb_memory_usage/reserved",
    "memory.used": "fb_memory_usage/used",
    "memory.free": "fb_memory_usage/free",
    "utilization.gpu": "utilization/gpu_util",
    "utilization.memory": "utilization/memory_util",
    "temperature.gpu": "temperature/gpu_temp",
    "power.draw": "gpu_power_readings/average_power_draw",
    "power.limit": "gpu_power_readings/current_power_limit",
    "ecc.mode.current": "ecc_mode/current_ecc",
    "mig.mode.current": "mig_mode/current_mig",
    "compute_mode": "compute_mode",
    "pstate": "performance_state",
    "clocks.sm": "clocks/sm_clock",
    "clocks.mem": "clocks/mem_clock",
    "remapped_rows.pending": "remapped_rows/remapped_row_pending",
    "remapped_rows.failure": "remapped_rows/remapped_row_failure",
    "remapped_rows.uncorrectable": "remapped_rows/remapped_row_unc",
    "remapped_rows.correctable": "remapped_rows/remapped_row_corr",
    "gpu_recovery_action": "gpu_recovery_action",
    "fabric.state": "fabric/state",
    "fabric.status": "fabric/status",
}
COMPUTE = {
    "Turing": "7.5",
    "Ampere": "8.0",
    "Ada Lovelace": "8.9",
    "Hopper": "9.0",
    "Blackwell": "10.0",
}
UNITS = re.compile(r" (?:MiB|%|W|C|MHz)$")


def loaded_version() -> str | None:
    """The version of the loaded module."""
    try:
        text = LOADED.read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"  (\d+(?:\.\d+)+)  ", text)
    return match[1] if match else None


def library_version() -> str | None:
    """The version of the user-space library."""
    try:
        return LIBRARY.resolve(strict=True).name.rpartition(".so.")[2]
    except OSError:
        return None


def state_of_driver() -> tuple[str, int]:
    """What a call fails with before it does anything; an empty text where all is well."""
    library = library_version()
    if library is None:
        return NO_LIBRARY, 12
    loaded = loaded_version()
    if loaded is None:
        return NO_DRIVER, 9
    if loaded != library:
        short = ".".join(library.split(".")[:2])
        return (
            "Failed to initialize NVML: Driver/library version mismatch\n"
            f"NVML library version: {short}\n"
        ), 18
    if not (OUTPUTS / "q_x.xml").exists():
        return "No devices were found\n", 6
    lost = OUTPUTS / "lost"
    if lost.exists():
        address = lost.read_text(encoding="ascii").strip()
        return (
            f"Unable to determine the device handle for GPU {address.upper()}: GPU is lost."
            "  Reboot the system to recover this GPU\n"
        ), 15
    return "", 0


def is_running(pid_file: Path) -> bool:
    """Whether the process of a pid file lives."""
    try:
        return Path("/proc", pid_file.read_text(encoding="ascii").strip()).is_dir()
    except OSError:
        return False


def is_persistent() -> bool:
    """Whether the persistence daemon's unit has a process."""
    for group in ("systemd", "unified", ""):
        path = Path("/sys/fs/cgroup", group, "system.slice/nvidia-persistenced.service")
        try:
            if (path / "cgroup.procs").read_text(encoding="ascii").strip():
                return True
        except OSError:
            continue
    return False


def link_errors() -> int:
    """The counter of a link that makes errors: it grows by one each second."""
    try:
        return 100 + int(time.time() - (FAULTS / "nvlink_errors").stat().st_mtime)
    except OSError:
        return 0


def read(name: str) -> str:
    """An output with the words that only a running host knows."""
    version = loaded_version() or ""
    # Where the host has no switches of its own, somebody else's fabric manager has done the work.
    has_fabric = is_running(FABRIC_PID) or not HAS_FABRIC.exists()
    has_fabric = has_fabric and not (FAULTS / "fabric_stuck").exists()
    on = ("Enabled", "On") if is_persistent() else ("Disabled", "Off")
    words = {
        "DRIVER": version,
        "CUDA": CUDA.get(int(version.split(".")[0]), "N/A"),
        "TIMESTAMP": time.strftime("%a %b %e %H:%M:%S %Y"),
        "PERSISTENCE": on[1] if name == "table.txt" else on[0],
        "LINK_ERRORS": str(link_errors()),
        "FABRIC_STATE": "Completed" if has_fabric else "In Progress",
        "FABRIC_STATUS": "Success" if has_fabric else "N/A",
    }
    text = (OUTPUTS / name).read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        return f"{words[match[1]]:{match[2] or ''}}"

    return re.sub(r"@([A-Z_]+)(?::([<>]\d+))?@", fill, text)


def query(fields: list[str], form: list[str], only: str | None) -> tuple[str, int]:
    """What `--query-gpu` prints."""
    root = ET.fromstring(read("q_x.xml"))  # noqa: S314 - our own file
    gpus = root.findall("gpu")
    rows = []
    for index, gpu in enumerate(gpus):
        if only is not None and only not in {str(index), gpu.findtext("uuid"), gpu.get("id")}:
            continue
        row = []
        for name in fields:
            fixed = {
                "index": str(index),
                "count": str(len(gpus)),
                "driver_version": root.findtext("driver_version") or "",
                "compute_cap": COMPUTE.get(gpu.findtext("product_architecture") or "", "8.6"),
            }
            if name in fixed:
                row.append(fixed[name])
                continue
            if name not in QUERY:
                return f'Field "{name}" is not a valid field to query.\n\n', 2
            value = gpu.findtext(QUERY[name]) or "[N/A]"
            value = "[N/A]" if value == "N/A" else value
            row.append(UNITS.sub("", value) if "nounits" in form else value)
        rows.append(", ".join(row))
    if "noheader" not in form:
        rows.insert(0, ", ".join(fields))
    return "".join(f"{row}\n" for row in rows), 0


def main() -> int:
    """Answer as far as the real one would."""
    words = sys.argv[1:]
    if words in (["-h"], ["--help"]):
        sys.stdout.write("NVIDIA System Management Interface -- simulated by the llmetal sandbox\n")
        return 0
    if (FAULTS / "smi_hangs").exists():
        time.sleep(3600)
    text, status = state_of_driver()
    if not text:
        text, status = answer(words)
    sys.stdout.write(text)
    return status


def answer(words: list[str]) -> tuple[str, int]:
    """The output for a list of arguments."""
    whole = {
        (): "table.txt",
        ("-q",): "q.txt",
        ("-q", "-x"): "q_x.xml",
        ("-x", "-q"): "q_x.xml",
        ("-L",): "list.txt",
        ("--list-gpus",): "list.txt",
        ("nvlink", "--status"): "nvlink_status.txt",
        ("nvlink", "-s"): "nvlink_status.txt",
        ("nvlink", "-e"): "nvlink_errors.txt",
        ("nvlink", "--errorcounters"): "nvlink_errors.txt",
        ("nvlink", "-R"): "nvlink_remote.txt",
        ("nvlink", "--remotelinkinfo"): "nvlink_remote.txt",
        ("nvlink", "-c"): "nvlink_capabilities.txt",
        ("nvlink", "--capabilities"): "nvlink_capabilities.txt",
        ("topo", "-m"): "topo_m.txt",
        ("topo", "--matrix"): "topo_m.txt",
    }
    if tuple(words) in whole:
        return read(whole[tuple(words)]), 0
    if words == ["--version"]:
        version = loaded_version()
        return (
            f"NVIDIA-SMI version  : {version}\nNVML version        : {version}\n"
            f"DRIVER version      : {version}\nCUDA Version        : {read_cuda()}\n"
        ), 0
    asked, form, only = None, [], None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, _, value = word.partition("=")
        if name == "--query-gpu":
            asked = (value or (rest.pop(0) if rest else "")).split(",")
        elif name == "--format":
            form = (value or (rest.pop(0) if rest else "")).split(",")
        elif name in {"-i", "--id"}:
            only = value or (rest.pop(0) if rest else "")
        else:
            break
    else:
        if asked and "csv" in form:
            return query([field.strip() for field in asked], form, only)
    return ("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"), 2


def read_cuda() -> str:
    """The newest CUDA version that the driver knows."""
    return CUDA.get(int((loaded_version() or "0").split(".")[0]), "N/A")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
