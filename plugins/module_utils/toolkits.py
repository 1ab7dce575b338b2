# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA toolkits, compilers, and the settings that lead programs to them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V(\d+(?:\.\d+)+))?")
_TEXT = re.compile(r"CUDA Version (\d+(?:\.\d+)+)")
_SETTING = re.compile(
    r"^\s*(?:export\s+)?(LD_LIBRARY_PATH|CUDA_HOME|CUDA_PATH)=(.*)$", re.MULTILINE
)
_NAMES = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a service of systemd looks for programs."""
_COMPILERS = ("cc", "gcc", "clang")


def parse_release(text: str) -> str | None:
    """The version in what `nvcc --version` prints."""
    found = _RELEASE.search(text)
    return (found[2] or found[1]) if found else None


def _nvcc_version(path: str) -> str | None:
    try:
        told = run([path, "--version"], timeout=10)
    except LlmetalError:
        return None
    return parse_release(told.stdout)


def version_of(folder: Path) -> str | None:
    """The version of a toolkit: as its own file says, else as its compiler does."""
    try:
        value = json.loads(read_text(folder / "version.json") or "")["cuda"]["version"]
        return str(value)
    except (ValueError, KeyError, TypeError):
        pass
    old = _TEXT.search(read_text(folder / "version.txt") or "")
    if old:
        return old[1]
    nvcc = folder / "bin/nvcc"
    return _nvcc_version(str(nvcc)) if nvcc.exists() else None


def _toolkits(base: Path) -> list[dict[str, Any]]:
    found: dict[Path, dict[str, Any]] = {}
    for path in sorted((base / "usr/local").glob("cuda*")):
        real = path.resolve()
        if not (real / "bin").is_dir():
            continue
        row = found.setdefault(
            real,
            {
                "paths": [],
                "version": version_of(real),
                "nvcc": (real / "bin/nvcc").exists(),
                "ptxas": (real / "bin/ptxas").exists(),
            },
        )
        row["paths"].append(f"/{path.relative_to(base)}")
    return list(found.values())


def _nvcc() -> dict[str, str | None] | None:
    path = shutil.which("nvcc", path=_PATH)
    return {"path": path, "version": _nvcc_version(path)} if path else None


def settings_in(text: str) -> list[tuple[str, str]]:
    """The variables of a shell file that lead to libraries or a toolkit."""
    return [(name, value.strip().strip("\"'")) for name, value in _SETTING.findall(text)]


def _settings(base: Path, manager: str) -> list[dict[str, str]]:
    paths = [base / "etc/environment", base / "etc/bash.bashrc", base / "etc/profile"]
    paths += sorted((base / "etc/profile.d").glob("*.sh"))
    rows = [
        {"file": f"/{path.relative_to(base)}", "name": name, "value": value}
        for path in paths
        for name, value in settings_in(read_text(path) or "")
    ]
    for word in manager.split():
        name, _, value = word.partition("=")
        if name in _NAMES:
            rows.append({"file": "systemd", "name": name, "value": value})
    return rows


def settings_of(root: str = "/") -> list[dict[str, str]]:
    """The settings in the shell files of a host."""
    return _settings(Path(root), "")


def _loader(base: Path) -> list[str]:
    """The folders of toolkits that the loader searches for everybody."""
    found = []
    for path in sorted((base / "etc/ld.so.conf.d").glob("*.conf")):
        lines = (read_text(path) or "").splitlines()
        found += [line.strip() for line in lines if line.startswith("/") and "cuda" in line]
    return found


def collect(manager: str = "", root: str = "/") -> dict[str, Any]:
    """The toolkits and compilers of this host.

    Args:
        manager: the environment of the systemd manager.
        root: the root of the file system, another one only in tests.
    """
    base = Path(root)
    return {
        "found": _toolkits(base),
        "nvcc": _nvcc() if root == os.sep else None,
        "compilers": {name: shutil.which(name, path=_PATH) for name in _COMPILERS},
        "settings": _settings(base, manager),
        "loader_folders": _loader(base),
    }
