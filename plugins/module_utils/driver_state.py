# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVIDIA driver in its four places: running, on disk, its libraries, and what it answers."""

from __future__ import annotations

import gzip
import lzma
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run

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


@dataclass(frozen=True)
class DriverState:
    """Versions of the driver as the host has them; null where there is none."""

    loaded: str | None = None
    flavour: str | None = None
    on_disk: str | None = None
    user_space: str | None = None
    nouveau: bool = False
    nova: bool = False


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


def version_on_disk(root: Path, kernel: str) -> str | None:
    """The version of the module that the running kernel would load at its next boot."""
    if root == Path("/"):
        told = run(["modinfo", "-k", kernel, "-F", "version", "nvidia"], timeout=20)
        if told.ok and told.stdout.strip():
            return told.stdout.split()[0]
    path = find_module(root, kernel)
    if path is None:
        return None
    try:
        return module_version(_read_module(path))
    except (OSError, EOFError, lzma.LZMAError):
        return None


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
    if state.on_disk is None or not gpus:
        return []
    reasons = []
    if state.loaded is None:
        reasons.append(f"the driver {state.on_disk} is installed and not loaded")
    elif state.loaded != state.on_disk:
        reasons.append(f"the driver {state.loaded} is loaded and {state.on_disk} is installed")
    for driver in ("nouveau", "nova_core"):
        bound = [
            gpu.address for gpu in gpus if (gpu.kernel_driver or "").replace("-", "_") == driver
        ]
        if bound:
            reasons.append(f"{driver} holds the GPU {', '.join(bound)}")
    return reasons
