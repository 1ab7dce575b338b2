# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the instances of a host: their GPUs, command lines and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    engine_options,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    load_option_table,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_fit import (
    Fit,
    cache_gib,
    on_cpu,
    on_gpus,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_model import shape_of
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_one import (
    AMX,
    GIB,
    MANY,
    One,
    canonical,
    gpus_of,
    needed_options,
    spellings,
)

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Snapshot
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Release
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import Layout
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import (
        Context,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
        HostRequest,
        InstanceRequest,
    )


_START_TIMEOUT = 600
_LOAD_BYTES_PER_SECOND = 10**9
"""How fast weights come from a cold disk, for the start's limit: an assumption."""


def plan(host: Context, release: Release, one: InstanceRequest) -> dict[str, Any]:
    """Plan one instance."""
    seen = host.candidates.models.get(one.model)
    table = load_option_table(release.options)
    options = canonical(release.options, one.options)
    it = One(host, release, one, _gpus(host, one), shape_of(seen), table, options)
    kv_gib = cache_gib(it) if one.device == "cpu" else 0
    fit = on_cpu(it, kv_gib) if one.device == "cpu" else on_gpus(it)
    return {
        "name": one.name,
        "engine": one.engine,
        "device": one.device,
        "model": one.model,
        "environment": release.environment,
        "gpus": it.gpus,
        "host": one.host,
        "port": one.port,
        "context": fit.context,
        "argv": _argv(it, fit),
        "env": _env(it, kv_gib),
        "start_timeout": _start_timeout(it),
        "memory_bytes": _main_memory(it, seen, kv_gib),
        "user": host.user,
        "manager": manager(host.request, host.facts),
        "layout": fit.layout._asdict() if fit.layout is not None else None,
        "fp8": fit.fp8,
        "memory": fit.memory,
        "why": list(fit.why),
    }


def offload_bytes(host: Context, one: InstanceRequest) -> int:
    """Bytes of weights that an instance keeps in main memory instead of its GPUs'."""
    value = one.options.get("cpu-offload-gb")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MANY:
        return 0
    return int(value * GIB) * max(1, len(gpus_of(host, one)))


def manager(request: HostRequest, facts: Facts) -> str:
    """What runs the instances: systemd, the user's or the system's, else a supervisor."""
    needed = "systemd" if request.scope == "system" else "systemd_user"
    return "systemd" if facts.platform.get(needed) else "supervisor"


def _gpus(host: Context, one: InstanceRequest) -> list[int]:
    """The GPUs of an instance; one that is not there is refused."""
    count = len(host.facts.gpus)
    if one.device != "gpu" or one.gpus is None:
        return gpus_of(host, one)
    beyond = [index for index in one.gpus if index >= count]
    if beyond and count:
        host.findings.add(
            "gpu-index",
            fact=f"instance {one.name} asks for GPU {', '.join(map(str, beyond))}, the host has "
            f"{count}",
            fix=f"take indexes from 0 to {count - 1}",
        )
    return list(one.gpus)


def _argv(it: One, fit: Fit) -> list[str]:
    one, knobs = it.asked, it.knobs
    seen = it.host.candidates.models.get(one.model)
    revision = seen.revision if seen else ""
    argv = [*knobs.model, f"{it.host.paths['store']}/{one.model}/{revision}".rstrip("/")]
    argv += ["--served-model-name", one.model, "--host", one.host, "--port", str(one.port)]
    if fit.context is not None:
        argv += [f"--{knobs.context}", str(fit.context)]
    if fit.layout is not None:
        argv += _layout_arguments(it, fit.layout)
    if it.release.device == "cpu" and knobs.eager not in it.options:
        argv.append(f"--{knobs.eager}")
    options = {**needed_options(it), **one.options}
    more, issues = engine_options.arguments(it.table, options, spellings(it.release.options))
    for issue in issues:
        kept = {k: v for k, v in one.options.items() if not _is_about(issue, k)}
        fact = f"instance {one.name}: {issue.fact}"
        it.host.findings.add(issue.rule, fact=fact, fix=issue.fix, relax={"options": kept})
    return argv + more


def _is_about(issue: engine_options.OptionIssue, name: str) -> bool:
    return name in issue.fact.replace(":", " ").split()


def _layout_arguments(it: One, chosen: Layout) -> list[str]:
    """The layout as options, but for those that the inventory gives itself."""
    knobs = it.knobs
    sizes = ((knobs.tensor, chosen.tensor), (knobs.pipeline, chosen.pipeline))
    argv: list[str] = []
    for name, count in (*sizes, (knobs.data, chosen.data)):
        if count > 1 and name not in it.options:
            argv += [f"--{name}", str(count)]
    if chosen.expert and knobs.expert not in it.options:
        takes_number = it.table["options"][f"--{knobs.expert}"].get("type") == "int"
        argv += [f"--{knobs.expert}", *([str(chosen.tensor)] if takes_number else [])]
    return argv


def _env(it: One, kv_gib: int) -> dict[str, str]:
    """What is particular to an instance; what every one has, the role adds."""
    if it.release.device == "cpu":
        return {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, it.gpus)),
    }


def _start_timeout(it: One) -> int:
    """Seconds that a start may take: the engine's own work, and reading the weights."""
    weights = it.shape.weights if it.shape else None
    if weights is None or it.release.device == "cpu":
        return _START_TIMEOUT
    return _START_TIMEOUT + weights.total // _LOAD_BYTES_PER_SECOND


def _main_memory(it: One, seen: Snapshot | None, kv_gib: int) -> int | None:
    """Main memory of an instance, where the engine was measured."""
    release = it.release
    if release.base_memory_bytes is None or seen is None:
        return None
    wide = 2 if release.amx_dtype and AMX in it.host.facts.cpu_flags else 1
    return release.base_memory_bytes + wide * seen.size + kv_gib * GIB
