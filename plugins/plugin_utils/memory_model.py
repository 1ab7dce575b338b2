# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What fits into a GPU's memory: weights, what the engine works with, and the cache that is left.

The arithmetic is vLLM's own where it has one (blocks of the cache, groups of layers, pages of
recurrent states); what it measures at its start is estimated, from recorded starts and rather too
high than too low. SGLang's sum is built alike and is approximate. The numbers stand in
data/memory.yml.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import compat, versions
from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import (
    Asked,
    Candidate,
    Cards,
    Layout,
    Problem,
    dense_width,
    expert_ranks,
    gib,
    propose,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_state import item_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape

GIB = 2**30
_MIB = 2**20
_ENDLESS = 2**40
_FALLBACK_CONTEXT = 8192
_MOST_GPUS = 16
_GROUP_SLACK = 1.5
_EIGHT_BITS = 8
_LEAST_ROOM = GIB // 10
"""No model that anybody serves is smaller."""


@dataclass(frozen=True)
class Settings:
    """What an instance is to do, as far as memory goes; None leaves it to the engine."""

    context: int | None = None
    """Tokens of one request; by default as many as the model reads."""
    concurrency: int | None = None
    """Requests of that length that must fit at once, over all replicas."""
    utilization: float | None = None
    kv_dtype_bytes: int | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    eager: bool = False
    offload_bytes: int = 0
    """Of the weights on each GPU, what stays in the host's memory."""
    graphs_counted: bool = True
    """Whether the engine keeps room for its graphs (vLLM since 0.32 does; 0.26 did not)."""


@dataclass(frozen=True)
class Memory:
    """One GPU's memory under a layout: the fullest one, where stages differ."""

    total_bytes: int
    usable_bytes: int
    weights_bytes: int
    activation_bytes: int
    graph_bytes: int
    other_bytes: int
    """What CUDA and NCCL hold beside the engine."""
    kv_bytes: int
    """Left for the cache; 0 where nothing is."""
    kv_token_bytes: int
    """Of the cache, what a token takes in the layers that keep the whole context."""
    sequence_bytes: int
    """Of the cache, what a request takes whatever its length (recurrent states)."""
    kv_tokens: int
    """Tokens in the cache of one replica, as vLLM prints it (GPU KV cache size)."""
    context: int
    longest_context: int
    """The longest request that fits; no longer than the model reads."""
    longest_together: int
    """The longest requests of which as many fit as were asked for."""
    requests_each: int
    """Whole requests of the context that fit at once into one replica."""
    concurrency: float
    """Requests of the context that fit at once, over all replicas."""
    fits: bool | None
    """Whether all that was asked for fits; None where that cannot be told."""
    short_bytes: int
    """What is missing for it on a GPU."""
    approximate: bool
    undecided: tuple[str, ...] = ()
    """Why something cannot be told."""

    @property
    def reserve_bytes(self) -> int:
        """What is neither weights nor cache."""
        return self.activation_bytes + self.graph_bytes + self.other_bytes


@dataclass(frozen=True)
class Way:
    """A way to serve a model that does not fit as it was asked for."""

    kind: str
    """cards, layout, four_bit, fp8_kv, context, cpu_offload or smaller_model."""
    text: str
    relax: Mapping[str, Any] | None = None
    """The way as changes of a question, where it is one that is known to work."""


@dataclass(frozen=True)
class _Pool:
    """The cache of one GPU, in blocks that all groups of layers draw from."""

    block: int
    block_bytes: int
    token_bytes: int
    whole: int
    """Groups of layers that keep the whole context."""
    windows: int
    window_tokens: int
    states: int
    """Blocks of a request's recurrent states."""

    def blocks(self, context: int) -> int:
        """Blocks of one request."""
        found = self.whole * -(-context // self.block) + self.states
        if self.windows:
            kept = min(self.window_tokens, context)
            # A window need not begin where a block does.
            found += self.windows * (-(-kept // self.block) + 1)
        return max(1, found)

    def longest(self, blocks: int) -> int:
        """The longest request in a number of blocks; 0 where none fits."""
        if self.blocks(1) > blocks:
            return 0
        if not self.whole:
            return _ENDLESS
        most = (blocks - self.states) // self.whole
        if not self.windows:
            return max(0, most * self.block)
        low, high = 1, max(1, most * self.block)
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def width_of(dtype: str | None) -> int:
    """Bytes of a value of a type; of one that is not known, two, as most models have."""
    return item_size(dtype) or 2


def main_memory(what: str) -> int:
    """Bytes of the host's memory that a `server`, a `worker` or a `compiler` takes."""
    return int(_data()["host"][f"{what}_bytes"])


def gpu_memory(
    row: Mapping[str, Any], *, device_id: str = "", name: str = ""
) -> tuple[int | None, bool]:
    """The memory of a GPU as CUDA sees it, and whether that comes from a reading.

    A reading (memory_mib_seen) is what nvidia-smi shows, of which CUDA sees a little less. Else
    there is the size on the label: GPUs with GDDR memory and error correction lose a sixteenth of
    it, others hardly anything. That is an assumption, on the safe side. Of several sizes the one in
    the device's name counts, else the smallest.

    Args:
        row: the GPU in gpus.yml.
        device_id: its PCI device id.
        name: the device's name.
    """
    data = _data()["gpu"]
    if row.get("memory_mib_seen"):
        return visible_bytes(int(row["memory_mib_seen"])), True
    label = row.get("memory_gb")
    if isinstance(label, list):
        named = {int(size) for size in re.findall(r"(\d+) ?GB?\b", name)} & set(label)
        label = min(named or label)
    label = data["size_gb_of_device"].get(device_id, label)
    if not isinstance(label, int | float):
        return None, False
    ids = set(row.get("pci_ids") or ())
    share = data["label_share"]
    for key, ids_of in _ids_of_gpus().items():
        if ids & ids_of:
            if key in data["inline_ecc"]:
                share = data["label_share_inline_ecc"]
            share = data["label_share_of"].get(key, share)
    return int(label * GIB * share), False


def visible_bytes(total_mib: int) -> int:
    """What CUDA sees of the memory that nvidia-smi shows."""
    return int(total_mib * _MIB * _data()["gpu"]["visible_share"])


def defaults(engine: str, memory_bytes: int, name: str = "") -> tuple[int, int]:
    """How many requests and how many tokens a server computes at once, if nobody says."""
    for row in _data()[engine if engine == "sglang" else "vllm"]["batches"]:
        if memory_bytes >= row["from_gib"] * GIB and row.get("not_named", "\n") not in name.lower():
            return row["sequences"], row["tokens"]
    return 256, 2048


def budget(shape: ModelShape, layout: Layout, cards: Cards, settings: Settings) -> Memory:
    """What a layout leaves for the cache, and what fits into it.

    The peak of the activations is that of the longest step: for each token twice the hidden size
    (the residual and a layer's input) and three times the width of the MLP (gate, up and their
    product), in the model's type; and the logits of each request, in that and in 32 bits. Experts
    have the workspace of vLLM's Triton kernel instead, for each chosen one the larger of its width
    and the hidden size and the larger of twice its width and the hidden size; twice, since it grows
    in steps that all count; and with data parallel for the tokens of all replicas, which gather
    them. Against four recorded starts of vLLM 0.26 (16,384 tokens, 256 requests) that is 1.59 GiB
    for 1.59 and 1.35 (8B, BF16 and FP8) and 2.34 GiB for 2.21 and 2.33 (30B-A3B), so that the cache
    comes out right or up to 0.2 % too small; 1.4 % with the graphs, which that release left out.

    Args:
        shape: the model.
        layout: how it is spread; one that layout.check() accepts.
        cards: the GPUs and the engine.
        settings: what it is to do.
    """
    layout = _sound(layout)
    total = max(0, cards.memory_bytes or 0)
    sequences, batch = _batches(cards, settings)
    most = _positive(shape.max_context)
    context = _positive(settings.context) or most or _FALLBACK_CONTEXT
    weights = _weights(shape, layout, cards.engine)
    activation = _activation(shape, layout, cards.engine, sequences, batch)
    graphs = 0 if settings.eager or not settings.graphs_counted else _graphs(shape, layout)
    other = int(_data()["reserve"]["non_torch_gib"] * GIB)
    together = layout.tensor * layout.pipeline
    if together > 1 or (shape.experts is not None and expert_ranks(cards.engine, layout) > 1):
        other += int(_data()["reserve"]["tensor_group_gib"] * GIB)
    usable = _usable(total, layout, cards, settings, (sequences, batch))
    if cards.engine == "sglang":
        # Its reserve is what mem_fraction_static leaves; the rest is weights and cache.
        activation, graphs, other = total - usable, 0, 0
        reserved = 0
    else:
        reserved = activation + graphs + other
    held = max(0, (weights or 0) - settings.offload_bytes)
    left = usable - held - reserved
    pool = _pool(shape, layout, cards.engine, width=settings.kv_dtype_bytes, batch=batch)
    undecided = tuple(_undecided(shape, cards, weights, pool))
    blocks = max(0, left) // pool.block_bytes if pool is not None else 0
    together = max(1, -(-(settings.concurrency or 1) // layout.data))
    needed = pool.blocks(context) if pool is not None else 0
    short = (
        max(0, needed * together * pool.block_bytes - left) if pool is not None else max(0, -left)
    )
    longest = pool.longest(blocks) if pool is not None else 0
    longest_together = pool.longest(blocks // together) if pool is not None else 0
    return Memory(
        total_bytes=total,
        usable_bytes=usable,
        weights_bytes=held,
        activation_bytes=activation,
        graph_bytes=graphs,
        other_bytes=other,
        kv_bytes=max(0, left),
        kv_token_bytes=pool.token_bytes if pool is not None else 0,
        sequence_bytes=pool.states * pool.block_bytes if pool is not None else 0,
        kv_tokens=blocks * context // needed if needed else 0,
        context=context,
        longest_context=min(most or _ENDLESS, longest),
        longest_together=min(most or _ENDLESS, longest_together),
        requests_each=blocks // needed if needed else 0,
        concurrency=blocks / needed * layout.data if needed else 0.0,
        fits=short == 0 if not undecided or (left < 0 and total > 0) else None,
        short_bytes=short if total else 0,
        approximate=cards.engine != "vllm" or bool(undecided),
        undecided=undecided,
    )


def proposals(
    shape: ModelShape, cards: Cards, settings: Settings, asked: Asked | None = None
) -> list[Candidate]:
    """The layouts for some GPUs, the best one first, each with its memory."""
    return propose(shape, cards, lambda layout: budget(shape, layout, cards, settings), asked)


def acceptable(shape: ModelShape, cards: Cards, settings: Settings) -> Callable[[Layout], bool]:
    """A question for layout.check(): whether a layout leaves the memory that was asked for."""
    return lambda layout: budget(shape, layout, cards, settings).fits is not False


def check_memory(
    shape: ModelShape, layout: Layout, cards: Cards, settings: Settings
) -> list[Problem]:
    """What does not fit, each with a way out that was computed to work.

    Args:
        shape: the model.
        layout: how it is spread; one that layout.check() accepts.
        cards: the GPUs and the engine.
        settings: what it is to do.
    """
    found: list[Problem] = []
    layout, limit = _sound(layout), _positive(shape.max_context)
    if limit is not None and settings.context is not None and settings.context > limit:
        short = replace(settings, context=limit)
        longest = budget(shape, layout, cards, short).longest_together or limit
        fact = f"a context of {settings.context} tokens, and the model reads {limit}"
        context = min(limit, longest)
        found.append(
            Problem("context-model", fact, f"ask for {context} tokens", {"context": context})
        )
        settings = short
    memory = budget(shape, layout, cards, settings)
    if settings.offload_bytes > 0:
        seconds = settings.offload_bytes / (_pcie_rate(cards) * 1e9)
        fact = (
            f"{gib(settings.offload_bytes)} of weights for each GPU in the host's memory take "
            f"{seconds:.2f} s of every step at {_pcie_rate(cards):g} GB/s"
        )
        found.append(Problem("memory-offload", fact, "take more GPUs or smaller weights"))
    if memory.undecided:
        fact = "; ".join(memory.undecided)
        found.append(
            Problem("model-undecided", fact, "start it once and read what the engine's log says")
        )
    if memory.fits is False:
        found.append(_shortage(shape, layout, cards, settings, memory))
    return found


def ways_out(shape: ModelShape, layout: Layout, cards: Cards, settings: Settings) -> list[Way]:
    """What can be done for a model that does not fit, with what each way costs.

    Args:
        shape: the model.
        layout: the layout that does not fit.
        cards: the GPUs and the engine.
        settings: what it is to do.
    """
    memory = budget(shape, layout, cards, settings)
    ways: list[Way] = []
    spread = _more_cards(shape, layout, cards, settings, memory)
    if spread is not None:
        ways.append(spread)
    if memory.longest_together > 0:
        text = f"a context of {memory.longest_together} tokens instead of {memory.context}"
        ways.append(Way("context", text, {"context": memory.longest_together}))
    ways += _fp8_kv(shape, layout, cards, settings, memory)
    # Nobody asked for all that the model reads, so what these cost is said for a short context.
    modest = settings
    if settings.context is None and memory.longest_context < 1:
        modest = replace(settings, context=min(_FALLBACK_CONTEXT, memory.context))
        memory = budget(shape, layout, cards, modest)
    ways += _four_bit(shape, layout, cards, modest, memory)
    ways += _offload(shape, layout, cards, modest, memory)
    room = max(0, memory.usable_bytes - memory.reserve_bytes)
    if cards.engine == "sglang":
        room = memory.usable_bytes
    if room >= _LEAST_ROOM:
        text = f"a model with less than {gib(room)} of weights on each GPU, cache included"
        ways.append(Way("smaller_model", text))
    return ways


def cpu_cache_bytes(shape: ModelShape, dtype_bytes: int, context: int, requests: int) -> int | None:
    """Bytes of cache on processors that some requests of a length take; None where not known."""
    pool = _cpu_pool(shape, dtype_bytes, _data()["vllm"]["cpu_block_tokens"])
    return None if pool is None else requests * pool.blocks(max(1, context)) * pool.block_bytes


def _cpu_pool(shape: ModelShape, dtype_bytes: int, block: int) -> _Pool | None:
    return _pool(
        shape, Layout(), "vllm", width=dtype_bytes, batch=_FALLBACK_CONTEXT, block=max(1, block)
    )


def cpu_kv_tokens(
    shape: ModelShape,
    space_bytes: int,
    dtype_bytes: int,
    *,
    block: int = 128,
    context: int | None = None,
) -> int | None:
    """Tokens in the cache of a vLLM on processors (its line "CPU KV cache size").

    Its cache has exactly the size of VLLM_CPU_KVCACHE_SPACE, in whole blocks of 128 tokens over all
    layers. The engine prints what requests of the full context can hold, so a context that ends
    inside a block makes the number smaller; without a context it is the number of whole blocks.

    Args:
        shape: the model.
        space_bytes: the size of the cache.
        dtype_bytes: bytes of a value.
        block: tokens of a block.
        context: the longest request.
    """
    pool = _cpu_pool(shape, dtype_bytes, block)
    if pool is None:
        return None
    blocks = max(0, space_bytes) // pool.block_bytes
    tokens = _positive(context) or pool.block
    return blocks * tokens // pool.blocks(tokens)


def _usable(
    total: int, layout: Layout, cards: Cards, settings: Settings, batches: tuple[int, int]
) -> int:
    """The part of a GPU that an engine fills with weights and cache, and vLLM with all it needs."""
    if settings.utilization is not None:
        return int(total * settings.utilization)
    if cards.engine != "sglang":
        return int(total * _data()["vllm"]["utilization"])
    row, (sequences, batch) = _data()["sglang"], batches
    if not total:
        return 0
    reserve = row["reserve_mib"] + max(batch, 2048) * row["reserve_mib_per_token"]
    reserve += sequences * row["reserve_mib_per_graph"] if not settings.eager else 0
    reserve += layout.tensor * layout.pipeline * row["reserve_mib_per_gpu"]
    if total > 60 * GIB:
        reserve = max(reserve, row["reserve_mib_least_above_gib_60"])
    return max(0, total - int(reserve * _MIB))


def _sound(layout: Layout) -> Layout:
    return Layout(
        max(1, layout.tensor), max(1, layout.pipeline), max(1, layout.data), layout.expert
    )


def _positive(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def _batches(cards: Cards, settings: Settings) -> tuple[int, int]:
    sequences, batch = defaults(cards.engine, cards.memory_bytes or 0, cards.name)
    return (
        _positive(settings.max_num_seqs) or sequences,
        _positive(settings.max_batched_tokens) or batch,
    )


def _weights(shape: ModelShape, layout: Layout, engine: str) -> int | None:
    """Bytes of weights on the fullest GPU; None where they are not known."""
    weights = shape.weights
    if weights is None or weights.total <= 0:
        return None
    width = width_of(shape.dtype)
    experts = max(0, weights.experts)
    rest = max(0, weights.total - weights.replicated - experts - weights.drafts)
    stage = _stage(shape.layers, layout.pipeline)
    ends = 0
    if layout.pipeline > 1 and shape.vocab and shape.hidden:
        # The first stage holds the embedding, the last one the head: neither is split over stages.
        table = shape.vocab * shape.hidden * width
        ends = min(rest, table)
        rest = max(0, rest - (table if shape.tied else 2 * table))
    ranks = expert_ranks(engine, layout)
    share = 1 / ranks
    if layout.expert and shape.experts is not None and shape.experts.count > 0:
        # Experts stay whole, so the fullest GPU has one more where they do not divide.
        share = min(1.0, -(-shape.experts.count // ranks) / shape.experts.count)
    held = (rest * stage + ends) / layout.tensor + experts * stage * share
    # Encoders of images are split as well, with the means of their own that engines have for it.
    vision = min(max(0, weights.vision), max(0, weights.replicated))
    return math.ceil(held + max(0, weights.replicated) - vision + vision / layout.tensor)


def _stage(layers: int | None, stages: int) -> float:
    """The part of the layers that the fullest stage has."""
    if stages == 1 or not layers or layers < 1:
        return 1 / stages
    return -(-layers // stages) / layers


def _activation(shape: ModelShape, layout: Layout, engine: str, sequences: int, batch: int) -> int:
    row, width = _data()["reserve"], max(2, width_of(shape.dtype))
    hidden, mlp = max(0, shape.hidden or 0), max(0, dense_width(shape) or 0) // layout.tensor
    values = row["mlp_copies"] * mlp
    experts = shape.experts
    if experts is not None and experts.intermediate:
        ranks = 1 if layout.expert else expert_ranks(engine, layout)
        wide = max(0, experts.intermediate) // ranks
        chosen = max(1, experts.per_token or 1)
        # vLLM's replicas gather their tokens for the experts.
        gathered = layout.data if engine == "vllm" else 1
        workspace = max(wide, hidden) + max(2 * wide, hidden)
        values = max(values, row["expert_steps"] * chosen * workspace * gathered)
    tokens = batch * width * (row["hidden_copies"] * hidden + values)
    logits = row["logit_bytes"] + width - 2
    return int(tokens + sequences * max(0, shape.vocab or 0) * logits)


def _graphs(shape: ModelShape, layout: Layout) -> int:
    layers = max(0, shape.layers or 0)
    return int(-(-layers // layout.pipeline) * _data()["reserve"]["graphs_gib_per_layer"] * GIB)


def _pool(  # noqa: PLR0913 - what the cache is made of
    shape: ModelShape,
    layout: Layout,
    engine: str,
    *,
    width: int | None,
    batch: int,
    block: int | None = None,
) -> _Pool | None:
    """The cache as vLLM lays it out; None where the model does not say what it caches.

    Layers of one kind form groups of equal size (that of the rarest kind, or of the commonest where
    both are near), and a block holds the same number of tokens in each layer of a group. A
    recurrent state takes whole blocks, which is why these are then larger.
    """
    whole, windows = shape.attention_layers, max(0, shape.window_layers)
    if whole is None or whole < 0:
        return None
    token = _token_bytes(shape, layout, width or width_of(shape.dtype))
    if token is None:
        return None
    if shape.window is None or shape.window < 1:
        whole, windows = whole + windows, 0
    recurrent = shape.recurrent
    kept = max(0, recurrent.layers) if recurrent is not None else 0
    state = 0
    if recurrent is not None and kept:
        splits = recurrent.heads is not None and recurrent.heads % layout.tensor == 0
        state = -(-max(0, recurrent.state_bytes) // kept // (layout.tensor if splits else 1))
    counts = [-(-count // layout.pipeline) for count in (whole, windows, kept)]
    present = [count for count in counts if count]
    if not present or (not token and not state):
        return None
    size = min(present)
    if max(present) < size * _GROUP_SLACK:
        size = max(present)
    tokens = block or _data()["vllm"]["block_tokens"]
    if state and token:
        tokens *= max(1, -(-state // (tokens * token)))
    page = tokens * token if token else state
    resident = _data()["vllm"]["recurrent_blocks"] if engine == "vllm" else 1
    return _Pool(
        block=tokens,
        block_bytes=max(1, size * page),
        token_bytes=token * counts[0],
        whole=-(-counts[0] // size),
        windows=-(-counts[1] // size),
        window_tokens=(shape.window or 1) - 1 + batch,
        states=resident * -(-counts[2] // size),
    )


def _token_bytes(shape: ModelShape, layout: Layout, width: int) -> int | None:
    """Bytes of a token in one layer on one GPU; 0 where no layer caches any."""
    if shape.latent is not None:
        return max(0, shape.latent.rank + shape.latent.rope) * width
    if not shape.attention_layers and not shape.window_layers:
        return 0
    if not shape.kv_heads or not shape.head_dim or min(shape.kv_heads, shape.head_dim) < 1:
        return None
    return 2 * max(1, shape.kv_heads // layout.tensor) * shape.head_dim * width


def _undecided(
    shape: ModelShape, cards: Cards, weights: int | None, pool: _Pool | None
) -> list[str]:
    found = []
    if weights is None:
        found.append(f"weights: {shape.missing.get('weights', 'their size is not known')}")
    if pool is None:
        why = shape.missing.get("kv_cache", "what a token takes in it is not known")
        found.append(f"cache: {why}")
    if not cards.memory_bytes:
        found.append("GPU memory: its size is not known")
    return found


def _shortage(
    shape: ModelShape, layout: Layout, cards: Cards, settings: Settings, memory: Memory
) -> Problem:
    """The shortage of a layout, under the rule of what is short first."""
    ways = ways_out(shape, layout, cards, settings)
    shown = f"{gib(memory.usable_bytes)} of {gib(memory.total_bytes)}"
    if memory.longest_context < 1:
        rule = "memory-weights"
        reserve = 0 if cards.engine == "sglang" else memory.reserve_bytes
        alone = memory.weights_bytes + reserve - memory.usable_bytes
        lack = f"{gib(alone)} short" if alone > 0 else "too little left"
        fact = (
            f"{gib(memory.weights_bytes)} of weights on each GPU under {layout.as_text()} and "
            f"{gib(reserve)} to work with, and the engine uses {shown}: {lack}, before any cache"
        )
    elif memory.requests_each < 1:
        rule = "memory-kv"
        fact = (
            f"a context of {memory.context} tokens, and the cache of {gib(memory.kv_bytes)} holds "
            f"{memory.longest_context} of one request: {gib(memory.short_bytes)} short"
        )
    else:
        rule = "memory-concurrency"
        fact = (
            f"{settings.concurrency} requests of {memory.context} tokens, and the cache holds "
            f"{memory.concurrency:.1f} of them: {gib(memory.short_bytes)} short"
        )
    relax = _relaxed(rule, layout, settings, memory, ways)
    fix = "; or ".join(way.text for way in ways) or "take GPUs with more memory"
    return Problem(rule, fact, fix, relax)


def _relaxed(
    rule: str, layout: Layout, settings: Settings, memory: Memory, ways: list[Way]
) -> dict[str, Any]:
    """The changes of a question that make it fit: the mildest first."""
    if rule == "memory-concurrency":
        # Whole requests of each replica, since a request stays where it began.
        return {"concurrency": memory.requests_each * layout.data}
    if rule == "memory-kv":
        if memory.longest_together > 0:
            return {"context": memory.longest_together}
        if memory.longest_context > 0 and settings.concurrency is not None:
            return {"context": memory.longest_context, "concurrency": layout.data}
    first = next((way.relax for way in ways if way.relax is not None), None)
    return dict(first or {})


def _more_cards(
    shape: ModelShape, layout: Layout, cards: Cards, settings: Settings, memory: Memory
) -> Way | None:
    """The fewest GPUs of the same kind on which it fits, from those it has on.

    Where nobody asked for a context, a shorter one than the model reads is no loss: then fewer GPUs
    with the context that they have room for come before more GPUs with all of it.
    """
    for count in range(max(1, cards.count), _MOST_GPUS + 1):
        more = replace(cards, count=count)
        best = _fitting(shape, more, settings)
        stated = ""
        if best is None and settings.context is None and memory.longest_context < 1:
            best = _fitting(shape, more, replace(settings, context=_FALLBACK_CONTEXT))
        if best is None or (best == layout and count == cards.count):
            continue
        relax, then = best.as_answers(), budget(shape, best, more, settings)
        if not then.fits:
            relax["context"] = then.longest_together
            stated = f" with a context of {then.longest_together}"
        held = f"{gib(then.weights_bytes)} of weights each, {then.kv_tokens} tokens of cache"
        if count == cards.count:
            text = f"{best.as_text()} on these GPUs{stated} ({held})"
            return Way("layout", text, relax)
        text = f"{count} GPUs of this kind as {best.as_text()}{stated} ({held})"
        if not cards.keys:
            return Way("cards", text)
        return Way("cards", text, {"gpus": [cards.keys[0]] * count, **relax})
    return None


def _fitting(shape: ModelShape, cards: Cards, settings: Settings) -> Layout | None:
    best = next(iter(proposals(shape, cards, settings)), None)
    if best is None or best.room is None or not best.room.fits:
        return None
    return best.layout


def _fp8_kv(
    shape: ModelShape, layout: Layout, cards: Cards, settings: Settings, memory: Memory
) -> list[Way]:
    width = settings.kv_dtype_bytes or width_of(shape.dtype)
    able = cards.compute is not None and versions.is_at_least(cards.compute, "8.9")
    if width == 1 or not able or not memory.kv_bytes:
        return []
    halved = budget(shape, layout, cards, replace(settings, kv_dtype_bytes=1))
    text = f"an FP8 cache, which holds {halved.kv_tokens} tokens instead of {memory.kv_tokens}"
    value = "fp8_e4m3" if cards.engine == "sglang" else "fp8"
    relax = {"options": {"kv-cache-dtype": value}} if halved.fits else None
    return [Way("fp8_kv", text, relax)]


def _four_bit(
    shape: ModelShape, layout: Layout, cards: Cards, settings: Settings, memory: Memory
) -> list[Way]:
    weights, quantization = shape.weights, shape.quantization
    bits = (quantization.bits or _EIGHT_BITS) if quantization is not None else 2 * _EIGHT_BITS
    if weights is None or bits < _EIGHT_BITS or not memory.weights_bytes:
        return []
    table = (shape.vocab or 0) * (shape.hidden or 0) * 2 * (1 if shape.tied else 2)
    kept = min(weights.total, table + weights.replicated)
    share = _data()["four_bit"]["bytes_per_weight"] * 8 / bits
    small = replace(
        weights,
        total=int(kept + (weights.total - kept) * share),
        experts=int(weights.experts * share),
        drafts=int(weights.drafts * share),
    )
    then = budget(replace(shape, weights=small), layout, cards, settings)
    if not then.fits:
        return []
    text = (
        f"a four-bit checkpoint (another one, AWQ or GPTQ), about {gib(then.weights_bytes)} "
        f"on each GPU, which fits with a context of {then.context}"
    )
    return [Way("four_bit", text)]


def _offload(
    shape: ModelShape, layout: Layout, cards: Cards, settings: Settings, memory: Memory
) -> list[Way]:
    if not 0 < memory.short_bytes <= memory.weights_bytes or settings.offload_bytes:
        return []
    rate = _pcie_rate(cards)
    seconds = memory.short_bytes / (rate * 1e9)
    then = budget(shape, layout, cards, replace(settings, offload_bytes=memory.short_bytes))
    text = (
        f"{gib(memory.short_bytes)} of weights in the host's memory: "
        f"{memory.short_bytes / 1e9:.1f} GB over PCIe in each step, {seconds:.2f} s at "
        f"{rate:g} GB/s, so at most {1 / seconds:.1f} steps a second (a token of each request)"
    )
    return [Way("cpu_offload", text)] if then.fits else []


def _pcie_rate(cards: Cards) -> float:
    """Gigabytes a second to one GPU, as the standard of its generation allows."""
    compute = cards.compute or "0"
    rows = _data()["pcie"]
    return float(next(r["gbytes"] for r in rows if versions.is_at_least(compute, r["from"])))


@functools.cache
def _ids_of_gpus() -> Mapping[str, frozenset[str]]:
    """The PCI ids of the GPUs that data/memory.yml names: a row does not know its own key."""
    data, gpus = _data()["gpu"], compat.load_data("gpus.yml")["gpus"]
    names = [*data["inline_ecc"], *data["label_share_of"]]
    return {name: frozenset(gpus[name]["pci_ids"]) for name in names if name in gpus}


@functools.cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = compat.load_data("memory.yml")
    return data
