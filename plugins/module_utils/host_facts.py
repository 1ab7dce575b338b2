# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that the planner needs to know of a host, in one look."""

from __future__ import annotations

import getpass
import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_sources,
    apt_state,
    containers,
    dpkg,
    gpu,
    gpu_health,
    kernel_log,
    kernel_modules,
    limits,
    listeners,
    machine,
    receipts,
    run_lock,
    toolkits,
    ubuntu_drivers,
    units,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    sha256_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.dpkg import Database

SCHEMA = 1
_PACKAGES = re.compile(
    r"(lib)?nvidia|libcuda|cuda|linux-(headers|image)|docker|containerd|dkms|gcc|python3",
)
_KNOWN_UNITS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "apt-daily.service",
    "apt-daily-upgrade.service",
)
_UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
_PYTHON = re.compile(r"python3(\.\d+)?")


def _compiler() -> dict[str, str] | None:
    path = Path("/usr/bin/gcc")
    if not path.exists():
        return None
    told = run([str(path), "-dumpfullversion", "-dumpversion"], timeout=10)
    return {"path": str(path), "version": told.stdout.split()[0]} if told.stdout.split() else None


def _kernel(database: Database) -> dict[str, Any]:
    running = platform.release()
    headers = f"linux-headers-{running}"
    version = database.version(headers)
    return {
        "running": running,
        "boot_id": (read_text("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        "installed": dpkg.kernels(database),
        "headers": {
            "package": headers,
            "installed": version is not None,
            "version": version,
            **kernel_modules.headers(running),
        },
        "compiler": _compiler(),
        "secure_boot": machine.secure_boot(),
    }


def disk(path: str) -> dict[str, Any]:
    """Size and room of the file system that a path is, or would be, on."""
    place = Path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        room = os.statvfs(place)
    except OSError:
        return {"path": path, "size_bytes": None, "free_bytes": None, "read_only": None}
    return {
        "path": path,
        "size_bytes": room.f_blocks * room.f_frsize,
        "free_bytes": room.f_bavail * room.f_frsize,
        "read_only": bool(room.f_flag & os.ST_RDONLY),
    }


def _interpreters() -> Iterable[Path]:
    for folder in (Path("/usr/bin"), Path("/usr/local/bin")):
        try:
            names = sorted(path for path in folder.iterdir() if _PYTHON.fullmatch(path.name))
        except OSError:
            continue
        yield from reversed(names)
    yield Path(sys.executable)


def pythons() -> list[dict[str, Any]]:
    """The Python interpreters of the host; each once, under its most exact name."""
    found: dict[Path, dict[str, Any]] = {}
    program = (
        "import sys, sysconfig; print('.'.join(map(str, sys.version_info[:3])));"
        "print(sysconfig.get_path('include'))"
    )
    for path in _interpreters():
        real = path.resolve()
        if real in found:
            continue
        try:
            told = run([str(path), "-I", "-S", "-c", program], timeout=10)
        except LlmetalError:
            continue
        lines = told.stdout.splitlines()
        if told.ok and len(lines) > 1:
            headers = (Path(lines[1]) / "Python.h").is_file()
            found[real] = {"path": str(path), "version": lines[0], "headers": headers}
    return sorted(found.values(), key=lambda item: item["path"])


def _services(*, scope: str) -> dict[str, dict[str, str]]:
    names = {*_KNOWN_UNITS, "llmetal-*", "nvidia-*"}
    folders = [Path(folder) for folder in _UNIT_FOLDERS]
    if scope == "user":
        folders = [Path.home() / ".config/systemd/user"]
    for folder in folders:
        names |= {path.name for path in folder.glob("llmetal-*.service")}
    try:
        return units.show(sorted(names), scope=scope)
    except LlmetalError:
        return {}


def _lock_sha256(config: str) -> str | None:
    try:
        return sha256_file(Path(config) / "lock.yml")
    except OSError:
        return None


def _user() -> dict[str, Any]:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return {"name": name, "uid": os.getuid(), "home": str(Path.home())}


def _gpus(
    installed: Mapping[str, str],
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any] | None]:
    """The GPUs, how they are, and what the kernel's log says of them; nvidia-smi runs once."""
    evidence = gpu.gather(packages=installed)
    report = gpu.report(evidence)
    query = evidence.query.stdout if evidence.query and evidence.query.ok else None
    health = gpu_health.collect(report["gpus"], query)
    return report, health, kernel_log.collect() if report["gpus"] else None


def collect(
    *,
    paths: Sequence[str],
    config: str,
    run_dir: str,
    scope: str,
    driver_chooser: str = "data",
) -> dict[str, Any]:
    """Look at this host.

    Args:
        paths: folders whose disks are of interest, besides the root.
        config: folder of the lock and the receipts.
        run_dir: folder of the run lock.
        scope: whose services: the system's or the user's.
        driver_chooser: `ubuntu_drivers` to ask that program too, which takes seconds.
    """
    database = dpkg.query()
    installed: Mapping[str, str] = database.installed()
    kind = machine.kind()
    with_systemd = kind["systemd_user"] if scope == "user" else kind["systemd"]
    manager = limits.manager(with_systemd=kind["systemd"])
    gpus, health, log = _gpus(installed)
    asked = driver_chooser == "ubuntu_drivers" and bool(gpus["gpus"])
    return {
        "schema": SCHEMA,
        "os": machine.operating_system(),
        "arch": platform.machine(),
        "kernel": _kernel(database),
        "memory_bytes": machine.memory_bytes(),
        "cpus": os.cpu_count() or 1,
        "cpu_flags": machine.cpu_flags(),
        "disks": [disk(path) for path in dict.fromkeys(["/", *paths])],
        "packages": {name: v for name, v in sorted(installed.items()) if _PACKAGES.match(name)},
        "held": database.holds,
        "broken": database.broken,
        "apt": apt_state.collect(apt_sources.read_entries()),
        "gpu": gpus,
        "gpu_health": health,
        "iommu": gpu_health.iommu(),
        "kernel_log": log,
        "ubuntu_drivers": ubuntu_drivers.collect() if asked else None,
        "modules": kernel_modules.collect(platform.release()),
        "libraries": kernel_modules.libraries(),
        "toolkits": toolkits.collect(manager.get("Environment", "")),
        "docker": containers.docker(installed),
        "container_toolkit": containers.toolkit(),
        "limits": limits.collect(manager),
        "ports": listeners.collect(),
        "python": pythons(),
        "receipts": receipts.read_all(config),
        "lock_sha256": _lock_sha256(config),
        "services": _services(scope=scope) if with_systemd else {},
        "platform": kind,
        "user": _user(),
        "run_lock": run_lock.read(run_dir),
    }
