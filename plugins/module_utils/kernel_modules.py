# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is on disk about the driver's kernel modules, and of whom it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils import driver_state
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

_MODPROBE = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")
_FOREIGN = ("nouveau", "nova_core")
_NOTHING = ("/true", "/false")
_NVIDIA = re.compile(r"(?:^|/)nvidia(?:-current)?(?:-open)?\.ko(?:\.(?:xz|gz|zst))?:", re.MULTILINE)
_INSTALLERS = ("usr/bin/nvidia-uninstall", "usr/bin/nvidia-installer")
_UNKNOWN = "unknown"
_NVLINK_DISABLE = re.compile(r"^NvLinkDisable: (\d+)$", re.MULTILINE)
_CACHE = re.compile(r"^\s*(libnvidia-ml|libcuda)\.so\.1 .*=> (\S+)", re.MULTILINE)


def kept_out(text: str) -> set[str]:
    """The modules that a file of modprobe.d keeps from being loaded for a device."""
    found = set()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        listed = words[:1] == ["blacklist"] and len(words) > 1
        replaced = words[:1] == ["install"] and words[2:] and words[2].endswith(_NOTHING)
        if listed or replaced:
            found.add(words[1].replace("-", "_"))
    return found


def _kept_out(base: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in _FOREIGN}
    for folder in _MODPROBE:
        try:
            paths = sorted((base / folder).glob("*.conf"))
        except OSError:
            continue
        for path in paths:
            for name in kept_out(read_text(path) or "") & set(_FOREIGN):
                found[name].append(f"/{path.relative_to(base)}")
    return found


def _kernels(base: Path) -> list[str]:
    """The kernels whose module index lists an nvidia module."""
    try:
        folders = sorted((base / "lib/modules").iterdir())
    except OSError:
        return []
    return [
        folder.name for folder in folders if _NVIDIA.search(read_text(folder / "modules.dep") or "")
    ]


def nouveau_of(base: Path, kernel: str) -> bool | None:
    """Whether a kernel has nouveau at all; None where its index cannot be read."""
    index = read_text(base / "lib/modules" / kernel / "modules.dep")
    return None if index is None else "/nouveau.ko" in index


def _dkms(base: Path) -> list[str]:
    try:
        paths = sorted((base / "var/lib/dkms").glob("nvidia*/*"))
    except OSError:
        return []
    return [
        f"{path.parent.name}/{path.name}"
        for path in paths
        if path.is_dir() and driver_state.VERSION.match(path.name)
    ]


def headers(kernel: str, root: str = "/") -> dict[str, bool]:
    """Whether the kernel's build folder is there, and is that of a configured kernel."""
    folder = Path(root) / "lib/modules" / kernel / "build"
    return {
        "build": folder.is_dir(),
        "complete": (folder / "include/generated/autoconf.h").is_file(),
    }


def parse_cache(text: str, root: str = "/") -> dict[str, list[str]]:
    """The versions of the driver's libraries that the loader knows, from `ldconfig -p`."""
    found: dict[str, set[str]] = {"libnvidia-ml": set(), "libcuda": set()}
    for name, path in _CACHE.findall(text):
        real = (Path(root) / path.lstrip("/")).resolve()
        version = driver_state.VERSION.search(real.name)
        found[name].add(version[0] if version else _UNKNOWN)
    return {
        name: sorted(versions - {_UNKNOWN}) or sorted(versions) for name, versions in found.items()
    }


def libraries() -> dict[str, list[str]] | None:
    """The driver's libraries in the loader's cache; None where it cannot be asked."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            told = run([program, "-p"], timeout=10)
        except LlmetalError:
            return None
        if told.ok:
            return parse_cache(told.stdout)
    return None


def nvlink_disabled(base: Path) -> bool | None:
    """Whether the loaded module was told to leave the links alone; None where none is loaded."""
    found = _NVLINK_DISABLE.search(read_text(base / "proc/driver/nvidia/params") or "")
    return None if found is None else found[1] != "0"


def collect(kernel: str, root: str = "/") -> dict[str, Any]:
    """Modules kept out, kernels that have a module, and what other ways of installing left."""
    base = Path(root)
    return {
        "nouveau": nouveau_of(base, kernel),
        "kept_out": _kept_out(base),
        "kernels": _kernels(base),
        "dkms": _dkms(base),
        "nvlink_disabled": nvlink_disabled(base),
        "installer": next((f"/{name}" for name in _INSTALLERS if (base / name).exists()), None),
    }
