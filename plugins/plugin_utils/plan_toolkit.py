# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the CUDA toolkit of a host: release, how the driver serves it, where it comes from.

A driver serves a toolkit fully from the toolkit's own driver on; within a CUDA major from that
major's floor on (minor-version compatibility); and, on data-centre GPUs and the branches that
NVIDIA lists, through the cuda-compat package (forward compatibility).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_cuda
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    branch_of,
    is_at_least,
    numbers,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, Gpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_NEW_MAJOR = 13
_RUNFILE = re.compile(r"cuda_(?P<release>\d+\.\d+\.\d+)_.*\.run")


@dataclass(frozen=True)
class _Wanted:
    """The release that is wanted, and why."""

    release: str
    runfile: str | None
    why: str


def decide(  # noqa: PLR0913 - a pure function of all that a toolkit depends on
    request: HostRequest,
    facts: Facts,
    gpus: Iterable[Gpu],
    *,
    compat: Compat,
    findings: Findings,
    driver: str | None,
) -> dict[str, Any] | None:
    """Plan the toolkit; None where none is asked for, no engine needs one, or none can work.

    Args:
        request: what the inventory asks.
        facts: what the survey saw.
        gpus: the host's GPUs.
        compat: the compatibility data.
        findings: collects what stands against it.
        driver: the driver release that will be there; None for none.
    """
    known = tuple(gpus)
    wanted = _wanted(request, known, compat, findings)
    if wanted is None:
        return None
    row = load_cuda()["releases"][wanted.release]
    _check_gpus(wanted.release, known, findings)
    source = _source(wanted, facts, compat, findings)
    mode, package, why = _mode(
        wanted.release, row, request=request, gpus=known, driver=driver, findings=findings
    )
    names = [f"cuda-toolkit-{'-'.join(wanted.release.split('.')[:2])}"] if source == "apt" else []
    return {
        "version": wanted.release,
        "source": source,
        "runfile": wanted.runfile,
        "runfile_sha256": _runfile_row(row).get("sha256") if wanted.runfile else None,
        "packages": [{"name": name, "version": None} for name in (*names, *package)],
        "compatibility": mode,
        "min_driver": str(row["full_min_driver"]),
        "why": [wanted.why, *why],
    }


def _wanted(
    request: HostRequest, gpus: tuple[Gpu, ...], compat: Compat, findings: Findings
) -> _Wanted | None:
    asked = request.cuda.version
    if asked is None:
        return _needed(request, gpus, compat)
    releases: Mapping[str, Any] = load_cuda()["releases"]
    if asked.endswith(".run"):
        return _of_runfile(asked, releases, findings)
    fitting = [name for name in releases if name == asked or name.startswith(f"{asked}.")]
    if fitting:
        release = max(fitting, key=numbers)
        return _Wanted(release, None, f"CUDA {asked} is asked for")
    close = nearest(asked, releases) or _newest_at_most(asked, releases)
    findings.add(
        "cuda-unknown",
        fact=f"CUDA {asked} is asked for",
        fix=f"take CUDA {close}",
        relax={"cuda": close},
    )
    return None


def _newest_at_most(asked: str, releases: Iterable[str]) -> str:
    older = [name for name in releases if numbers(name) <= numbers(asked)]
    return max(older or releases, key=numbers)


def _of_runfile(name: str, releases: Mapping[str, Any], findings: Findings) -> _Wanted | None:
    """The release of a runfile; a name that NVIDIA never published is refused."""
    for release, row in releases.items():
        if _runfile_row(row).get("file") == name:
            return _Wanted(release, name, f"the runfile {name} is asked for")
    found = _RUNFILE.fullmatch(name)
    right = _runfile_row(releases.get(found["release"], {})).get("file") if found else None
    known = found["release"] if found and found["release"] in releases else None
    findings.add(
        "runfile-name",
        fact=f"{name} is asked for",
        fix=f"take {right}" if right else "give a release, such as 13.0, and no file name",
        relax={"cuda": right or known or max(releases, key=numbers)},
    )
    return None


def _runfile_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    files: Mapping[str, Any] = row.get("runfile") or {}
    return files.get("x86_64") or {}


def _needed(request: HostRequest, gpus: tuple[Gpu, ...], compat: Compat) -> _Wanted | None:
    """The toolkit that an engine needs to compile kernels at run time."""
    if not any(is_at_least(gpu.compute, "9.0") for gpu in gpus):
        return None
    for one in request.instances:
        release = compat.release(one.engine, one.device, one.engine_version)
        if release is None or not release.nvcc_at_run_time or release.cuda_major is None:
            continue
        first = f"{release.cuda_major}.0."
        fitting = [name for name in load_cuda()["releases"] if name.startswith(first)]
        why = f"{one.engine} {release.version} compiles kernels with nvcc on these GPUs"
        return _Wanted(max(fitting, key=numbers), None, why)
    return None


def _check_gpus(release: str, gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """Whether the toolkit can compile for every GPU."""
    architectures: Mapping[str, Any] = load_cuda()["architectures"]
    major = numbers(release)[0]
    floor = load_cuda()["majors"][str(major)].get("min_cc")
    for gpu in gpus:
        if floor and not is_at_least(gpu.compute, str(floor)):
            findings.add(
                "cc-floor",
                fact=f"{gpu.name} has compute capability {gpu.compute}, CUDA {release} starts at "
                f"{floor}",
                fix=f"take CUDA {major - 1}",
                relax={"cuda": str(major - 1)},
            )
        first = _first_cuda(gpu, architectures)
        if first and not is_at_least(release, first):
            findings.add(
                "cuda-gpu-new",
                fact=f"{gpu.name} ({gpu.compute}), CUDA {release}",
                fix=f"take CUDA {first} or newer",
                relax={"cuda": first},
            )


def _first_cuda(gpu: Gpu, architectures: Mapping[str, Any]) -> str | None:
    row: Mapping[str, Any] = architectures.get(gpu.arch) or {}
    late = row.get("first_cuda_sm103_sm121") if gpu.compute in {"10.3", "12.1"} else None
    first = late or row.get("first_cuda")
    return None if first is None else str(first)


def _source(wanted: _Wanted, facts: Facts, compat: Compat, findings: Findings) -> str:
    """Where the toolkit comes from; what NVIDIA's repository for the system lacks is refused."""
    if wanted.runfile:
        return "runfile"
    release, system = wanted.release, compat.systems.get(facts.os_key, {})
    major = numbers(release)[0]
    runfile = _runfile_row(load_cuda()["releases"][release]).get("file")
    fact = f"CUDA {release} on {facts.os_key}"
    if system.get("cuda13_apt") is False and major >= _NEW_MAJOR:
        last = str(system["cuda_repo_last_toolkit"])
        findings.add(
            "os-cuda13-focal",
            fact=fact,
            fix=f"upgrade to Ubuntu 22.04 or newer, or take CUDA {last}",
            relax={"cuda": last},
        )
    if system.get("cuda12_apt_nvidia") is False and major < _NEW_MAJOR:
        first = str(system["cuda_repo_first_toolkit_seen"])
        findings.add(
            "os-debian13-cuda12",
            fact=fact,
            fix=f"take the runfile {runfile}, or CUDA {first}",
            relax={"cuda": runfile or first},
        )
    start = system.get("cuda_repo_from")
    if start is not None and not is_at_least(release, str(start)):
        findings.add(
            "os-resolute-old",
            fact=fact,
            fix=f"take the runfile {runfile}, or CUDA {start} or newer",
            relax={"cuda": runfile or str(start)},
        )
    return "apt"


def _mode(  # noqa: PLR0913 - a pure function of all that compatibility depends on
    release: str,
    row: Mapping[str, Any],
    *,
    request: HostRequest,
    gpus: tuple[Gpu, ...],
    driver: str | None,
    findings: Findings,
) -> tuple[str | None, list[str], list[str]]:
    """How the driver serves the toolkit, the package that it takes, and why."""
    full, floor = str(row["full_min_driver"]), str(row["minor_min_driver"])
    if driver is None:
        return None, [], ["no driver is planned or loaded, so only compiling is possible"]
    if is_at_least(driver, full):
        return "full", [], [f"driver {driver} is at least {full}, that of CUDA {release}"]
    if is_at_least(driver, floor):
        findings.add(
            "cuda-driver-soft",
            fact=f"driver {driver}, CUDA {release} comes with {full}",
            fix=f"take driver {full} or newer, or leave it",
        )
        return "minor", [], [f"driver {driver} is at least {floor}: minor-version compatibility"]
    forward = _forward(release, driver, gpus)
    if forward is None and request.cuda.forward_compatibility:
        package = f"cuda-compat-{'-'.join(release.split('.')[:2])}"
        findings.add("fwd-compat", fact=f"driver {driver}, {package}", fix=f"take driver {full}")
        return "forward", [package], [f"{package} serves CUDA {release} on driver {driver}"]
    possible = forward is None and not request.hypothetical
    way = ", or set llmetal_cuda.forward_compatibility" if possible else ""
    findings.add(
        "cuda-driver-hard",
        fact=f"driver {driver}, CUDA {release} needs {floor}",
        fix=f"take driver {floor} or newer{way}",
        relax={"driver": branch_of(floor)},
    )
    return None, [], []


def _forward(release: str, driver: str, gpus: tuple[Gpu, ...]) -> str | None:
    """Why forward compatibility is impossible; None where it is possible."""
    table: Mapping[str, Any] = load_cuda()["forward_compat"]["table"]
    minor = ".".join(release.split(".")[:2])
    if (table.get(minor) or {}).get(branch_of(driver)) != "C":
        return f"NVIDIA lists no forward compatibility of CUDA {minor} for branch {driver}"
    consumer = [gpu.name for gpu in gpus if not gpu.data_centre]
    return f"{consumer[0]} is no data-centre GPU (error 804)" if consumer else None
