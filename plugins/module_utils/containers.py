# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker and what brings GPUs into its containers, without changing or starting anything."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import driver_state
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin"
_PACKAGES = ("docker-ce", "docker-ce-cli", "docker.io", "docker-cli", "moby-engine", "moby-cli")
_SOCKET = "/run/docker.sock"
_SECONDS = 2.0
_HOST_PATH = re.compile(r"[\"']?hostPath[\"']?\s*:\s*[\"']?([^\"'\s,}]+)")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{2,4}\.\d+(?:\.\d+)?)$")
_CDI = ("etc/cdi", "run/cdi")
_MODE = re.compile(r"^\s*mode\s*=\s*\"([^\"]+)\"", re.MULTILINE)
_CGROUP = "native.cgroupdriver="
_SHOWN = 5


class _Unix(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self.path)


def ask_daemon(path: str = _SOCKET) -> dict[str, Any] | None:
    """What the daemon says of itself; None where it is not there or does not answer."""
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return None
        connection = _Unix(path)
        connection.request("GET", "/info")
        value = json.loads(connection.getresponse().read())
        connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return parse_info(value) if isinstance(value, dict) and "ServerVersion" in value else None


def parse_info(value: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the daemon's own report that matter for GPUs."""
    return {
        "version": value.get("ServerVersion"),
        "runtimes": sorted(value.get("Runtimes") or {}),
        "default_runtime": value.get("DefaultRuntime"),
        "cgroup_driver": value.get("CgroupDriver"),
        "kernel": value.get("KernelVersion"),
        "rootless": any("rootless" in str(text) for text in value.get("SecurityOptions") or []),
    }


def daemon_json(text: str | None) -> dict[str, Any]:
    """The daemon's configuration file, and why Docker would not start with it."""
    nothing: dict[str, Any] = {"runtimes": [], "cgroup_driver": None}
    if text is None:
        return {"exists": False, "valid": None, "error": None, **nothing}
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError as error:
        return {"exists": True, "valid": False, "error": str(error), **nothing}
    if not isinstance(value, dict):
        return {"exists": True, "valid": False, "error": "this is no JSON object", **nothing}
    runtimes, options = value.get("runtimes"), value.get("exec-opts")
    drivers = [
        option[len(_CGROUP) :]
        for option in (options if isinstance(options, list) else [])
        if isinstance(option, str) and option.startswith(_CGROUP)
    ]
    return {
        "exists": True,
        "valid": True,
        "error": None,
        "runtimes": sorted(runtimes) if isinstance(runtimes, dict) else [],
        "cgroup_driver": drivers[-1] if drivers else None,
    }


def kind_of(path: str | None, packages: Mapping[str, str], root: str = "/") -> str:
    """How Docker came here: `none`, `snap`, `deb`, `other`."""
    snap = (Path(root) / "snap/docker/current").exists()
    if path is None:
        return "snap" if snap else "none"
    real = os.path.realpath(path)
    if real.startswith("/snap/") or real == "/usr/bin/snap":
        return "snap"
    return "deb" if any(name in packages for name in _PACKAGES) else "other"


def _context(home: Path) -> str:
    try:
        value = json.loads(read_text(home / ".docker/config.json") or "{}")
        return str(value.get("currentContext") or "default")
    except (ValueError, AttributeError):
        return "default"


def parse_cdi(text: str, root: str = "/") -> dict[str, Any]:
    """One CDI specification: the driver that it was made for, and its paths that are gone."""
    paths = list(dict.fromkeys(_HOST_PATH.findall(text)))
    gone = [path for path in paths if not (Path(root) / path.lstrip("/")).exists()]
    versions = Counter(match[1] for path in paths if (match := _LIBRARY.search(path)))
    if not versions:
        found = (driver_state.VERSION.search(path.rpartition(".so.")[2]) for path in paths)
        versions = Counter(match[0] for match in found if match)
    return {
        "version": versions.most_common(1)[0][0] if versions else None,
        "paths": len(paths),
        "missing": len(gone),
        "missing_first": gone[:_SHOWN],
    }


def cdi(root: str = "/") -> list[dict[str, Any]]:
    """The CDI specifications of NVIDIA devices; one that cannot be read has nulls."""
    base = Path(root)
    rows: list[dict[str, Any]] = []
    for folder in _CDI:
        try:
            paths = sorted(p for p in (base / folder).iterdir() if p.suffix in {".yaml", ".json"})
        except OSError:
            continue
        for path in paths:
            text = read_text(path)
            name = f"/{path.relative_to(base)}"
            if text is None:
                nothing = dict.fromkeys(("version", "paths", "missing"))
                rows.append({"file": name, **nothing, "missing_first": []})
            elif "nvidia.com/" in text:
                rows.append({"file": name, **parse_cdi(text, root)})
    return rows


def toolkit(root: str = "/") -> dict[str, Any]:
    """The NVIDIA Container Toolkit: its programs, its mode, its device links, its CDI files."""
    base = Path(root)
    names = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime-hook")
    mode = _MODE.search(read_text(base / "etc/nvidia-container-runtime/config.toml") or "")
    return {
        "programs": [name for name in names if shutil.which(name, path=_PATH)],
        "mode": mode[1] if mode else None,
        "device_links": (base / "dev/char/195:255").is_symlink(),
        "cdi": cdi(root),
    }


def docker(packages: Mapping[str, str], root: str = "/") -> dict[str, Any]:
    """Docker on this host.

    Args:
        packages: the installed packages.
        root: the root of the file system, another one only in tests.
    """
    base = Path(root)
    path = shutil.which("docker", path=_PATH) if root == os.sep else None
    containerd = read_text(base / "etc/containerd/config.toml")
    return {
        "kind": kind_of(path, packages, root),
        "path": path,
        "context": _context(Path.home()),
        "daemon_json": daemon_json(read_text(base / "etc/docker/daemon.json")),
        "daemon": ask_daemon() if root == os.sep else None,
        "containerd_nvidia": None if containerd is None else "runtimes.nvidia" in containerd,
    }
