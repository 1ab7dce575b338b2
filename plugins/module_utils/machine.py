# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kind of machine and system this is."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

_CONTAINERS = {
    "acrn-container",
    "container-other",
    "docker",
    "lxc",
    "lxc-libvirt",
    "openvz",
    "podman",
    "proot",
    "pouch",
    "rkt",
    "systemd-nspawn",
}
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_FLAGS = ("amx_tile", "avx2", "avx512f")


def parse_os_release(text: str) -> dict[str, str]:
    """The assignments of an os-release file."""
    values = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(value)
        except ValueError:
            continue
        values[name.strip()] = words[0] if words else ""
    return values


def operating_system(root: str = "/") -> dict[str, Any]:
    """The distribution: its identifiers, and the key that names it in data (`debian12`)."""
    base = Path(root)
    text = read_text(base / "etc/os-release") or read_text(base / "usr/lib/os-release") or ""
    values = parse_os_release(text)
    name, version = values.get("ID", ""), values.get("VERSION_ID", "")
    return {
        "id": name,
        "version_id": version,
        "codename": values.get("VERSION_CODENAME", ""),
        "key": f"{name}{version.replace('.', '')}",
        "pretty": values.get("PRETTY_NAME", ""),
    }


def secure_boot(root: str = "/") -> str:
    """The state of Secure Boot: `enabled`, `disabled`, `unsupported` (no EFI) or `unknown`."""
    base = Path(root)
    if not (base / "sys/firmware/efi").is_dir():
        return "unsupported"
    try:
        content = (base / _SECURE_BOOT).read_bytes()
    except FileNotFoundError:
        has_variables = any((base / "sys/firmware/efi/efivars").glob("*"))
        return "disabled" if has_variables else "unknown"
    except OSError:
        return "unknown"
    # Four bytes of attributes, then the value.
    return {0: "disabled", 1: "enabled"}.get(content[4], "unknown") if content[4:] else "unknown"


def memory_bytes(root: str = "/") -> int:
    """Memory of the machine; 0 where it cannot be read."""
    for line in (read_text(Path(root) / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_flags(root: str = "/") -> list[str]:
    """Which of the instruction sets that engines ask for the processor has."""
    for line in (read_text(Path(root) / "proc/cpuinfo") or "").splitlines():
        if line.startswith(("flags", "Features")):
            present = set(line.partition(":")[2].split())
            return [flag for flag in _FLAGS if flag in present]
    return []


def _user_manager() -> bool:
    """Whether this user has a systemd of their own that answers."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    if not (folder / "systemd/private").exists() and not (folder / "bus").exists():
        return False
    try:
        told = run(
            ["systemctl", "--user", "show", "--property=Version"],
            timeout=5,
            env={"XDG_RUNTIME_DIR": str(folder)},
        )
    except LlmetalError:
        return False
    return told.ok


def _virtualization() -> str | None:
    try:
        told = run(["systemd-detect-virt"], timeout=5).stdout.strip()
    except LlmetalError:
        return None
    return told if told and told != "none" else None


def kind(root: str = "/") -> dict[str, Any]:
    """Where the system runs: on metal or not, on a machine of a special make, with systemd."""
    base = Path(root)
    kernel = (read_text(base / "proc/version") or "").lower()
    found = _virtualization() if root == "/" else None
    declared = (read_text(base / "run/systemd/container") or "").strip() or None
    if declared is None and (base / ".dockerenv").exists():
        declared = "docker"
    inside = found if found in _CONTAINERS else declared
    return {
        "wsl": "microsoft" in kernel or found == "wsl",
        "dgx": (base / "etc/dgx-release").exists(),
        "jetson": (base / "etc/nv_tegra_release").exists(),
        "container": inside,
        "virtualization": found if found and found not in _CONTAINERS else None,
        "systemd": (base / "run/systemd/system").is_dir(),
        "systemd_user": _user_manager() if root == "/" else False,
        "kubelet": (base / "var/lib/kubelet/config.yaml").exists(),
        "operator_driver": (base / "run/nvidia/driver/lib").exists(),
    }
