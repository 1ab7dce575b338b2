# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of what engines compile and load with at run time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import is_at_least

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import (
        Context,
        Engine,
    )

_FOLDER = re.compile(r"/cuda(?:-(\d+(?:\.\d+)*))?(?:/|$)")
_MAJOR = re.compile(r"[^=]+==[^+]+\+cu(\d{2})\d*$|nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.")
"""What says for which CUDA a package was built: its local version. A name such as -cu12 does not:
environments hold helpers of both majors."""
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?==(\d+\.\d+)")
_OLDEST_JIT = "12.1"
_SYSTEM_PYTHON = "/usr/bin/"


def _runtime(engine: Engine) -> str | None:
    """The CUDA release of an engine's own libraries: exact where its packages say so."""
    for need in engine.requirements:
        if found := _RUNTIME.match(need):
            return found[1]
    return None if engine.cuda_major is None else str(engine.cuda_major)


def _serves(version: str, wanted: str) -> bool:
    """Whether libraries of one release serve programs of another: of one major, and no older."""
    mine, other = version.split("."), wanted.split(".")
    return mine[0] == other[0] and (len(mine) == 1 or is_at_least(version, wanted))


def _shadows(context: Context) -> Iterator[tuple[str, str, str]]:
    """Every folder of a toolkit in an LD_LIBRARY_PATH: the file, the folder, its release."""
    linked = {
        path: row.text("version") or ""
        for row in context.look.rows("toolkits", "found")
        for path in row.texts("paths")
    }
    for row in context.look.rows("toolkits", "settings"):
        if row.text("name") != "LD_LIBRARY_PATH":
            continue
        for folder in (row.text("value") or "").split(":"):
            found = _FOLDER.search(folder)
            if not found:
                continue
            version = found[1] or linked.get(folder[: found.end()].rstrip("/"), "")
            if version:
                yield row.text("file") or "?", folder, version


def library_path(context: Context, findings: Findings) -> None:
    """Libraries of another CUDA that the loader takes before the engine's own."""
    for engine in context.gpu_engines:
        wanted = _runtime(engine)
        if wanted is None:
            continue
        for file, folder, version in _shadows(context):
            if not _serves(version, wanted):
                findings.add(
                    "ld-library-path",
                    fact=f"LD_LIBRARY_PATH in {file} has {folder} (CUDA {version}); {engine.name} "
                    f"brings CUDA {wanted}",
                    fix=f"take it out of {file}: the engine's packages carry their own libraries",
                )
                return


def toolkit_missing(context: Context, findings: Findings) -> None:
    """An engine that compiles with nvcc at run time, and no nvcc."""
    look = context.look
    if context.toolkit or not look.known("toolkits", "found"):
        return
    there = any(row.flag("nvcc") for row in look.rows("toolkits", "found"))
    if there or look.text("toolkits", "nvcc", "path"):
        return
    for engine in context.gpu_engines:
        if engine.name == "sglang":
            findings.add(
                "toolkit-missing",
                fact=f"{engine.name} {engine.version} is planned, no nvcc is on the host".replace(
                    "  ", " "
                ),
                fix="install a CUDA toolkit of the engine's major release, or set "
                "SGLANG_ENABLE_JIT_DEEPGEMM=0 in the instance's env",
            )
            return


def nvcc_old(context: Context, findings: Findings) -> None:
    """The first nvcc that run-time compilation finds, where it is too old or of another CUDA."""
    nvcc = context.look.at("toolkits", "nvcc")
    path, version = nvcc.text("path"), nvcc.text("version")
    if context.toolkit or not path or not version:
        return
    for engine in context.gpu_engines:
        major = engine.cuda_major
        other = major is not None and int(version.split(".")[0]) != major
        if other or not is_at_least(version, _OLDEST_JIT):
            findings.add(
                "nvcc-too-old",
                fact=f"{path} is of CUDA {version}; {engine.name} is built for CUDA "
                f"{major or _OLDEST_JIT}",
                fix="remove nvidia-cuda-toolkit (the distribution's), or install the engine's CUDA "
                "toolkit and set CUDA_HOME in the instance's env; then delete ~/.cache/flashinfer",
            )
            return


def python_headers(context: Context, findings: Findings) -> None:
    """A Python without headers: Triton compiles a helper against them at its first use."""
    headers = {row.text("path"): row.flag("headers") for row in context.look.rows("python")}
    for engine in context.gpu_engines:
        path = engine.python
        if path is None or headers.get(path) is not False:
            continue
        minor = path.rpartition("/")[2]
        brought = {f"{minor}-dev", "python3-dev"} & set(context.packages)
        if brought and path.startswith(_SYSTEM_PYTHON):
            continue
        findings.add(
            "python-headers",
            fact=f"{path} has no Python.h",
            fix=f"apt-get install {minor}-dev, or name an interpreter that has its headers",
        )
        return


def compiler(context: Context, findings: Findings) -> None:
    """No C compiler, which Triton and torch.compile call at run time."""
    if not context.gpu_engines or not context.look.known("toolkits", "compilers"):
        return
    compilers = context.look.at("toolkits", "compilers")
    brought = {"gcc", "clang", "build-essential"} & set(context.packages)
    if brought or any(compilers.text(name) for name in compilers.texts()):
        return
    findings.add(
        "c-compiler",
        fact="neither cc, gcc nor clang is on the path of services",
        fix="apt-get install gcc libc6-dev",
    )


def majors(context: Context, findings: Findings) -> None:
    """An environment with packages of two CUDA majors: one of them finds no libraries."""
    for engine in context.gpu_engines:
        seen: dict[int, str] = {}
        for need in engine.requirements:
            found = _MAJOR.match(need)
            if found:
                seen.setdefault(int(found[1] or found[2]), need)
        if engine.cuda_major is not None:
            seen.setdefault(engine.cuda_major, engine.name)
        if len(seen) > 1:
            findings.add(
                "cuda-majors",
                fact=", ".join(
                    f"{name} is of CUDA {major}" for major, name in sorted(seen.items())
                ),
                fix="take all of one major: the wheel index or the release that names it",
            )
            return


CHECKS = (library_path, toolkit_missing, nvcc_old, python_headers, compiler, majors)
