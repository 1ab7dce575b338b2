# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide engines, their Python environments, models and instances of a host."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    memory_model,
    plan_instance,
    plan_model,
    requirements,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_interpreters
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import (
    Context,
    at_home,
    replacement,
    size,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_driver import known_gpus
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    branch_of,
    is_at_least,
    numbers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Candidates
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, Release
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_GB = 10**9
_CPU_FLAGS = frozenset({"avx2", "avx512f"})


@dataclass
class EnginePlan:
    """The parts of a lock that the instances decide."""

    python: dict[str, Any] | None = None
    engines: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    instances: list[dict[str, Any]] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)


def decide(  # noqa: PLR0913 - a pure function of all that an engine depends on
    request: HostRequest,
    facts: Facts,
    candidates: Candidates,
    *,
    compat: Compat,
    findings: Findings,
    paths: Mapping[str, str],
    user: str,
    driver: str | None,
    needs: Mapping[str, int] | None = None,
) -> EnginePlan:
    """Plan everything from the Python environment to the running instances.

    Args:
        request: what the inventory asks.
        facts: what the survey saw.
        candidates: the model folders that were read.
        compat: the compatibility data.
        findings: collects what stands against it.
        paths: the host's folders.
        user: whom the instances run as.
        driver: the release of the NVIDIA driver that will be there; None for none.
        needs: the bytes that other parts take on the disks, by folder.
    """
    host = Context(request, facts, candidates, compat, findings, paths, user, driver)
    plan = EnginePlan()
    release = _release(host)
    if release is None:
        return plan
    interpreter, why = _interpreter(host, release)
    if interpreter is not None:
        plan.python = {**_python(host, release, interpreter), "why": why}
    plan.engines = [_engine(host, release, interpreter)]
    _check_hardware(host, release)
    plan.models, plan.unresolved = plan_model.models(host)
    instances = [plan_instance.plan(host, release, one) for one in request.instances]
    # A question about an engine alone has an instance for its options, and none to run.
    plan.instances = [] if request.engine_only else instances
    _check_shared_gpus(host, plan.instances)
    _check_room(host, release, plan, needs or {})
    return plan


def not_yet(what: str, request: HostRequest, findings: Findings, *, fix: str) -> None:
    """Say that this release has no role for something: a refusal where it would be installed."""
    rule = "plan-only" if request.only_looks else "not-yet"
    findings.add(rule, fact=what, fix=fix)


def _release(host: Context) -> Release | None:
    """The engine release of all instances; None where there are none, or none that fits."""
    found: dict[tuple[str, str], Release] = {}
    for one in host.request.instances:
        release = host.compat.release(one.engine, one.device, one.engine_version)
        if release is None:
            there = [r for r in host.compat.releases(one.engine) if r.device == one.device]
            versions = " or ".join(r.version for r in there)
            fix = f"take {versions}" if there else "set its engine to vllm"
            host.findings.add(
                "engine-release",
                fact=f"instance {one.name} asks for {one.engine} {one.engine_version or ''} on "
                f"{one.device}",
                fix=fix,
                relax={"engine_version": None} if there else {"engine": "vllm"},
            )
            continue
        if not release.installable:
            not_yet(
                f"instance {one.name} asks for {one.engine}",
                host.request,
                host.findings,
                fix="set its engine to vllm",
            )
        found[release.engine, release.version] = release
    if len(found) > 1:
        host.findings.add(
            "engine-mixed",
            fact=" and ".join(f"{name} {version}" for name, version in found),
            fix="give all instances of the host the same engine, release and device",
        )
    return next(iter(found.values()), None)


def _interpreter(host: Context, release: Release) -> tuple[dict[str, Any] | None, list[str]]:
    """The Python for the engine as the lock has it, and why that one.

    Of those that fit, the system's own, and of these the newest; where none does, or the inventory
    asks for it, that of a Miniconda installer.
    """
    wanted = host.request.python.source
    fitting = [one for one in host.facts.interpreters if _fits(one.version, release)]
    if fitting and wanted != "miniconda":
        best = max(
            fitting,
            key=lambda one: (one.path.startswith("/usr/bin/"), numbers(one.version), one.path),
        )
        why = f"{best.path} is the host's own, and {release.package} takes it"
        return {"version": best.version, "path": best.path, "source": "system"}, [why]
    seen = ", ".join(f"{one.path} {one.version}" for one in host.facts.interpreters)
    fact = (
        f"the host has {seen or 'no Python'}; {release.package} {release.version} needs "
        f"{release.python_from} or newer, below {release.python_below}"
    )
    if wanted == "system" or not (installer := _installer(host, release)):
        host.findings.add(
            "python-version",
            fact=fact,
            fix=f"install python{release.python_from} with its venv package on the host (Debian 12 "
            "and Ubuntu 24.04 have a new enough one)",
            relax={"os": "ubuntu2404"},
        )
        return None, []
    if host.request.only_looks:
        not_yet(
            f"{installer['file']}, since the system's Python does not fit: {fact}",
            host.request,
            host.findings,
            fix=f"nothing for a plan; for a site run install python{release.python_from} or newer",
        )
    else:
        host.findings.add(
            "python-version",
            fact=fact,
            fix=f"install python{release.python_from} with its venv package on the host (this "
            f"release plans {installer['file']}, and does not install it yet)",
        )
    return {
        "version": installer["python"],
        "path": None,
        "source": "miniconda",
        "installer": {"file": installer["file"], "sha256": installer["sha256"]},
    }, [fact, f"{installer['file']} brings it; none of its channels is used"]


def _fits(version: str, release: Release) -> bool:
    return is_at_least(version, release.python_from) and not is_at_least(
        version, release.python_below
    )


def _installer(host: Context, release: Release) -> dict[str, str] | None:
    """The installer whose interpreter the engine can use: the one asked for, or the newest."""
    data = load_interpreters()
    asked = host.request.python
    rows = [row for row in data["installers"] if row["arch"] == host.facts.arch]
    fitting = [row for row in rows if _fits(f"{row['python']}.0", release)]
    usual = [row for row in fitting if row["python"] == data["preferred"]]
    chosen = max(usual or fitting, key=_newest, default=None)
    if asked.installer is not None:
        chosen = next((row for row in fitting if row["file"] == asked.installer), None)
        if chosen is None:
            names = ", ".join(row["file"] for row in sorted(fitting, key=_newest))
            host.findings.add(
                "interpreter-unknown", fact=asked.installer, fix=f"take one of {names}"
            )
            return None
    if chosen and asked.sha256 not in {None, chosen["sha256"]}:
        owner = [row["file"] for row in data["all"] if row["sha256"] == asked.sha256]
        whose = f", which is that of {owner[0]}" if owner else ""
        host.findings.add(
            "interpreter-sha256",
            fact=f"{chosen['file']} with sha256 {asked.sha256}{whose}",
            fix=f"take {chosen['sha256']}, or leave it out",
        )
    return chosen


def _newest(row: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    return numbers(row["python"]), row["file"]


def _python(host: Context, release: Release, interpreter: Mapping[str, Any]) -> dict[str, Any]:
    version, machine = str(interpreter["version"]), host.facts.arch
    environment: dict[str, Any] = {
        "name": release.environment,
        "python": interpreter,
        "requirements": requirements.as_lock(release.requirements, version, machine),
        "aliases": [dict(alias) for alias in release.aliases],
        "imports": list(release.imports),
    }
    if release.size_bytes is not None:
        environment["size_bytes"] = release.size_bytes
    environments = [environment]
    if plan_instance.manager(host.request, host.facts) == "supervisor":
        row = host.compat.supervisor
        environments.append(
            {
                "name": row["environment"],
                "python": interpreter,
                "requirements": requirements.as_lock(row["requirements"], version, machine),
                "aliases": [],
                "imports": list(row["imports"]),
            }
        )
    uv = requirements.for_python(host.compat.uv_requirements, version, machine)[0]
    cache = host.request.wheel_cache
    return {
        "provider": "uv",
        "uv": {"version": uv.version, "sha256": list(uv.sha256)},
        "index_url": host.request.index_url,
        "cache": at_home(cache, host.facts.home) if cache else f"{host.paths['cache']}/uv",
        "environments": environments,
    }


def _engine(
    host: Context, release: Release, interpreter: Mapping[str, Any] | None
) -> dict[str, Any]:
    torch = None
    if interpreter is not None:
        version = str(interpreter["version"])
        needs = requirements.for_python(release.requirements, version, host.facts.arch)
        torch = requirements.version_of(needs, "torch")
    cuda = None if release.cuda_major is None else str(release.cuda_major)
    return {
        "name": release.engine,
        "version": release.version,
        "device": release.device,
        "package": release.package,
        "environment": release.environment,
        "torch": torch,
        "cuda": cuda,
        "runtime": host.request.runtime,
        "build": _build(host, release),
        "why": _why_engine(host, release, torch, cuda),
    }


def _why_engine(host: Context, release: Release, torch: str | None, cuda: str | None) -> list[str]:
    asked = any(one.engine_version == release.version for one in host.request.instances)
    kind = "asked for" if asked else f"this release's choice on {release.device}"
    why = [f"{release.engine} {release.version} is {kind}"]
    if torch is not None:
        flavour = f", built for CUDA {cuda}" if cuda else ""
        why.append(f"{release.package} {release.version} is pinned to torch {torch}{flavour}")
    if host.request.runtime == "native":
        why.append("native: a Python that fits is there or can be had, so no container is needed")
    return why


def _build(host: Context, release: Release) -> dict[str, Any]:
    """Wheel or source, and with which settings something would be compiled."""
    request, findings = host.request.build, host.findings
    gpus = known_gpus(host.facts, host.compat) if release.device == "gpu" else ()
    floor = release.min_compute or "0"  # GPUs below it are refused for that
    lacking = [
        gpu
        for gpu in gpus
        if is_at_least(gpu.compute, floor) and not has_kernels(release, gpu.compute)
    ]
    origin = "wheel" if request.origin == "auto" else request.origin
    if lacking and origin == "wheel":
        key = replacement(
            host,
            lambda row: has_kernels(release, str(row["cc"])) and is_at_least(str(row["cc"]), floor),
        )
        other = host.compat.gpus[key]["model"] if key else "another GPU"
        findings.add(
            "no-kernel-image",
            fact=f"{lacking[0].name} has compute capability {lacking[0].compute}; the wheel of "
            f"{release.package} {release.version} has kernels for "
            f"{', '.join(release.device_code)}",
            fix=f"use {other}, or set llmetal_build.from to source",
            relax={"gpus": [key] * len(host.facts.gpus)} if key else {},
        )
    if late := [gpu for gpu in gpus if gpu.compute in host.compat.late_targets]:
        findings.add(
            "ptxas-too-old",
            fact=f"{late[0].name} is sm_{late[0].compute.replace('.', '')}",
            fix="see that `ptxas --help` of the environment's Triton lists it; else install CUDA "
            "13 and set TRITON_PTXAS_PATH to its ptxas",
        )
    if origin == "source":
        not_yet("an engine built from source", host.request, findings, fix="take the wheel")
    jobs = request.max_jobs or _jobs(host.facts, request.nvcc_threads)
    if jobs is not None and jobs < request.nvcc_threads:
        findings.add(
            "max-jobs",
            fact=f"MAX_JOBS {jobs}, NVCC_THREADS {request.nvcc_threads}: one job at a time",
            fix="set llmetal_build.nvcc_threads to 1",
        )
    capabilities = sorted({gpu.compute for gpu in gpus}, key=numbers)
    return {
        "from": origin,
        "arch_list": ";".join(capabilities) or None,
        "max_jobs": jobs,
        "nvcc_threads": request.nvcc_threads,
    }


def has_kernels(release: Release, compute: str) -> bool:
    """Whether the wheel's device code runs on a GPU.

    Code for sm_XY runs on every GPU of the same major with that minor or a later one; code for an
    architecture's own features (sm_90a) on just that one; PTX on every later one.
    """
    mine = numbers(compute)
    for code in release.device_code:
        theirs = _capability(code)
        if code.endswith("a"):
            if theirs == mine:
                return True
        elif theirs[0] == mine[0] and theirs[1] <= mine[1]:
            return True
    return any(_capability(code) <= mine for code in release.ptx)


def _capability(code: str) -> tuple[int, int]:
    digits = code.rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def _jobs(facts: Facts, threads: int) -> int | None:
    """How many compilers fit into processors and memory; None where either is not known."""
    if not facts.cpus or not facts.memory_bytes:
        return None
    by_memory = facts.memory_bytes // (memory_model.main_memory("compiler") * threads)
    return max(1, min(facts.cpus, by_memory))


def _check_hardware(host: Context, release: Release) -> None:
    """Whether the engine can compute on what the host has."""
    facts, findings = host.facts, host.findings
    _check_glibc(host, release)
    wanted = f"{release.engine} {release.version} on {release.device}"
    if release.device == "cpu":
        if not facts.cpu_flags & _CPU_FLAGS:
            fix = "use another host"
            findings.add("engine-cpu-flags", fact="the processor has neither", fix=fix)
        return
    if not facts.gpus:
        findings.add(
            "gpu-missing",
            fact=f"{wanted} is asked for, and the host has no NVIDIA GPU",
            fix="set the instance's device to cpu, or move it to a host with a GPU",
        )
        return
    _check_driver(host, release)
    gpus = known_gpus(facts, host.compat)
    late = [
        g for g in gpus if release.min_compute and not is_at_least(g.compute, release.min_compute)
    ]
    if late:
        key = replacement(host, lambda row: is_at_least(str(row["cc"]), str(release.min_compute)))
        other = host.compat.gpus[key]["model"] if key else "a newer GPU"
        findings.add(
            "cc-floor",
            fact=f"{late[0].name} has compute capability {late[0].compute}, needed is "
            f"{release.min_compute}",
            fix=f"use a newer GPU, such as {other}",
            relax={"gpus": [key] * len(facts.gpus)} if key else {},
        )


def _check_glibc(host: Context, release: Release) -> None:
    """Whether the system's C library is new enough for the wheels."""
    has = host.compat.systems.get(host.facts.os_key, {}).get("glibc")
    if has is None or release.min_glibc is None or is_at_least(str(has), release.min_glibc):
        return
    host.findings.add(
        "glibc-floor",
        fact=f"{host.facts.os_pretty} has glibc {has}, the wheels of {release.package} "
        f"{release.version} need {release.min_glibc}",
        fix="upgrade to Ubuntu 24.04 or Debian 13",
        relax={"os": "ubuntu2404"},
    )


def _check_driver(host: Context, release: Release) -> None:
    """Whether the driver that will be there serves the CUDA that the engine is built for."""
    request, findings = host.request, host.findings
    if host.driver is None:
        if request.driver.source == "none":
            findings.add(
                "driver-missing",
                fact="llmetal_driver.source is none, and no driver is loaded",
                fix="set llmetal_driver.source, or install a driver",
            )
        return
    if not release.min_driver or is_at_least(host.driver, release.min_driver):
        return
    built = f"{release.package} {release.version} is built for CUDA {release.cuda_major}"
    if request.driver.source == "debian":
        findings.add(
            "deb-archive-cuda13",
            fact=f"driver {host.driver} of the Debian archive; {built}",
            fix="set llmetal_driver.source to cuda_repo",
            relax={"driver": None},
        )
        return
    findings.add(
        "cuda-driver-hard",
        fact=f"driver {host.driver}; {built}",
        fix=f"take driver branch {release.min_driver} or newer",
        relax={"driver": branch_of(release.min_driver)},
    )


def _check_shared_gpus(host: Context, instances: list[dict[str, Any]]) -> None:
    users: dict[int, str] = {}
    for row in instances:
        for gpu in row["gpus"]:
            other = users.setdefault(gpu, row["name"])
            if other != row["name"]:
                host.findings.add(
                    "gpu-shared",
                    fact=f"GPU {gpu} serves {other} and {row['name']}",
                    fix="give them gpus of their own, or set gpu-memory-utilization in options",
                )
                return


def _check_room(
    host: Context, release: Release, plan: EnginePlan, needs: Mapping[str, int]
) -> None:
    """Whether disks and memory hold what is planned; what a receipt names is there already."""
    facts = host.facts
    new: dict[str, int] = dict(needs)
    if plan.python is not None and "python_env" not in facts.receipts:
        sizes = [row.get("size_bytes", 0) for row in plan.python["environments"]]
        new[host.paths["environments"]] = sum(sizes)
    if "model" not in facts.receipts:
        new[host.paths["store"]] = sum(
            plan_model.model_bytes(host, model.name) for model in host.request.used_models
        )
    disks: dict[int, list[str]] = {}
    for path in new:
        free = facts.free_at(path)
        if free is not None:
            disks.setdefault(free, []).append(path)
    for free, paths in disks.items():
        needed = sum(new[path] for path in paths)
        if needed > free:
            host.findings.add(
                "disk-room",
                fact=f"{' and '.join(paths)} need {size(needed)}, free are {size(free)}",
                fix=f"free {size(needed - free)} more, or set llmetal_root to a larger disk",
                relax={"disk_gb": math.ceil(needed / _GB)},
            )
    _check_memory(host, release, plan)


def _check_memory(host: Context, release: Release, plan: EnginePlan) -> None:
    """Whether the main memory holds the engines; unknown is not zero."""
    has = host.facts.memory_bytes
    if not has:
        return
    needed = sum(row["memory_bytes"] or 0 for row in plan.instances)
    offload = sum(plan_instance.offload_bytes(host, one) for one in host.request.instances)
    if needed + offload > has:
        host.findings.add(
            "memory-room",
            fact=f"the instances need about {size(needed + offload)}, the host has {size(has)}",
            fix="serve fewer or smaller models, or a shorter context",
            relax={"ram_gb": math.ceil((needed + offload) / _GB)},
        )
    workers = sum(len(row["gpus"]) for row in plan.instances if row["device"] == "gpu")
    estimate = len(plan.instances) * memory_model.main_memory("server")
    estimate += workers * memory_model.main_memory("worker")
    if workers and estimate + offload > has:
        host.findings.add(
            "memory-thin",
            fact=f"{workers} workers of {release.engine} and their servers take about "
            f"{size(estimate)}, the host has {size(has)}",
            fix="give the host more memory",
            relax={"ram_gb": math.ceil((estimate + offload) / _GB)},
        )
