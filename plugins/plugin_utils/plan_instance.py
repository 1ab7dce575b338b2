# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the models and instances of a host: GPUs, layout, memory, command line."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    engine_options,
    fp8,
    layout,
    memory_model,
    model_reader,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    load_architectures,
    load_option_table,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import (
    Context,
    at_home,
    replacement,
    size,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Snapshot
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Gpu, Release
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts, SeenGpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import Layout, Problem
    from ansible_collections.llmetal.inference.plugins.plugin_utils.memory_model import Memory
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
        HostRequest,
        InstanceRequest,
    )

_GIB = 1 << 30
_START_TIMEOUT = 600
_LOAD_BYTES_PER_SECOND = 10**9
"""How fast weights come from a cold disk, for the start's limit: an assumption."""
_CPU_REQUESTS = 8
_LEAST_CONTEXT = 2048
"""A server whose requests are shorter is of no use; where nobody asked, less is refused."""
_MANY = 10**6
_AMX = "amx_tile"
_WIDTHS = {"float32": 4, "float": 4}
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ext>\.\w+)")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json", "vocab")


@dataclass(frozen=True)
class _Knobs:
    """What an engine calls the options that a plan reads or writes."""

    tensor: str
    pipeline: str
    data: str
    expert: str
    utilization: str
    sequences: str
    batch: str
    eager: str
    context: str
    model: tuple[str, ...]
    kv_dtype: str = "kv-cache-dtype"
    offload: str = "cpu-offload-gb"


_KNOBS = {
    "vllm": _Knobs(
        tensor="tensor-parallel-size",
        pipeline="pipeline-parallel-size",
        data="data-parallel-size",
        expert="enable-expert-parallel",
        utilization="gpu-memory-utilization",
        sequences="max-num-seqs",
        batch="max-num-batched-tokens",
        eager="enforce-eager",
        context="max-model-len",
        model=("serve",),
    ),
    "sglang": _Knobs(
        tensor="tp-size",
        pipeline="pp-size",
        data="dp-size",
        expert="ep-size",
        utilization="mem-fraction-static",
        sequences="max-running-requests",
        batch="chunked-prefill-size",
        eager="disable-cuda-graph",
        context="context-length",
        model=("serve", "--model-path"),
    ),
}


@dataclass(frozen=True)
class _Fit:
    """How a model fits on the GPUs of an instance."""

    layout: Layout | None = None
    context: int | None = None
    memory: dict[str, Any] | None = None
    fp8: dict[str, Any] | None = None
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Held:
    """A model as the engine holds it, in the types that the instance asks for."""

    shape: ModelShape
    why: tuple[str, ...] = ()
    approximate: bool = False
    """Whether its weights are what the engine makes of others at its start."""
    made: Mapping[str, Any] | None = None
    """A quantization_config like what it makes of them."""


@dataclass(frozen=True)
class _One:
    """An instance with all that its decisions look at."""

    host: Context
    release: Release
    asked: InstanceRequest
    gpus: list[int]
    shape: ModelShape | None
    table: Mapping[str, Any]
    options: Mapping[str, Any]
    """Its options under the names of the table."""

    @property
    def knobs(self) -> _Knobs:
        """What the engine calls its options."""
        return _KNOBS[self.release.engine]

    def add(self, problems: Iterable[Problem]) -> bool:
        """Add problems as findings; whether one of them refuses."""
        refused = False
        for one in problems:
            fact = f"instance {self.asked.name}: {one.fact}"
            added = self.host.findings.add(one.rule, fact=fact, fix=one.fix, relax=one.relax)
            refused = added or refused
        return refused

    def without(self, *names: str) -> dict[str, Any]:
        """Its options without some, whatever the inventory spells these."""
        known = _spellings(self.release.options)
        left_out = {f"--{name}" for name in names}
        return {k: v for k, v in self.asked.options.items() if known.get(f"--{k}") not in left_out}

    def word(self, name: str) -> str | None:
        """The value of an option as text; None where it is not given, or the engine refuses it."""
        value = self.options.get(name)
        if value is None or engine_options.arguments(self.table, {name: value})[1]:
            return None
        return str(value)

    def number(self, name: str) -> float | None:
        """The value of an option that is a number; None where it is not given."""
        value = self.options.get(name)
        if isinstance(value, bool) or value is None:
            return None
        try:
            found = float(value)
        except (TypeError, ValueError):
            return None
        return found if math.isfinite(found) and found > 0 else None

    def count(self, name: str) -> int | None:
        """The value of an option that is a count."""
        value = self.number(name)
        return None if value is None else int(value)


def models(host: Context) -> tuple[list[dict[str, Any]], list[str]]:
    """The models of the lock, and which of their fields nobody could look up."""
    rows: list[dict[str, Any]] = []
    unresolved: list[str] = []
    for model in host.request.used_models:
        seen = host.candidates.models.get(model.name)
        if seen is None and host.candidates.asked:
            _unread(host, model.name, model.path, "nobody looked at the folder")
            continue
        if seen is not None and (seen.error or not (seen.files or seen.metadata)):
            why = seen.error or "the folder holds no file"
            _unread(host, model.name, model.path, why, seen.fix)
            continue
        known = seen is not None and bool(seen.files)
        if seen is not None:
            _check_files(host, model.name, seen)
        if not known:
            unresolved += [f"models.{model.name}.revision", f"models.{model.name}.files"]
        rows.append(
            {
                "name": model.name,
                "revision": seen.revision if seen and known else None,
                "source": {"type": model.source_type, "path": at_home(model.path, host.facts.home)},
                "files": [dict(row) for row in seen.files] if seen else [],
                "architectures": list(seen.architectures) if seen else [],
            }
        )
    return rows, unresolved


def _unread(host: Context, name: str, path: str, why: str, fix: str = "") -> None:
    host.findings.add(
        "model-unread",
        fact=f"model {name} at {path}: {why}; so weights, layout, precision and context of its "
        "instances could not be decided",
        fix=fix or "put the model's files there, or set source.path in llmetal_models",
    )


def _check_files(host: Context, name: str, seen: Snapshot) -> None:
    """Whether a model has what an engine reads: the folder is all that it gets."""
    names = [str(row["path"]) for row in seen.files]
    if seen.metadata is not None:
        names = [path for path, _ in seen.metadata.files]
    said = [*_missing_shards(names), *_wrong_size(seen)]
    if seen.metadata is not None:
        facts = list(dict.fromkeys((*seen.metadata.problems, *said)))
        if facts:
            host.findings.add(
                "model-partial",
                fact="; ".join(facts),
                fix="nothing for a plan: weights are then counted; complete it before it is served",
            )
        return
    if said:
        host.findings.add(
            "model-size",
            fact=f"model {name}: {'; '.join(said)}",
            fix="fetch the missing files, or the config.json that belongs to these: the plan has "
            "counted with what config.json says",
        )
    if not any(path.startswith(_TOKENIZERS) for path in names):
        host.findings.add(
            "model-incomplete",
            fact=f"model {name} has none of {', '.join(_TOKENIZERS[:4])}",
            fix="put the tokenizer's files beside the weights",
        )


def _missing_shards(names: Iterable[str]) -> Iterable[str]:
    """Sets of weight files whose own numbers say that some are not there."""
    found: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for name in names:
        if one := _SHARD.fullmatch(name):
            found[one["stem"], int(one["count"]), one["ext"]].add(int(one["number"]))
    for (stem, count, ext), there in sorted(found.items()):
        if len(there) < count:
            yield f"of {count} files {stem}-*-of-{count:05}{ext} there are {len(there)}"


def _wrong_size(seen: Snapshot) -> Iterable[str]:
    """Weight files that cannot be those of config.json."""
    shape = shape_of(seen)
    weights = shape.weights if shape else None
    if weights is not None and weights.differs:
        yield (
            f"the weight files hold {size(weights.files or 0)}, and by config.json the weights are "
            f"{size(weights.total)}"
        )


def plan(host: Context, release: Release, one: InstanceRequest) -> dict[str, Any]:
    """Plan one instance."""
    seen = host.candidates.models.get(one.model)
    table = load_option_table(release.options)
    options = _canonical(release.options, one.options)
    it = _One(host, release, one, _gpus(host, one), shape_of(seen), table, options)
    kv_gib = _kv_gib(it) if one.device == "cpu" else 0
    fit = _fit_cpu(it, kv_gib) if one.device == "cpu" else _fit(it)
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


@functools.cache
def _spellings(name: str) -> Mapping[str, str]:
    """What the parser of a release takes, by the name of its option table."""
    return engine_options.spellings(load_option_table(name))


def _canonical(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under the names that a table has, without dashes; unknown ones are left out."""
    known = _spellings(name)
    found = {known.get(f"--{name}"): value for name, value in options.items()}
    return {name.removeprefix("--"): value for name, value in found.items() if name is not None}


def model_bytes(host: Context, name: str) -> int:
    """Bytes that a model takes on disk; 0 where nobody knows."""
    seen = host.candidates.models.get(name)
    if seen is None:
        return 0
    shape = shape_of(seen)
    weights = shape.weights if shape and not seen.files else None
    if weights is not None and weights.differs:
        return max(weights.files or 0, weights.total)
    return seen.size or (weights.files or weights.total if weights else 0)


def offload_bytes(host: Context, one: InstanceRequest) -> int:
    """Bytes of weights that an instance keeps in main memory instead of its GPUs'."""
    value = one.options.get("cpu-offload-gb")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MANY:
        return 0
    return int(value * _GIB) * max(1, len(_gpus_of(host, one)))


def shape_of(seen: Snapshot | None) -> ModelShape | None:
    """What a model is; None where nobody looked at it."""
    if seen is None or seen.error:
        return None
    if seen.shape is not None:
        return seen.shape
    sizes = {str(row["path"]): int(row["size"]) for row in seen.files}
    weights = {path: one for path, one in sizes.items() if path.endswith(".safetensors")}
    # The same weights in the layout of their maker, beside the one that engines read.
    usual = {path: one for path, one in weights.items() if not path.startswith("consolidated")}
    config = dict(seen.config)
    if seen.architectures:
        config.setdefault("architectures", list(seen.architectures))
    total = sum((usual or weights).values()) or None
    return _shape(json.dumps(config, sort_keys=True), total)


@functools.lru_cache(maxsize=256)
def _shape(config: str, weights: int | None) -> ModelShape:
    # Many hosts serve the same model.
    return model_reader.shape_of(json.loads(config), None, weights)


def manager(request: HostRequest, facts: Facts) -> str:
    """What runs the instances: systemd, the user's or the system's, else a supervisor."""
    needed = "systemd" if request.scope == "system" else "systemd_user"
    return "systemd" if facts.platform.get(needed) else "supervisor"


def _gpus_of(host: Context, one: InstanceRequest) -> list[int]:
    """The GPUs of an instance: those asked for, or all."""
    if one.device != "gpu":
        return []
    return list(range(len(host.facts.gpus))) if one.gpus is None else list(one.gpus)


def _gpus(host: Context, one: InstanceRequest) -> list[int]:
    """The GPUs of an instance; one that is not there is refused."""
    count = len(host.facts.gpus)
    if one.device != "gpu" or one.gpus is None:
        return _gpus_of(host, one)
    beyond = [index for index in one.gpus if index >= count]
    if beyond and count:
        host.findings.add(
            "gpu-index",
            fact=f"instance {one.name} asks for GPU {', '.join(map(str, beyond))}, the host has "
            f"{count}",
            fix=f"take indexes from 0 to {count - 1}",
        )
    return list(one.gpus)


def _fit(it: _One) -> _Fit:
    """Spread a model over the GPUs of an instance, and see what is left for its requests."""
    asked, kinds = _asked(it), _kinds(it)
    if not it.gpus or not kinds:
        return _Fit(context=it.asked.context)
    shape = it.shape
    if shape is None:
        return _Fit(_given(asked), it.asked.context, why=("nobody looked at the model yet",))
    if not _is_served(it, shape):
        return _Fit(context=it.asked.context)
    it.add(_undecided(shape))
    cards = _cards(it, kinds)
    held = _held(it, shape, _lowest(kinds))
    shape = held.shape
    settings, path = _settings(it, shape, kinds)
    chosen = _layout(it, shape, cards, settings, asked)
    if chosen is None:
        return _Fit(context=it.asked.context, fp8=path)
    room, context = _context(it, shape, chosen.layout, cards, settings)
    why = [*chosen.why, *_why_context(it, shape, room, context), *held.why]
    if path is not None:
        why.append(f"{path['path'].replace('_', ' ')} arithmetic: {path['kernel'] or 'no kernel'}")
    row = _as_row(shape, room)
    row["approximate"] = row["approximate"] or held.approximate
    return _Fit(chosen.layout, context, row, path, tuple(why))


def _held(it: _One, shape: ModelShape, compute: str) -> _Held:
    """The model as the engine holds it: in the types that are asked for, or that it falls back to.

    The type that it computes in is the model's `dtype` from here on.
    """
    held = _quantised(it, shape)
    engine, asked = it.release.engine, it.word("dtype")
    if asked is not None:
        problems = fp8.check_dtype(engine, compute, asked, held.shape)
        relax = {"options": it.without("dtype")}
        it.add(replace(one, relax=relax) for one in problems)
    dtype = fp8.computed_in(engine, compute, asked, held.shape)
    if dtype is None or shape.dtype is None or dtype == fp8.full_name(shape.dtype):
        return held
    recast = _recast(it, shape, dtype=dtype, quantization=held.made)
    recast = replace(recast, quantization=held.shape.quantization)
    said = f"computed in {dtype}, which dtype asks for"
    if asked in {None, "auto"}:
        said = f"computed in {dtype}, to which {engine} falls back on compute capability {compute}"
        if fp8.full_name(shape.dtype) == "float32":
            said = f"computed in {dtype}: {engine} takes 32 bits only where dtype asks for them"
    why = f"{said}; the checkpoint is in {shape.dtype}"
    return replace(held, shape=recast, why=(*held.why, why))


def _quantised(it: _One, shape: ModelShape) -> _Held:
    """The model as the option quantization makes it, and what the engine would refuse of that."""
    asked, engine = it.word("quantization"), it.release.engine
    if asked is None or (shape.quantization is None and "quantization" in shape.missing):
        return _Held(shape)
    target, refused = fp8.check_quantization(engine, asked, shape)
    if refused:
        fix = "leave it out: the engine reads the format from the checkpoint"
        relax = {"options": it.without("quantization")}
        it.add([layout.Problem("engine-option-value", refused, fix, relax)])
    if target is None:
        return _Held(shape)
    config = fp8.online(engine, target)
    if config is not None:
        then = _recast(it, shape, quantization=config)
        if then.weights is not None and then.weights != shape.weights:
            why = f"the weights are in {target} from the start on: the engine makes them so"
            return _Held(then, (why,), approximate=True, made=config)
        shape = replace(shape, quantization=then.quantization)
    fact = (
        f"how large the weights are that the engine makes with quantization {target} is not known: "
        "memory was planned with those of the checkpoint"
    )
    fix = "start it once and read what the engine's log says"
    it.add([layout.Problem("model-undecided", fact, fix)])
    return _Held(shape, approximate=True)


def _recast(
    it: _One,
    shape: ModelShape,
    *,
    dtype: str | None = None,
    quantization: Mapping[str, Any] | None = None,
) -> ModelShape:
    """A model in other types; from its config.json, since what is not quantised stays as it is."""
    seen = it.host.candidates.models.get(it.asked.model)
    config: Mapping[str, Any] = seen.config if seen is not None else {}
    return model_reader.recast(shape, config, dtype=dtype, quantization=quantization)


def _asked(it: _One) -> layout.Asked:
    """The layout that the inventory asks for, by variables or by the engine's options."""
    asked, knobs = it.asked, it.knobs
    for field, variable, name in (
        (asked.tensor_parallel, "tensor_parallel", knobs.tensor),
        (asked.pipeline_parallel, "pipeline_parallel", knobs.pipeline),
        (asked.data_parallel, "data_parallel", knobs.data),
        (asked.expert_parallel, "expert_parallel", knobs.expert),
    ):
        if field is not None and name in it.options:
            it.host.findings.add(
                "engine-option-owned",
                fact=f"instance {asked.name}: option {name}",
                fix=f"leave it out: it comes from {variable}",
            )
    expert = asked.expert_parallel
    if expert is None and knobs.expert in it.options:
        value = it.options[knobs.expert]
        expert = value if isinstance(value, bool) else (it.count(knobs.expert) or 1) > 1
    return layout.Asked(
        tensor=asked.tensor_parallel or it.count(knobs.tensor),
        pipeline=asked.pipeline_parallel or it.count(knobs.pipeline),
        data=asked.data_parallel or it.count(knobs.data),
        expert=expert,
    )


def _given(asked: layout.Asked) -> Layout | None:
    """A layout that the inventory asks for, where the model is not known."""
    if asked.tensor is None and asked.pipeline is None and asked.data is None:
        return None
    return layout.Layout(
        asked.tensor or 1, asked.pipeline or 1, asked.data or 1, bool(asked.expert)
    )


def _kinds(it: _One) -> list[Gpu]:
    """The kinds of GPUs of an instance, each once."""
    facts = it.host.facts
    ids = {facts.gpus[index].device_id for index in it.gpus if index < len(facts.gpus)}
    found = [it.host.compat.gpu(device) for device in sorted(ids)]
    return [gpu for gpu in found if gpu is not None]


def _cards(it: _One, kinds: list[Gpu]) -> layout.Cards:
    """The GPUs of an instance as one kind: of several, the least of each."""
    rows = [it.host.compat.gpus.get(gpu.key or "", {}) for gpu in kinds]
    seen = [it.host.facts.gpus[index] for index in it.gpus if index < len(it.host.facts.gpus)]
    sizes = [_gpu_bytes(it, gpu) for gpu in seen]
    if len(kinds) > 1:
        it.host.findings.add(
            "gpus-mixed",
            fact=f"instance {it.asked.name} runs on {' and '.join(gpu.name for gpu in kinds)}",
            fix="give each kind an instance of its own",
        )
    known = [one for one in sizes if one is not None]
    return layout.Cards(
        engine=it.release.engine,
        count=len(seen),
        compute=_lowest(kinds),
        memory_bytes=min(known) if len(known) == len(sizes) else None,
        links=_links(rows, len(seen)),
        keys=tuple(gpu.key for gpu in kinds if gpu.key),
        name=kinds[0].name,
    )


def _gpu_bytes(it: _One, seen: SeenGpu) -> int | None:
    """The memory of a GPU as CUDA sees it: from what nvidia-smi shows, else from the data."""
    if seen.memory_mib is not None:
        return memory_model.visible_bytes(seen.memory_mib)
    known = it.host.compat.gpu(seen.device_id)
    if known is None:
        return None
    row = it.host.compat.gpus.get(known.key or "", {})
    return memory_model.gpu_memory(row, device_id=seen.device_id, name=known.name)[0]


def _lowest(kinds: list[Gpu]) -> str:
    return min((gpu.compute for gpu in kinds), key=numbers)


def _links(rows: list[Mapping[str, Any]], count: int) -> int | None:
    """How many GPUs NVLink joins with one another; None where it depends on a bridge."""
    if len(rows) > 1:
        return 1
    link: Mapping[str, Any] = rows[0].get("nvlink") or {}
    if not link.get("links"):
        return 1 if link else None
    meshed = "mesh" in str(link.get("wiring"))
    joined = str(rows[0].get("fabric_manager", "")).startswith("required") or meshed
    return count if joined else None


def _settings(
    it: _One, shape: ModelShape, kinds: list[Gpu]
) -> tuple[memory_model.Settings, dict[str, Any] | None]:
    """What the instance is to do, and the way of a quantised checkpoint on its GPUs."""
    knobs, compute = it.knobs, _lowest(kinds)
    device = it.release.device
    found = fp8.path(it.release.engine, device, compute, shape)
    problems = fp8.check(found, shape, f"{kinds[0].name} ({compute})")
    it.add(_with_hardware(it, shape, one) for one in problems)
    width = _WIDTHS.get(shape.dtype or "", 2)
    asked = it.word(knobs.kv_dtype)
    cache = fp8.kv_dtype(it.release.engine, device, compute, asked, width=width)
    if cache.problem is not None:
        relax = {"options": it.without(knobs.kv_dtype)} if cache.problem.relax else {}
        it.add([replace(cache.problem, relax=relax)])
    offload = it.number(knobs.offload)
    utilization = it.number(knobs.utilization)
    settings = memory_model.Settings(
        context=it.asked.context,
        concurrency=it.asked.concurrency,
        utilization=utilization if utilization is not None and utilization <= 1 else None,
        kv_dtype_bytes=cache.bytes,
        max_num_seqs=it.count(knobs.sequences),
        max_batched_tokens=it.count(knobs.batch),
        eager=it.options.get(knobs.eager) is True,
        offload_bytes=int(offload * _GIB) if offload else 0,
    )
    path = None if found is None else {"path": found.kind, "kernel": found.kernel}
    return settings, path


def _undecided(shape: ModelShape) -> Iterable[Problem]:
    """What a model's files do not say, but for what the memory model says itself."""
    unsaid = {k: why for k, why in shape.missing.items() if k not in {"weights", "kv_cache"}}
    if unsaid:
        fact = "; ".join(f"{name.replace('_', ' ')}: {why}" for name, why in unsaid.items())
        fix = "start it once and read what the engine's log says"
        yield layout.Problem("model-undecided", fact, fix)


def _with_hardware(it: _One, shape: ModelShape, problem: Problem) -> Problem:
    """A problem of precision with what would serve: the other engine, or another GPU."""
    if problem.rule != "fp8-path":
        return problem
    kinds, count = _kinds(it), len(it.gpus)
    for engine in ("vllm", "sglang"):
        release = it.host.compat.release(engine, "gpu", None)
        if engine == it.release.engine or release is None:
            continue
        found = fp8.path(engine, "gpu", _lowest(kinds), shape)
        if found is not None and found.kind != fp8.IMPOSSIBLE:
            other: dict[str, Any] = {"engine": engine, "engine_version": None, "options": {}}
            fix = f"take {engine}, which can ({found.kind.replace('_', ' ')}); or {problem.fix}"
            return replace(problem, fix=fix, relax=other)

    def serves(row: Mapping[str, Any]) -> bool:
        found = fp8.path(it.release.engine, "gpu", str(row["cc"]), shape)
        return found is not None and found.kind == fp8.NATIVE

    key = replacement(it.host, serves)
    if key is None:
        return problem
    name = it.host.compat.gpus[key]["model"]
    fix = f"use {name}; or {problem.fix}"
    return replace(problem, fix=fix, relax={"gpus": [key] * count})


def _layout(
    it: _One,
    shape: ModelShape,
    cards: layout.Cards,
    settings: memory_model.Settings,
    asked: layout.Asked,
) -> layout.Candidate | None:
    """The best layout of those that are asked for; None where the engine accepts none."""
    wanted = settings
    if settings.context is None and shape.max_context is not None:
        # A context that nobody asked for may be shorter than the model's own.
        wanted = replace(settings, context=min(shape.max_context, _LEAST_CONTEXT))
    full = memory_model.proposals(shape, cards, settings, asked)
    if full and full[0].room is not None and full[0].room.fits:
        return full[0]
    found = memory_model.proposals(shape, cards, wanted, asked)
    if found:
        return found[0]
    accept = memory_model.acceptable(shape, cards, wanted)
    problems = layout.check(shape, asked.completed(cards.count), cards.engine, cards.count, accept)
    if not problems:
        problems = [
            layout.Problem(
                "layout-gpus",
                f"no layout of {cards.count} GPUs has what is asked for",
                "leave tensor_parallel, pipeline_parallel and data_parallel out",
                {
                    "tensor_parallel": None,
                    "pipeline_parallel": None,
                    "data_parallel": None,
                    "expert_parallel": None,
                },
            )
        ]
    it.add(problems)
    return None


def _context(
    it: _One,
    shape: ModelShape,
    chosen: Layout,
    cards: layout.Cards,
    settings: memory_model.Settings,
) -> tuple[Memory, int | None]:
    """What fits, and the context to serve: the one asked for, the model's own, or what fits."""
    room = memory_model.budget(shape, chosen, cards, settings)
    if settings.context is None and room.longest_together < room.context and not room.undecided:
        # Never below what a server is good for: then the shortage is what there is to say.
        shorter = max(room.longest_together, min(_LEAST_CONTEXT, room.context))
        settings = replace(settings, context=shorter)
        room = memory_model.budget(shape, chosen, cards, settings)
    problems = memory_model.check_memory(shape, chosen, cards, settings)
    it.add(_with_way(it, shape, chosen, cards, settings, one) for one in problems)
    return room, settings.context


def _with_way(  # noqa: PLR0913, PLR0917 - what a way out depends on
    it: _One,
    shape: ModelShape,
    chosen: Layout,
    cards: layout.Cards,
    settings: memory_model.Settings,
    problem: Problem,
) -> Problem:
    """A shortage with a way out, where more GPUs of the kind would not be one: ask for less."""
    if not problem.rule.startswith("memory-") or problem.rule == "memory-offload":
        return problem
    if (found := _without_option(it, shape, chosen, cards, settings)) is not None:
        fix = f"leave {' and '.join(found)} out; or {problem.fix}"
        return replace(problem, fix=fix, relax={"options": it.without(*found)})
    if problem.relax:
        return problem
    least: dict[str, Any] = {"concurrency": None}
    for modest in (
        replace(settings, concurrency=None),
        replace(settings, concurrency=None, context=None),
    ):
        left = _shortages(shape, chosen, cards, modest)
        if not left or left[0].relax:
            relax = {**least, **(left[0].relax if left else {})}
            return replace(problem, fix=f"ask for fewer requests; or {problem.fix}", relax=relax)
        least["context"] = None
    key = replacement(it.host, lambda row: _is_larger(row, cards))
    if key is None:
        return problem
    name = it.host.compat.gpus[key]["model"]
    fix = f"take GPUs with more memory, such as {name}; or {problem.fix}"
    return replace(problem, fix=fix, relax={"gpus": [key] * cards.count, **least})


def _shortages(
    shape: ModelShape, chosen: Layout, cards: layout.Cards, settings: memory_model.Settings
) -> list[Problem]:
    """What of the memory is short."""
    return [
        one
        for one in memory_model.check_memory(shape, chosen, cards, settings)
        if one.rule.startswith("memory-") and one.rule != "memory-offload"
    ]


def _without_option(
    it: _One,
    shape: ModelShape,
    chosen: Layout,
    cards: layout.Cards,
    settings: memory_model.Settings,
) -> list[str] | None:
    """The options of the instance without which it would fit; None where they are not why."""
    knobs = it.knobs
    options = (knobs.utilization, knobs.batch, knobs.sequences)
    given = [name for name in options if it.number(name) is not None]
    for names in (*([name] for name in given), given):
        modest = replace(
            settings,
            utilization=None if knobs.utilization in names else settings.utilization,
            max_batched_tokens=None if knobs.batch in names else settings.max_batched_tokens,
            max_num_seqs=None if knobs.sequences in names else settings.max_num_seqs,
        )
        if names and not _shortages(shape, chosen, cards, modest):
            return names
    return None


def _is_larger(row: Mapping[str, Any], cards: layout.Cards) -> bool:
    has, _exact = memory_model.gpu_memory(row)
    return has is not None and has > (cards.memory_bytes or 0)


def _why_context(it: _One, shape: ModelShape, room: Memory, context: int | None) -> Iterable[str]:
    if context is not None and context != it.asked.context:
        yield (
            f"a context of {context} tokens, because the {shape.max_context} that the model reads "
            "do not fit into the cache"
        )
    if room.kv_tokens and not room.undecided:
        yield (
            f"{size(room.weights_bytes)} of weights on each GPU leave {size(room.kv_bytes)} for "
            f"{room.kv_tokens} tokens: {room.concurrency:.1f} requests of {room.context}"
        )
    if shape.weights is not None and shape.weights.differs:
        yield "the weights are counted from config.json, since the files have another size"
    elif shape.weights is not None and shape.weights.counted and shape.weights.files is None:
        yield "the weights are counted from config.json, since no weight file was seen"
    if it.release.engine != "vllm":
        yield f"the memory of {it.release.engine} is estimated more roughly than vLLM's"


def _as_row(shape: ModelShape, room: Memory) -> dict[str, Any]:
    """The prediction as the lock has it: bytes of each GPU, tokens of each replica.

    What cannot be told is null, and never the zero that it was counted with.
    """
    weighed = shape.weights is not None
    cached = not room.undecided

    def told(value: float, *, known: bool) -> float | None:
        return value if known else None

    return {
        "gpu_bytes": told(room.total_bytes, known=room.total_bytes > 0),
        "usable_bytes": told(room.usable_bytes, known=room.total_bytes > 0),
        "weights_bytes": told(room.weights_bytes, known=weighed),
        "weights_counted": shape.weights.counted if shape.weights else None,
        "reserve_bytes": told(room.reserve_bytes, known=cached),
        "kv_bytes": told(room.kv_bytes, known=cached),
        "kv_bytes_per_token": told(room.kv_token_bytes, known=room.kv_token_bytes > 0),
        "state_bytes_per_request": told(room.sequence_bytes, known=cached),
        "kv_tokens": told(room.kv_tokens, known=cached),
        # Where nobody knows what the model reads, what fits is no length that it can be asked for.
        "longest_context": told(room.longest_context, known=cached and bool(shape.max_context)),
        "concurrency": told(round(room.concurrency, 2), known=cached),
        "approximate": room.approximate,
    }


def _is_served(it: _One, shape: ModelShape) -> bool:
    """Whether the engine's release has code for the model."""
    name, release = shape.architecture, it.release
    if not name or name in load_architectures(release.architectures):
        return True
    if it.options.get("model-impl") == "transformers":
        return True
    others = [
        (other.engine, other.version)
        for engine in ("vllm", "sglang")
        for other in it.host.compat.releases(engine)
        if other.device == release.device and name in load_architectures(other.architectures)
    ]
    fix = "take a release that has it, or another model"
    relax: dict[str, Any] = {}
    if others:
        fix = f"take {others[0][0]} {others[0][1]}, which has it"
        relax = {"engine": others[0][0], "engine_version": None, "options": {}}
    elif "--model-impl" in it.table["options"]:
        fix = (
            "take a release that has it; or set option model-impl to transformers, where that "
            "library has the class in a form that the engine can run"
        )
        relax = {"options": {"model-impl": "transformers"}}
    it.host.findings.add(
        "architecture-unknown",
        fact=f"instance {it.asked.name}: {release.engine} {release.version} has no {name}",
        fix=fix,
        relax=relax,
    )
    return False


def _fit_cpu(it: _One, kv_gib: int) -> _Fit:
    """The cache of an engine on the processors, which has exactly the size that it is given."""
    shape, context = it.shape, it.asked.context
    if shape is None:
        return _Fit(context=context)
    found = fp8.path(it.release.engine, "cpu", None, shape, amx=_AMX in it.host.facts.cpu_flags)
    it.add(fp8.check(found, shape, "processors"))
    _is_served(it, shape)
    if not shape.architecture:
        it.add(_undecided(shape))
    if context and shape.max_context and context > shape.max_context:
        it.host.findings.add(
            "context-model",
            fact=f"instance {it.asked.name}: a context of {context} tokens, and the model reads "
            f"{shape.max_context}",
            fix=f"ask for {shape.max_context} tokens",
        )
    tokens = memory_model.cpu_kv_tokens(
        shape,
        kv_gib * _GIB,
        _cpu_width(it),
        block=it.count("block-size") or 128,
        context=context or shape.max_context,
    )
    if tokens is None:
        return _Fit(context=context)
    each = context or shape.max_context or 1
    row = {
        "kv_bytes": kv_gib * _GIB,
        "kv_tokens": tokens,
        "concurrency": round(tokens / each, 2),
        "approximate": False,
    }
    why = f"{kv_gib} GiB of cache hold {tokens} tokens: {tokens / each:.1f} requests of {each}"
    return _Fit(context=context, memory=row, why=(why,))


def _cpu_width(it: _One) -> int:
    """Bytes of a value in the cache of an engine on the processors."""
    dtype = {**it.options, **_needed_options(it, say=False)}.get("dtype")
    return _WIDTHS.get(str(dtype), 2)


def _kv_gib(it: _One) -> int:
    """GiB of key-value cache for a CPU instance: some requests of full length, at least one GiB."""
    shape = it.shape
    if shape is None or not (shape.kv_heads and shape.head_dim):
        return 1
    layers = (shape.attention_layers or shape.layers or 0) + shape.window_layers
    per_token = 2 * layers * shape.kv_heads * shape.head_dim * _cpu_width(it)
    context = it.asked.context or shape.max_context or 0
    requests = it.asked.concurrency or _CPU_REQUESTS
    return max(1, math.ceil(requests * context * per_token / _GIB))


def _argv(it: _One, fit: _Fit) -> list[str]:
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
    options = {**_needed_options(it), **one.options}
    more, issues = engine_options.arguments(it.table, options, _spellings(it.release.options))
    for issue in issues:
        kept = {k: v for k, v in one.options.items() if not _is_about(issue, k)}
        fact = f"instance {one.name}: {issue.fact}"
        it.host.findings.add(issue.rule, fact=fact, fix=issue.fix, relax={"options": kept})
    return argv + more


def _is_about(issue: engine_options.OptionIssue, name: str) -> bool:
    return name in issue.fact.replace(":", " ").split()


def _layout_arguments(it: _One, chosen: Layout) -> list[str]:
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


def _needed_options(it: _One, *, say: bool = True) -> dict[str, str]:
    """The options without which a release is wrong on this host, unless the inventory has them."""
    needed = it.release.amx_dtype
    if not needed or _AMX not in it.host.facts.cpu_flags:
        return {}
    asked = it.options.get("dtype", needed)
    if asked == needed:
        return {"dtype": needed}
    if say:
        it.host.findings.add(
            "engine-amx",
            fact=f"instance {it.asked.name} asks for dtype {asked}, the processor has AMX",
            fix=f"leave dtype out: {needed} is taken",
        )
    return {}


def _env(it: _One, kv_gib: int) -> dict[str, str]:
    """What is particular to an instance; what every one has, the role adds."""
    if it.release.device == "cpu":
        return {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, it.gpus)),
    }


def _start_timeout(it: _One) -> int:
    """Seconds that a start may take: the engine's own work, and reading the weights."""
    weights = it.shape.weights if it.shape else None
    if weights is None or it.release.device == "cpu":
        return _START_TIMEOUT
    return _START_TIMEOUT + weights.total // _LOAD_BYTES_PER_SECOND


def _main_memory(it: _One, seen: Snapshot | None, kv_gib: int) -> int | None:
    """Main memory of an instance, where the engine was measured."""
    release = it.release
    if release.base_memory_bytes is None or seen is None:
        return None
    wide = 2 if release.amx_dtype and _AMX in it.host.facts.cpu_flags else 1
    return release.base_memory_bytes + wide * seen.size + kv_gib * _GIB
