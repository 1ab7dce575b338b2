# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide engines, their Python environments, models and instances of a host."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import engine_options, requirements
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_option_table
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_driver import known_gpus
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    is_at_least,
    numbers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import (
        Candidates,
        Snapshot,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, Release
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import (
        Facts,
        Interpreter,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
        HostRequest,
        InstanceRequest,
    )

_GIB = 1 << 30
_START_TIMEOUT = 600
_REQUESTS_AT_ONCE = 8
_BYTES_PER_ELEMENT = 2
_PARALLEL = frozenset({"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"})
_CPU_FLAGS = frozenset({"avx2", "avx512f"})
_AMX = "amx_tile"
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"))


@dataclass
class EnginePlan:
    """The parts of a lock that the instances decide."""

    python: dict[str, Any] | None = None
    engines: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    instances: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Host:
    """What all decisions here look at."""

    request: HostRequest
    facts: Facts
    candidates: Candidates
    compat: Compat
    findings: Findings
    paths: Mapping[str, str]
    user: str
    driver: str | None


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
    """
    host = _Host(request, facts, candidates, compat, findings, paths, user, driver)
    plan = EnginePlan()
    release = _release(host)
    if release is None:
        return plan
    interpreter = _interpreter(host, release)
    if interpreter is not None:
        plan.python = _python(host, release, interpreter)
        plan.engines = [_engine(release, interpreter, facts.arch)]
    _check_hardware(host, release)
    plan.models = _models(host)
    plan.instances = [_instance(host, release, one) for one in request.instances]
    _check_shared_gpus(host, plan.instances)
    _check_room(host, plan)
    return plan


def _release(host: _Host) -> Release | None:
    """The engine release of all instances; None where there are none, or none that fits."""
    found: dict[tuple[str, str], Release] = {}
    for one in host.request.instances:
        if not host.compat.releases(one.engine):
            fix = "set its engine to vllm"
            fact = f"instance {one.name} asks for {one.engine}"
            host.findings.add("engine-not-yet", fact=fact, fix=fix)
            continue
        release = host.compat.release(one.engine, one.device, one.engine_version)
        if release is None:
            there = [r for r in host.compat.releases(one.engine) if r.device == one.device]
            host.findings.add(
                "engine-release",
                fact=f"instance {one.name} asks for {one.engine} {one.engine_version} on "
                f"{one.device}",
                fix="take " + " or ".join(r.version for r in there),
            )
            continue
        found[release.engine, release.version] = release
    if len(found) > 1:
        host.findings.add(
            "engine-mixed",
            fact=" and ".join(f"{name} {version}" for name, version in found),
            fix="give all instances of the host the same engine, release and device",
        )
    return next(iter(found.values()), None)


def _interpreter(host: _Host, release: Release) -> Interpreter | None:
    """The Python for the engine: of those that fit, the system's own, and of these the newest."""
    fitting = [
        one
        for one in host.facts.interpreters
        if is_at_least(one.version, release.python_from)
        and not is_at_least(one.version, release.python_below)
    ]
    if not fitting:
        seen = ", ".join(f"{one.path} {one.version}" for one in host.facts.interpreters)
        host.findings.add(
            "python-version",
            fact=f"found {seen or 'no Python'}; {release.package} {release.version} needs "
            f"{release.python_from} or newer, below {release.python_below}",
            fix=f"install python{release.python_from} with its venv package on the host (Debian 12 "
            "and Ubuntu 24.04 have a new enough one)",
        )
        return None
    return max(
        fitting, key=lambda one: (one.path.startswith("/usr/bin/"), numbers(one.version), one.path)
    )


def _python(host: _Host, release: Release, interpreter: Interpreter) -> dict[str, Any]:
    python, machine = interpreter.version, host.facts.arch
    source = {"version": python, "path": interpreter.path, "source": "system"}
    environment: dict[str, Any] = {
        "name": release.environment,
        "python": source,
        "requirements": [
            one.as_lock() for one in requirements.for_python(release.requirements, python, machine)
        ],
        "aliases": [dict(alias) for alias in release.aliases],
        "imports": list(release.imports),
    }
    if release.size_bytes is not None:
        environment["size_bytes"] = release.size_bytes
    environments = [environment]
    if _manager(host) == "supervisor":
        row = host.compat.supervisor
        needs = requirements.for_python(row["requirements"], python, machine)
        environments.append(
            {
                "name": row["environment"],
                "python": source,
                "requirements": [one.as_lock() for one in needs],
                "aliases": [],
                "imports": list(row["imports"]),
            }
        )
    uv = requirements.for_python(host.compat.uv_requirements, python, machine)[0]
    cache = host.request.wheel_cache
    return {
        "provider": "uv",
        "uv": {"version": uv.version, "sha256": list(uv.sha256)},
        "index_url": host.request.index_url,
        "cache": at_home(cache, host.facts.home) if cache else f"{host.paths['cache']}/uv",
        "environments": environments,
    }


def at_home(path: str, home: str) -> str:
    """A path with the user's home in place of a leading ~, and no slash at its end."""
    whole = home + path[1:] if path.startswith("~/") else path
    return whole.rstrip("/") or "/"


def _engine(release: Release, interpreter: Interpreter, machine: str) -> dict[str, Any]:
    needs = requirements.for_python(release.requirements, interpreter.version, machine)
    return {
        "name": release.engine,
        "version": release.version,
        "device": release.device,
        "package": release.package,
        "environment": release.environment,
        "torch": requirements.version_of(needs, "torch"),
    }


def _check_hardware(host: _Host, release: Release) -> None:
    """Whether the engine can compute on what the host has."""
    facts, findings = host.facts, host.findings
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
    if host.driver is None:
        if host.request.driver.source == "none":
            findings.add(
                "driver-missing",
                fact="llmetal_driver.source is none, and no driver is loaded",
                fix="set llmetal_driver.source, or install a driver",
            )
    elif release.min_driver and not is_at_least(host.driver, release.min_driver):
        findings.add(
            "cuda-driver-hard",
            fact=f"driver {host.driver}; {release.package} {release.version} is built for CUDA "
            f"{release.cuda_major}",
            fix=f"take driver branch {release.min_driver} or newer",
        )
    for gpu in known_gpus(facts, host.compat):
        if release.min_compute and not is_at_least(gpu.compute, release.min_compute):
            findings.add(
                "cc-floor",
                fact=f"{gpu.name} has compute capability {gpu.compute}, needed is "
                f"{release.min_compute}",
                fix="use a newer GPU, or an engine built for CUDA 12",
            )


def _models(host: _Host) -> list[dict[str, Any]]:
    rows = []
    for model in host.request.used_models:
        seen = host.candidates.models.get(model.name)
        if seen is None or seen.error or not seen.files:
            why = seen.error if seen and seen.error else "the folder holds no file"
            host.findings.add(
                "model-unread",
                fact=f"model {model.name} at {model.path}: {why}",
                fix="put the model's files there, or set source.path in llmetal_models",
            )
            continue
        rows.append(
            {
                "name": model.name,
                "revision": seen.revision,
                "source": {"type": model.source_type, "path": at_home(model.path, host.facts.home)},
                "files": [dict(row) for row in seen.files],
                "architectures": list(seen.architectures),
            }
        )
    return rows


def _instance(host: _Host, release: Release, one: InstanceRequest) -> dict[str, Any]:
    seen = host.candidates.models.get(one.model)
    gpus = _gpus(host, one)
    kv_gib = _kv_gib(one, seen)
    return {
        "name": one.name,
        "engine": one.engine,
        "device": one.device,
        "model": one.model,
        "environment": release.environment,
        "gpus": gpus,
        "host": one.host,
        "port": one.port,
        "context": one.context,
        "argv": _argv(host, release, one, gpus),
        "env": _env(one, gpus, kv_gib),
        "start_timeout": _START_TIMEOUT,
        "memory_bytes": _memory(host, release, seen, kv_gib),
        "user": host.user,
        "manager": _manager(host),
    }


def _manager(host: _Host) -> str:
    """What runs the instances: systemd, the user's or the system's, else a supervisor."""
    needed = "systemd" if host.request.scope == "system" else "systemd_user"
    return "systemd" if host.facts.platform.get(needed) else "supervisor"


def _gpus(host: _Host, one: InstanceRequest) -> list[int]:
    """The GPUs of an instance: those asked for, or all."""
    if one.device != "gpu":
        return []
    count = len(host.facts.gpus)
    if one.gpus is None:
        return list(range(count))
    beyond = [index for index in one.gpus if index >= count]
    if beyond and count:
        host.findings.add(
            "gpu-index",
            fact=f"instance {one.name} asks for GPU {', '.join(map(str, beyond))}, the host has "
            f"{count}",
            fix=f"take indexes from 0 to {count - 1}",
        )
    return list(one.gpus)


def _argv(host: _Host, release: Release, one: InstanceRequest, gpus: list[int]) -> list[str]:
    snapshot = host.candidates.models.get(one.model)
    revision = snapshot.revision if snapshot else ""
    argv = [
        "serve",
        f"{host.paths['store']}/{one.model}/{revision}",
        "--served-model-name",
        one.model,
        "--host",
        one.host,
        "--port",
        str(one.port),
    ]
    if one.context is not None:
        argv += ["--max-model-len", str(one.context)]
    if len(gpus) > 1 and not _PARALLEL & one.options.keys():
        argv += ["--tensor-parallel-size", str(len(gpus))]
    if one.device == "cpu" and "enforce-eager" not in one.options:
        argv.append("--enforce-eager")
    options = {**_needed_options(host, release, one), **one.options}
    more, issues = engine_options.arguments(load_option_table(release.options), options)
    for issue in issues:
        host.findings.add(issue.rule, fact=f"instance {one.name}: {issue.fact}", fix=issue.fix)
    return argv + more


def _needed_options(host: _Host, release: Release, one: InstanceRequest) -> dict[str, str]:
    """The options without which a release is wrong on this host, unless the inventory has them."""
    if not release.amx_dtype or _AMX not in host.facts.cpu_flags:
        return {}
    if one.options.get("dtype", release.amx_dtype) == release.amx_dtype:
        return {"dtype": release.amx_dtype}
    host.findings.add(
        "engine-amx",
        fact=f"instance {one.name} asks for dtype {one.options['dtype']}, the processor has AMX",
        fix=f"leave dtype out: {release.amx_dtype} is taken",
    )
    return {}


def _env(one: InstanceRequest, gpus: list[int], kv_gib: int) -> dict[str, str]:
    """What is particular to an instance; what every one has, the role adds."""
    if one.device == "cpu":
        return {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
    }


def _kv_gib(one: InstanceRequest, seen: Snapshot | None) -> int:
    """GiB of key-value cache for a CPU instance: some requests of full length, at least one GiB."""
    config = seen.config if seen else {}
    heads = _count(config, "num_attention_heads")
    per_head = _count(config, "head_dim") or (_count(config, "hidden_size") // max(heads, 1))
    kv_heads = _count(config, "num_key_value_heads") or heads
    per_token = 2 * _count(config, "num_hidden_layers") * kv_heads * per_head * _BYTES_PER_ELEMENT
    context = one.context or _count(config, "max_position_embeddings")
    return max(1, math.ceil(_REQUESTS_AT_ONCE * context * per_token / _GIB))


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _memory(host: _Host, release: Release, seen: Snapshot | None, kv_gib: int) -> int | None:
    """Main memory of an instance, where the engine was measured."""
    if release.base_memory_bytes is None or seen is None:
        return None
    wide = 2 if release.amx_dtype and _AMX in host.facts.cpu_flags else 1
    return release.base_memory_bytes + wide * seen.size + kv_gib * _GIB


def _check_shared_gpus(host: _Host, instances: list[dict[str, Any]]) -> None:
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


def _check_room(host: _Host, plan: EnginePlan) -> None:
    """Whether disks and memory hold what is planned; what a receipt names is there already."""
    facts = host.facts
    new: dict[str, int] = {}
    if plan.python is not None and "python_env" not in facts.receipts:
        sizes = [row.get("size_bytes", 0) for row in plan.python["environments"]]
        new[host.paths["environments"]] = sum(sizes)
    if "model" not in facts.receipts:
        new[host.paths["store"]] = sum(one["size"] for row in plan.models for one in row["files"])
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
                fact=f"{' and '.join(paths)} need {_size(needed)}, free are {_size(free)}",
                fix="free some room, or set llmetal_root to a larger disk",
            )
    memory = sum(row["memory_bytes"] or 0 for row in plan.instances)
    if memory > facts.memory_bytes:
        host.findings.add(
            "memory-room",
            fact=f"the instances need about {_size(memory)}, the host has "
            f"{_size(facts.memory_bytes)}",
            fix="serve fewer or smaller models, or a shorter context",
        )


def _size(count: int) -> str:
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
