# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the CUDA toolkits of a host: releases, how the driver serves them, where they come from.

A driver serves a toolkit fully from the toolkit's own driver on; within a CUDA major from that
major's floor on (minor-version compatibility); and, on data-centre GPUs and the branches that
NVIDIA lists, through the cuda-compat package (forward compatibility).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import requirements
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_cuda
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import at_home, size
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    branch_of,
    is_at_least,
    numbers,
    upstream,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Candidates
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, Gpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
        HostRequest,
        Mirror,
    )

_NEW_MAJOR = 13
REPOSITORY = "llmetal-cuda"
"""The name of a toolkit's own package source, where it is not the driver's."""
_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GB = 10**9
_NO_LAST = 99
_RUNFILE_ROOM = 3
"""An estimate: a runfile lies there, is unpacked beside it, and what it installs comes on top."""
_RUNFILE = re.compile(r"cuda_(?P<release>\d+\.\d+\.\d+)_.*\.run")


@dataclass(frozen=True)
class _Wanted:
    """The release that is wanted, and why."""

    release: str
    runfile: str | None
    why: str
    exact: bool = False
    """Whether just this release is asked for, and no other of its line."""

    @property
    def line(self) -> str:
        """Its first two numbers: what packages and folders are named by."""
        return ".".join(self.release.split(".")[:2])

    @property
    def package(self) -> str:
        """The metapackage of the line, which brings no driver."""
        return f"cuda-toolkit-{self.line.replace('.', '-')}"


@dataclass
class ToolkitPlan:
    """The parts of a lock that toolkits decide."""

    toolkit: dict[str, Any] | None = None
    toolkits: list[dict[str, Any]] = field(default_factory=list)
    """Further ones, side by side with it."""
    unresolved: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[dict[str, Any]]:
        """All toolkits, the default one first."""
        return [*([self.toolkit] if self.toolkit else []), *self.toolkits]

    @property
    def room(self) -> int:
        """Bytes that they take while they are installed, where that is known."""
        measured = sum(row["size_bytes"] or 0 for row in self.all)
        return measured + sum(_RUNFILE_ROOM * (row["runfile_bytes"] or 0) for row in self.all)


def decide(  # noqa: PLR0913 - a pure function of all that a toolkit depends on
    request: HostRequest,
    facts: Facts,
    gpus: Iterable[Gpu],
    candidates: Candidates,
    *,
    compat: Compat,
    findings: Findings,
    driver: str | None,
    paths: Mapping[str, str],
) -> ToolkitPlan:
    """Plan the toolkits; none where none is asked for, no engine needs one, or none can work.

    Args:
        request: what the inventory asks.
        facts: what the survey saw.
        gpus: the host's GPUs.
        candidates: the versions that package sources have.
        compat: the compatibility data.
        findings: collects what stands against it.
        driver: the driver release that will be there; None for none.
        paths: the host's folders.
    """
    plan, known = ToolkitPlan(), tuple(gpus)
    seen: set[str] = set()
    for wanted in _all_wanted(request, known, compat, findings):
        if wanted.line in seen:
            findings.add(
                "toolkit-twice",
                fact=f"CUDA {wanted.line} is asked for twice",
                fix="take one release of a line: they share a folder and a package name",
            )
            continue
        seen.add(wanted.line)
        row, unresolved = _toolkit(
            wanted,
            request=request,
            facts=facts,
            gpus=known,
            candidates=candidates,
            compat=compat,
            findings=findings,
            driver=driver,
            paths=paths,
        )
        if row is None:
            continue
        plan.unresolved += unresolved
        if plan.toolkit is None:
            plan.toolkit = row
        else:
            plan.toolkits.append({**row, "default": False})
    return plan


def questions(
    request: HostRequest, facts: Facts, gpus: Iterable[Gpu], compat: Compat, quiet: Findings
) -> tuple[str, ...]:
    """The packages whose versions the resolve stage has to ask for."""
    wanted = _all_wanted(request, tuple(gpus), compat, quiet)
    ways = ((one, _provider(one, request, facts, compat, quiet)) for one in wanted)
    return tuple(one.package for one, way in ways if way == "apt")


def repository_of(request: HostRequest) -> tuple[str, Mirror] | None:
    """Name and address of the package source that toolkits come from; None where none is known."""
    if request.cuda.repository is not None:
        return REPOSITORY, request.cuda.repository
    if request.driver.source in {"cuda_repo", "auto"} and request.driver.mirror is not None:
        return "llmetal-nvidia", request.driver.mirror
    return None


def with_python(
    plan: ToolkitPlan, python: Mapping[str, Any] | None, facts: Facts, compat: Compat
) -> None:
    """Say which interpreter and uv make the environments of wheels: the engine's where it has one.

    Two roles install uv in one place; it is one and the same only with one interpreter.
    """
    if not any(row["source"] == "wheels" for row in plan.all):
        return
    environments = (python or {}).get("environments") or [{"python": {"path": None}}]
    found = environments[0]["python"]
    if found["path"] is None:
        seen = sorted(
            facts.interpreters,
            key=lambda one: (one.path.startswith("/usr/bin/"), numbers(one.version), one.path),
        )
        last = seen[-1] if seen else None
        found = {"version": last.version, "path": last.path} if last else None
    if found is None:
        return
    uv = requirements.for_python(compat.uv_requirements, found["version"], facts.arch)[0]
    for row in plan.all:
        if row["source"] == "wheels":
            row["python"] = {"version": found["version"], "path": found["path"]}
            row["uv"] = {"version": uv.version, "sha256": list(uv.sha256)}


def set_environment(
    plan: ToolkitPlan, instances: Iterable[dict[str, Any]], paths: Mapping[str, str]
) -> None:
    """Lead services that compute on GPUs to the toolkit; what the inventory sets itself stays."""
    if plan.toolkit is None or not plan.toolkit["nvcc"]:
        return
    prefix = plan.toolkit["prefix"]
    for row in instances:
        if row["device"] == "gpu":
            own = f"{paths['environments']}/{row['environment']}/current/bin"
            places = f"{own}:{prefix}/bin:{_SEARCHED}"
            row["env"] = {"CUDA_HOME": prefix, "PATH": places, **row["env"]}


def needs(plan: ToolkitPlan, facts: Facts, root: str) -> dict[str, int]:
    """The bytes that toolkits take, by folder; what a receipt names is there already."""
    if "cuda_toolkit" in facts.receipts or not plan.room:
        return {}
    return {f"{root}/toolkits": plan.room}


def check_room(plan: ToolkitPlan, facts: Facts, root: str, findings: Findings) -> None:
    """Whether the disk holds toolkits on a host without an engine, whose check has both."""
    free = facts.free_at(root)
    if free is None or not needs(plan, facts, root) or plan.room <= free:
        return
    findings.add(
        "disk-room",
        fact=f"the CUDA toolkits need {size(plan.room)} in {root}, free are {size(free)}",
        fix=f"free {size(plan.room - free)} more, or set llmetal_root to a larger disk",
        relax={"disk_gb": -(-plan.room // _GB)},
    )


def _toolkit(  # noqa: PLR0913 - a pure function of all that a toolkit depends on
    wanted: _Wanted,
    *,
    request: HostRequest,
    facts: Facts,
    gpus: tuple[Gpu, ...],
    candidates: Candidates,
    compat: Compat,
    findings: Findings,
    driver: str | None,
    paths: Mapping[str, str],
) -> tuple[dict[str, Any] | None, list[str]]:
    """One toolkit as the lock has it, and which of its fields are open."""
    _check_gpus(wanted.release, gpus, findings)
    provider = _provider(wanted, request, facts, compat, findings)
    if provider is None:
        return None, []
    version, unresolved = _version(wanted, provider, candidates, findings)
    row = load_cuda()["releases"][wanted.release]
    mode, package, why = _mode(
        wanted.release, row, request=request, gpus=gpus, driver=driver, findings=findings
    )
    names = {wanted.package: version} if provider == "apt" else {}
    for name in package:
        names[name] = candidates.newest(name) if candidates.asked else None
        unresolved += [] if names[name] else [f"toolkit.packages.{name}"]
    _check_compiler(wanted.release, gpus, facts, findings)
    wheels: Mapping[str, Any] = (row.get("wheels") or {}) if provider == "wheels" else {}
    has_nvcc = bool(wheels.get("nvcc", True))
    if not has_nvcc:
        findings.add(
            "toolkit-no-nvcc",
            fact=f"CUDA {wanted.release} from wheels",
            fix="take CUDA 13, or llmetal_cuda.provider apt or runfile, where nvcc is needed",
        )
    system = request.scope == "system"
    folder = f"{paths['root']}/toolkits/cuda-{wanted.line}/current/cuda"
    exact = upstream(version) if version else None
    toolkit = {
        "version": exact or wanted.release,
        "source": provider,
        "prefix": f"/usr/local/cuda-{wanted.line}" if system else folder,
        "default": request.cuda.default,
        "nvcc": has_nvcc,
        "soname": str(load_cuda()["majors"][wanted.release.split(".")[0]]["libcudart"]),
        "architectures": [f"sm_{one}" for one in _targets(gpus)],
        "repository": _source(request) if names else None,
        **_runfile(wanted, row, provider, request),
        "packages": [{"name": name, "version": found} for name, found in names.items()],
        "requirements": requirements.as_lock(wheels["requirements"], "3.11", facts.arch)
        if wheels
        else [],
        "index_url": request.index_url,
        "cache": at_home(request.wheel_cache, facts.home)
        if request.wheel_cache
        else f"{paths['cache']}/uv",
        "python": None,
        "uv": None,
        "size_bytes": wheels.get("size_bytes"),
        "compatibility": mode,
        "min_driver": str(row["full_min_driver"]),
        "why": [wanted.why, _why(provider, request), *why],
    }
    return toolkit, unresolved


def _targets(gpus: Iterable[Gpu]) -> list[str]:
    """The architectures of the GPUs, as compilers write them."""
    return [one.replace(".", "") for one in sorted({gpu.compute for gpu in gpus}, key=numbers)]


def _why(provider: str, request: HostRequest) -> str:
    if request.cuda.provider == provider:
        return f"provider {provider} is asked for in the inventory"
    return {
        "apt": "provider apt: a package source that has toolkits is known",
        "wheels": "provider wheels: no package source is needed, and no root",
        "runfile": "provider runfile: llmetal_cuda.runfile_mirror has it",
    }[provider]


def _source(request: HostRequest) -> dict[str, Any] | None:
    """The package source as the lock has it; None for the host's own."""
    known = repository_of(request)
    if known is None:
        return None
    name, mirror = known
    return {
        "name": name,
        "type": "cuda_repo",
        "uri": mirror.uri,
        "suite": mirror.suite,
        "components": list(mirror.components),
        "key": mirror.key,
        "fingerprint": mirror.fingerprint,
    }


def _version(
    wanted: _Wanted, provider: str, candidates: Candidates, findings: Findings
) -> tuple[str | None, list[str]]:
    """The full version of the metapackage: the release asked for, else the newest of its line."""
    if provider != "apt":
        return None, []
    if not candidates.asked:
        return None, [f"toolkit.packages.{wanted.package}"]
    offered = candidates.releases(wanted.package)
    found = offered.get(wanted.release) or (
        None if wanted.exact else candidates.newest(wanted.package)
    )
    if found is None:
        findings.add(
            "toolkit-not-offered",
            fact=f"{wanted.package} in version {wanted.release}; offered "
            f"{', '.join(offered) or 'none'}",
            fix="ask for a release that the source has, bring the mirror up to date, or set "
            "llmetal_cuda.provider to wheels",
        )
    return found, []


def _runfile(
    wanted: _Wanted, row: Mapping[str, Any], provider: str, request: HostRequest
) -> dict[str, Any]:
    """The installer of a toolkit that comes from one."""
    file = _runfile_row(row) if provider == "runfile" else {}
    name = wanted.runfile or file.get("file")
    mirror = request.cuda.runfile_mirror
    return {
        "runfile": name if provider == "runfile" else None,
        "runfile_sha256": file.get("sha256"),
        "runfile_md5": None if file.get("sha256") else file.get("md5"),
        "runfile_bytes": file.get("bytes"),
        "runfile_url": f"{mirror.rstrip('/')}/{name}" if file and mirror else None,
    }


def _provider(  # noqa: C901, PLR0911 - one way each
    wanted: _Wanted,
    request: HostRequest,
    facts: Facts,
    compat: Compat,
    findings: Findings,
) -> str | None:
    """Where a toolkit comes from; None where it cannot be had."""
    row, asked = load_cuda()["releases"][wanted.release], request.cuda.provider
    if request.scope == "user" and (wanted.runfile or asked in {"apt", "runfile"}):
        findings.add(
            "toolkit-user",
            fact=f"CUDA {wanted.release} from {asked if not wanted.runfile else wanted.runfile}",
            fix="set llmetal_cuda.provider to wheels, or llmetal_scope to system",
        )
        return None
    if wanted.runfile or asked == "runfile":
        return _from_runfile(wanted, row, request, findings)
    wheels: Mapping[str, Any] = row.get("wheels") or {}
    known = repository_of(request) is not None or request.hypothetical
    if asked == "apt":
        if known:
            return "apt" if _offered(wanted, facts, compat, findings) else None
        _no_way(wanted, findings)
        return None
    if asked == "wheels" or request.scope == "user":
        if wheels:
            return "wheels"
        _no_way(wanted, findings)
        return None
    quiet = type(findings)(findings.host, compat)
    if known and _offered(wanted, facts, compat, quiet):
        return "apt"
    if wheels.get("nvcc"):
        return "wheels"
    if request.cuda.runfile_mirror and _from_runfile(wanted, row, request, quiet):
        return "runfile"
    if known:
        _offered(wanted, facts, compat, findings)
    else:
        _no_way(wanted, findings)
    return None


def _no_way(wanted: _Wanted, findings: Findings) -> None:
    """Say that nothing that is known has a toolkit, and what would."""
    rows = load_cuda()["releases"].items()
    full = [name for name, row in rows if (row.get("wheels") or {}).get("nvcc")]
    findings.add(
        "toolkit-source",
        fact=f"CUDA {wanted.release}",
        fix="set llmetal_cuda.repository (uri, suite, key_file, fingerprint) for packages, or "
        f"llmetal_cuda.runfile_mirror for its runfile, or take CUDA {' or '.join(full)}, which "
        "wheels have",
        relax={"cuda": full[0]},
    )


def _from_runfile(
    wanted: _Wanted, row: Mapping[str, Any], request: HostRequest, findings: Findings
) -> str | None:
    """Whether a runfile can be had and verified."""
    file = _runfile_row(row)
    if not (file.get("sha256") or file.get("md5")):
        findings.add(
            "toolkit-runfile",
            fact=f"CUDA {wanted.release}: no runfile with a published sum is known",
            fix="take another release, or llmetal_cuda.provider wheels or apt",
        )
        return None
    if request.cuda.runfile_mirror is None and not request.hypothetical:
        findings.add(
            "toolkit-runfile",
            fact=f"{file['file']}, and llmetal_cuda.runfile_mirror is not set",
            fix="set llmetal_cuda.runfile_mirror to the address or the host's folder that has it",
        )
        return None
    return "runfile"


def _check_compiler(release: str, gpus: tuple[Gpu, ...], facts: Facts, findings: Findings) -> None:
    """Whether nvcc takes the system's own g++."""
    data = load_cuda()["host_compilers"]
    has = data["systems"].get(facts.os_key)
    rows = [row for row in data["newest_gcc"] if is_at_least(release, str(row["release"]))]
    if has is None or not rows:
        return
    newest = max(rows, key=lambda row: numbers(str(row["release"])))["gcc"]
    if int(has) > int(newest):
        later = [row for row in data["newest_gcc"] if int(row["gcc"]) >= int(has)]
        first = min((str(row["release"]) for row in later), key=numbers, default=None)
        last = min((_last_major(gpu) for gpu in gpus), default=_NO_LAST)
        if first and numbers(first)[0] > last:
            first = None
        fitting = [name for name, gcc in data["systems"].items() if int(gcc) <= int(newest)]
        other = max(fitting, key=lambda name: (name.startswith("ubuntu"), name))
        findings.add(
            "cuda-host-compiler",
            fact=f"{facts.os_key} has g++ {has}, nvcc of CUDA {release} takes up to {newest}",
            fix=f"take CUDA {first} or newer" if first else f"take another system ({other})",
            relax={"cuda": first} if first else {"os": other},
        )


def _last_major(gpu: Gpu) -> int:
    """The last CUDA major that compiles for a GPU."""
    row: Mapping[str, Any] = load_cuda()["architectures"].get(gpu.arch) or {}
    return int(row.get("last_cuda_major", _NO_LAST))


def _all_wanted(
    request: HostRequest, gpus: tuple[Gpu, ...], compat: Compat, findings: Findings
) -> list[_Wanted]:
    """The releases that are wanted, the default one first."""
    first = _wanted(request, gpus, compat, findings)
    more = [_asked(one, findings) for one in request.cuda.also]
    return [one for one in (first, *more) if one is not None]


def _wanted(
    request: HostRequest, gpus: tuple[Gpu, ...], compat: Compat, findings: Findings
) -> _Wanted | None:
    asked = request.cuda.version
    return _needed(request, gpus, compat) if asked is None else _asked(asked, findings)


def _asked(asked: str, findings: Findings) -> _Wanted | None:
    """The release that an inventory names."""
    releases: Mapping[str, Any] = load_cuda()["releases"]
    if asked.endswith(".run"):
        return _of_runfile(asked, releases, findings)
    fitting = [name for name in releases if name == asked or name.startswith(f"{asked}.")]
    if fitting:
        release = _best(fitting)
        return _Wanted(release, None, f"CUDA {asked} is asked for", exact=asked in releases)
    close = nearest(asked, releases) or _newest_at_most(asked, releases)
    findings.add(
        "cuda-unknown",
        fact=f"CUDA {asked} is asked for",
        fix=f"take CUDA {close}",
        relax={"cuda": close},
    )
    return None


def _best(releases: Iterable[str]) -> str:
    """The newest release."""
    return max(releases, key=numbers)


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


def _offered(wanted: _Wanted, facts: Facts, compat: Compat, findings: Findings) -> bool:
    """Whether NVIDIA's repository for the system has a release; if not, that is refused."""
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
        return False
    if system.get("cuda12_apt_nvidia") is False and major < _NEW_MAJOR:
        first = str(system["cuda_repo_first_toolkit_seen"])
        findings.add(
            "os-debian13-cuda12",
            fact=fact,
            fix=f"take the runfile {runfile}, or CUDA {first}",
            relax={"cuda": runfile or first},
        )
        return False
    start = system.get("cuda_repo_from")
    if start is not None and not is_at_least(release, str(start)):
        findings.add(
            "os-resolute-old",
            fact=fact,
            fix=f"take the runfile {runfile}, or CUDA {start} or newer",
            relax={"cuda": runfile or str(start)},
        )
        return False
    return True


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
