# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model fits an instance: layout, precision, memory, context, on GPUs or processors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    fp8,
    layout,
    memory_model,
    model_reader,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    load_architectures,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import (
    replacement,
    size,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_one import (
    AMX,
    GIB,
    One,
    needed_options,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Gpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import SeenGpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import Layout, Problem
    from ansible_collections.llmetal.inference.plugins.plugin_utils.memory_model import Memory
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape


_CPU_REQUESTS = 8
_LEAST_CONTEXT = 2048
"""A server whose requests are shorter is of no use; where nobody asked, less is refused."""


@dataclass(frozen=True)
class Fit:
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


def on_gpus(it: One) -> Fit:
    """Spread a model over the GPUs of an instance, and see what is left for its requests."""
    asked, kinds = _asked(it), _kinds(it)
    if not it.gpus or not kinds:
        return Fit(context=it.asked.context)
    shape = it.shape
    if shape is None:
        return Fit(_given(asked), it.asked.context, why=("nobody looked at the model yet",))
    if not _is_served(it, shape):
        return Fit(context=it.asked.context)
    it.add(_undecided(shape))
    cards = _cards(it, kinds)
    held = _held(it, shape, _lowest(kinds))
    shape = held.shape
    settings, path = _settings(it, shape, kinds)
    chosen = _layout(it, shape, cards, settings, asked)
    if chosen is None:
        return Fit(context=it.asked.context, fp8=path)
    room, context = _context(it, shape, chosen.layout, cards, settings)
    why = [*chosen.why, *_why_context(it, shape, room, context), *held.why]
    if path is not None:
        why.append(f"{path['path'].replace('_', ' ')} arithmetic: {path['kernel'] or 'no kernel'}")
    row = _as_row(shape, room)
    row["approximate"] = row["approximate"] or held.approximate
    return Fit(chosen.layout, context, row, path, tuple(why))


def _held(it: One, shape: ModelShape, compute: str) -> _Held:
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


def _quantised(it: One, shape: ModelShape) -> _Held:
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
    it: One,
    shape: ModelShape,
    *,
    dtype: str | None = None,
    quantization: Mapping[str, Any] | None = None,
) -> ModelShape:
    """A model in other types; from its config.json, since what is not quantised stays as it is."""
    seen = it.host.candidates.models.get(it.asked.model)
    config: Mapping[str, Any] = seen.config if seen is not None else {}
    return model_reader.recast(shape, config, dtype=dtype, quantization=quantization)


def _asked(it: One) -> layout.Asked:
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


def _kinds(it: One) -> list[Gpu]:
    """The kinds of GPUs of an instance, each once."""
    facts = it.host.facts
    ids = {facts.gpus[index].device_id for index in it.gpus if index < len(facts.gpus)}
    found = [it.host.compat.gpu(device) for device in sorted(ids)]
    return [gpu for gpu in found if gpu is not None]


def _cards(it: One, kinds: list[Gpu]) -> layout.Cards:
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


def _gpu_bytes(it: One, seen: SeenGpu) -> int | None:
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
    it: One, shape: ModelShape, kinds: list[Gpu]
) -> tuple[memory_model.Settings, dict[str, Any] | None]:
    """What the instance is to do, and the way of a quantised checkpoint on its GPUs."""
    knobs, compute = it.knobs, _lowest(kinds)
    device = it.release.device
    found = fp8.path(it.release.engine, device, compute, shape)
    problems = fp8.check(found, shape, f"{kinds[0].name} ({compute})")
    it.add(_with_hardware(it, shape, one) for one in problems)
    width = memory_model.width_of(shape.dtype)
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
        offload_bytes=int(offload * GIB) if offload else 0,
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


def _with_hardware(it: One, shape: ModelShape, problem: Problem) -> Problem:
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
    it: One,
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
    it: One,
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
    it: One,
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
    it: One,
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


def _why_context(it: One, shape: ModelShape, room: Memory, context: int | None) -> Iterable[str]:
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


def _is_served(it: One, shape: ModelShape) -> bool:
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


def on_cpu(it: One, kv_gib: int) -> Fit:
    """The cache of an engine on the processors, which has exactly the size that it is given."""
    shape, context = it.shape, it.asked.context
    if shape is None:
        return Fit(context=context)
    found = fp8.path(it.release.engine, "cpu", None, shape, amx=AMX in it.host.facts.cpu_flags)
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
        kv_gib * GIB,
        _cpu_width(it),
        block=it.count("block-size") or 128,
        context=context or shape.max_context,
    )
    if tokens is None:
        return Fit(context=context)
    each = context or shape.max_context or 1
    row = {
        "kv_bytes": kv_gib * GIB,
        "kv_tokens": tokens,
        "concurrency": round(tokens / each, 2),
        "approximate": False,
    }
    why = f"{kv_gib} GiB of cache hold {tokens} tokens: {tokens / each:.1f} requests of {each}"
    return Fit(context=context, memory=row, why=(why,))


def _cpu_width(it: One) -> int:
    """Bytes of a value in the cache of an engine on the processors."""
    dtype = {**it.options, **needed_options(it, say=False)}.get("dtype")
    return memory_model.width_of(None if dtype is None else str(dtype))


def cache_gib(it: One) -> int:
    """GiB of key-value cache for a CPU instance: some requests of full length, at least one GiB."""
    context = (it.asked.context or it.shape.max_context or 0) if it.shape else 0
    requests = it.asked.concurrency or _CPU_REQUESTS
    wanted = it.shape and memory_model.cpu_cache_bytes(it.shape, _cpu_width(it), context, requests)
    return max(1, math.ceil((wanted or 0) / GIB))
