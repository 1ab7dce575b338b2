# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that a host has of CUDA, and what a process would load: read-only, in well under a second."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    alternatives,
    loader,
    toolkits,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_TARGET = re.compile(r"'sm_(\d{2,3}[af]?)'")
_DIST_INFO = re.compile(
    r"(?P<name>nvidia_(?:cuda_(?:runtime|nvcc|nvrtc)|cublas)(?:_cu\d+)?)-(?P<version>[^-]+)\.dist-info"
)
_RUNTIME = "libcudart.so"
_WANTED = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudart.so.11.0",
    "libcudart.so.12",
    "libcudart.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libcublas.so.12",
    "libcublas.so.13",
    "libnccl.so.2",
)
_PACKAGES = (
    "cuda-toolkit-*",
    "cuda-compat-*",
    "cuda-cudart-*",
    "nvidia-cuda-toolkit",
    "libcudart*",
)
_INSTALLED = "installed"
_TIMEOUT = 20
_DEPTH = "*/*/lib/python3*/site-packages"


def parse_targets(text: str) -> list[str]:
    """The architectures in what `ptxas --help` prints."""
    found = set(_TARGET.findall(text))
    return [f"sm_{one}" for one in sorted(found, key=lambda n: (int(n.rstrip("af")), n))]


def parse_packages(text: str) -> list[dict[str, str]]:
    """Installed packages, of dpkg-query's lines of name, version and state."""
    rows = (line.split() for line in text.splitlines())
    return [
        {"name": row[0], "version": row[1]}
        for row in rows
        if len(row) == len(("name", "version", "state")) and row[2] == _INSTALLED
    ]


def _packages() -> list[dict[str, str]]:
    form = "${Package} ${Version} ${db:Status-Status}\n"
    argv = ["dpkg-query", "--show", f"--showformat={form}", *_PACKAGES]
    return parse_packages(run(argv, timeout=_TIMEOUT).stdout)


def wheels_in(folder: Path) -> list[dict[str, str]]:
    """The CUDA wheels in the environments of a folder."""
    found = []
    for packages in sorted(folder.glob(_DEPTH)):
        if packages.parents[2].is_symlink():
            continue
        for path in packages.glob("nvidia_*.dist-info"):
            row = _DIST_INFO.fullmatch(path.name)
            if row:
                found.append({"environment": str(packages.parents[2]), **row.groupdict()})
    return sorted(found, key=lambda row: (row["environment"], row["name"]))


def _ptxas(found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in found:
        path = Path(row["paths"][0]) / "bin/ptxas"
        if row["ptxas"]:
            told = run([str(path), "--help"], timeout=_TIMEOUT)
            yield {"path": str(path), "targets": parse_targets(told.stdout)}


def runtimes(cache: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """The run-time libraries that the cache knows."""
    found = {
        (name, path)
        for name, paths in cache.items()
        for path in paths
        if name.startswith(f"{_RUNTIME}.")
    }
    return [{"name": name, "path": path} for name, path in sorted(found)]


def compat_in(base: Path) -> list[str]:
    """The libraries of cuda-compat packages, each once: links such as cuda-13 lead to cuda-13.0."""
    found = base.glob("usr/local/cuda*/compat/libcuda.so.1")
    real = {path.parent.resolve() / path.name for path in found}
    return [f"/{path.relative_to(base.resolve())}" for path in sorted(real)]


def loads(cache: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """What the cache gives for the libraries of CUDA that it knows."""
    return {
        name: {"path": cache[name][0], "real": str(Path(cache[name][0]).resolve())}
        for name in _WANTED
        if cache.get(name)
    }


def collect(environments: Iterable[str] = (), root: str = "/") -> dict[str, Any]:
    """What a host has of CUDA.

    Args:
        environments: folders of Python environments to look into.
        root: the root of the file system, another one only in tests.
    """
    unreadable = []
    base = toolkits.collect(root=root)
    try:
        cache = loader.read_cache()
    except LlmetalError as error:
        cache = {}
        unreadable.append(str(error))
    try:
        chosen = alternatives.query("cuda")
    except LlmetalError as error:
        chosen = alternatives.Group()
        unreadable.append(str(error))
    found = loader.shadows(cache, (), (), base["settings"], loader.read_preload(root))
    return {
        "toolkits": base["found"],
        "nvcc": base["nvcc"],
        "ptxas": list(_ptxas(base["found"])),
        "alternative": {"value": chosen.value, "choices": dict(chosen.choices)},
        "packages": _packages(),
        "wheels": [row for one in environments for row in wheels_in(Path(one))],
        "runtimes": runtimes(cache),
        "loads": loads(cache),
        "shadowed_by": [row.as_dict() for row in found],
        "settings": base["settings"],
        "stubs": sorted(p for paths in cache.values() for p in paths if "/stubs/" in p),
        "compat": compat_in(Path(root)),
        "unreadable": unreadable,
    }
