# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVIDIA driver in its four places: running, on disk, its libraries, and what it answers."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.dpkg import version_key
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.pci import PciDevice

VERSION = re.compile(r"\d{2,4}\.\d+(?:\.\d+)?")
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib/wsl/lib",
    "usr/lib",
)
_LIBRARY = "libnvidia-ml.so."
_PACKAGES = re.compile(
    r"libnvidia-ml1|libnvidia-compute(-\d+)?(-server)?|nvidia-driver-cuda|nvidia-utils-\d+(-server)?",
)
_MODULE_FILES = ("nvidia.ko", "nvidia-current.ko", "nvidia-current-open.ko")
_SUFFIXES = ("", ".xz", ".gz", ".zst")
_MODINFO_TIMEOUT = 10.0


@dataclass(frozen=True)
class DriverState:
    """Versions of the driver as the host has them; null where there is none."""

    loaded: str | None = None
    flavour: str | None = None
    on_disk: str | None = None
    user_space: str | None = None
    nouveau: bool = False
    nova: bool = False
    disk_flavour: str | None = None
    newest_kernel: str | None = None
    """The newest installed kernel, where it is another one than the running one."""
    newest_on_disk: str | None = None

    @property
    def after_reboot(self) -> str | None:
        """The version that a reboot would load: it boots the newest kernel."""
        return self.newest_on_disk if self.newest_kernel else self.on_disk


def parse_proc_version(text: str | None) -> tuple[str | None, str | None]:
    """Version and flavour of the loaded module, from /proc/driver/nvidia/version."""
    for line in (text or "").splitlines():
        if line.startswith("NVRM version:"):
            match = VERSION.search(line)
            flavour = "open" if "Open Kernel Module" in line else "proprietary"
            return (match[0], flavour) if match else (None, None)
    return None, None


def upstream_version(package_version: str) -> str | None:
    """The driver release in a package's version: `1:580.159.04-0ubuntu1` is 580.159.04."""
    match = VERSION.match(package_version.split(":", 1)[-1])
    return match[0] if match else None


def module_version(content: bytes) -> str | None:
    """The version in the .modinfo section of a kernel module (its strings end with a zero)."""
    match = re.search(rb"(?:^|\x00)version=([^\x00\n]+)", content)
    return match[1].decode("ascii", "replace").strip() if match else None


def module_license(content: bytes) -> str | None:
    """The licence in the .modinfo section of a kernel module."""
    match = re.search(rb"(?:^|\x00)license=([^\x00\n]+)", content)
    return match[1].decode("ascii", "replace").strip() if match else None


def flavour_of(licence: str | None) -> str | None:
    """Open or proprietary, by the licence of a module: `Dual MIT/GPL` or `NVIDIA`."""
    if not licence:
        return None
    return "open" if "GPL" in licence or "MIT" in licence else "proprietary"


def _read_module(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix == ".gz":
        return gzip.decompress(content)
    return content


def find_module(root: Path, kernel: str) -> Path | None:
    """The file of the nvidia module of a kernel: by its index, else by a walk."""
    folder = root / "lib/modules" / kernel
    names = {name + suffix for name in _MODULE_FILES for suffix in _SUFFIXES}
    try:
        index = (folder / "modules.dep").read_text(encoding="utf-8", errors="replace")
    except OSError:
        index = ""
    for line in index.splitlines():
        name = line.partition(":")[0]
        if name.rpartition("/")[2] in names and (folder / name).is_file():
            return folder / name
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {"build", "source"}]
        for name in files:
            if name in names:
                return Path(base) / name
    return None


def parse_modinfo(text: str) -> dict[str, str]:
    """Version and licence as `modinfo` prints them."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in rows if name in {"version", "license"}}


def module_on_disk(root: Path, kernel: str) -> tuple[str | None, str | None]:
    """Version and flavour of the module that a kernel would load at its next boot."""
    if root == Path("/"):
        try:
            told = run(["modinfo", "-k", kernel, "nvidia"], timeout=_MODINFO_TIMEOUT)
            info = parse_modinfo(told.stdout) if told.ok else {}
        except LlmetalError:
            info = {}
        if info.get("version"):
            return info["version"], flavour_of(info.get("license"))
    path = find_module(root, kernel)
    if path is None:
        return None, None
    try:
        content = _read_module(path)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return None, None
    return module_version(content), flavour_of(module_license(content))


def version_on_disk(root: Path, kernel: str) -> str | None:
    """The version of the module that a kernel would load at its next boot."""
    return module_on_disk(root, kernel)[0]


def newest_kernel(root: Path, running: str) -> str | None:
    """The newest kernel in /boot, where it is newer than the running one: a reboot boots it."""
    found = {path.name.partition("-")[2] for path in (root / "boot").glob("vmlinuz-[0-9]*")}
    if not found:
        return None
    last = max(found, key=version_key)
    newer = running not in found or version_key(last) > version_key(running)
    return last if last != running and newer else None


def user_space_version(root: Path, packages: Mapping[str, str]) -> str | None:
    """The version of the driver's libraries: the file that the loader takes, else the package."""
    for folder in _LIBRARY_FOLDERS:
        link = root / folder / f"{_LIBRARY}1"
        if link.exists():
            match = VERSION.search(link.resolve().name)
            if match:
                return match[0]
    for name in sorted(packages):
        if _PACKAGES.fullmatch(name) and (version := upstream_version(packages[name])):
            return version
    return None


def reboot_reasons(state: DriverState, gpus: Sequence[PciDevice]) -> list[str]:
    """Why a reboot is needed for the driver on disk to be the one that runs; empty if it is not.

    It is asked of the state alone, never of what a run changed, so that an interrupted run
    comes to the same answer. Where no reboot would help there is no reason.
    """
    after = state.after_reboot
    if after is None or not gpus:
        return []
    reasons = []
    if state.loaded is None and state.newest_kernel and state.on_disk is None:
        reasons.append(
            f"the running kernel has no driver and {state.newest_kernel}, the newest installed "
            f"one, has {after}"
        )
    elif state.loaded is None:
        reasons.append(f"the driver {state.on_disk or after} is installed and not loaded")
    elif state.on_disk and state.loaded != state.on_disk:
        reasons.append(f"the driver {state.loaded} is loaded and {state.on_disk} is installed")
    elif state.flavour and state.disk_flavour and state.flavour != state.disk_flavour:
        reasons.append(
            f"the {state.flavour} modules are loaded and the {state.disk_flavour} ones installed"
        )
    for driver in ("nouveau", "nova_core"):
        bound = [
            gpu.address for gpu in gpus if (gpu.kernel_driver or "").replace("-", "_") == driver
        ]
        if bound:
            reasons.append(f"{driver} holds the GPU {', '.join(bound)}")
    return reasons
