# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model is spread over GPUs: which layouts an engine accepts, and which one is the best.

Both engines refuse a layout that they cannot cut only while they load the weights, minutes after
the start; what they check is arithmetic on the dimensions of the model, and so it is checked here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape

_EIGHT_BITS = 8
_COLUMNS = {
    "q": "query width",
    "gate_up": "intermediate_size",
    "shared_gate_up": "shared_expert_intermediate_size",
    "q_b": "query width",
    "kv_b": "key and value width",
    "linear_qk": "key width of linear attention",
    "linear_v": "value width of linear attention",
    "linear_qkvz": "width of linear attention",
}
_ROWS = {
    "o": "attention width",
    "down": "intermediate_size",
    "shared_down": "shared_expert_intermediate_size",
    "linear_out": "value width of linear attention",
}
# Engines join these with others to one matrix, and check their blocks without a split too.
_MERGED = frozenset({"q", "gate_up", "shared_gate_up", "linear_qk", "linear_v"})


@dataclass(frozen=True)
class Problem:
    """Why something cannot be served as it was asked for, and the way out."""

    rule: str
    fact: str
    fix: str
    relax: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The fix as changes of a question; empty where no such change helps."""


class Layout(NamedTuple):
    """How one instance spreads a model over its GPUs.

    Its numbers multiply to the number of GPUs. `data` counts replicas inside one server, which has
    one address (vLLM `--data-parallel-size`, SGLang `--dp-size`). They share nothing in SGLang, nor
    in vLLM for a model without experts. In vLLM the replicas of a model with experts hold each
    expert once between them: cut over all `tensor` x `data` GPUs, or with `expert` whole on one.
    In SGLang `expert` spreads them over the `tensor` GPUs of a replica.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    @property
    def gpus(self) -> int:
        """How many GPUs it uses."""
        return self.tensor * self.pipeline * self.data

    def as_answers(self) -> dict[str, Any]:
        """The layout as the variables that ask for it."""
        return {
            "tensor_parallel": self.tensor,
            "pipeline_parallel": self.pipeline,
            "data_parallel": self.data,
            "expert_parallel": self.expert,
        }

    def as_text(self) -> str:
        """The layout as people write it: TP 4 x DP 2 with expert parallel."""
        parts = [("TP", self.tensor), ("PP", self.pipeline), ("DP", self.data)]
        text = " x ".join(f"{name} {size}" for name, size in parts if size > 1 or name == "TP")
        return f"{text} with expert parallel" if self.expert else text


@dataclass(frozen=True)
class Asked:
    """The parts of a layout that an inventory asks for; the rest is chosen."""

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    expert: bool | None = None

    def allows(self, layout: Layout) -> bool:
        """Whether a layout is one of those asked for."""
        pairs = zip((self.tensor, self.pipeline, self.data, self.expert), layout, strict=True)
        return all(mine is None or mine == its for mine, its in pairs)

    def completed(self, gpus: int) -> Layout:
        """The plain layout nearest to what was asked: the words of a refusal speak of it."""
        pipeline = self.pipeline or 1
        data = self.data or 1
        tensor = self.tensor or max(1, gpus // max(1, pipeline * data))
        if self.data is None:
            data = max(1, gpus // max(1, tensor * pipeline))
        return Layout(tensor, pipeline, data, bool(self.expert))


@dataclass(frozen=True)
class Cards:
    """The GPUs of an instance, all of one kind, and the engine on them."""

    engine: str
    count: int
    compute: str | None = None
    memory_bytes: int | None = None
    """Of one GPU, as CUDA sees it."""
    links: int | None = None
    """How many of them NVLink joins with one another: 1 for none, None where it is not known."""
    keys: tuple[str, ...] = ()
    """Their keys in gpus.yml, as a question names them."""
    name: str = ""


class Room(Protocol):
    """What a layout has to know of the memory that it leaves."""

    @property
    def fits(self) -> bool | None:
        """Whether what was asked for fits; None where that cannot be told."""

    @property
    def short_bytes(self) -> int:
        """How much a GPU lacks."""

    @property
    def kv_tokens(self) -> int:
        """How many tokens the cache of a replica holds."""


@dataclass(frozen=True)
class Candidate:
    """A layout that the engine accepts, and why it stands where it stands in the order."""

    layout: Layout
    room: Room | None
    why: tuple[str, ...]


def expert_ranks(engine: str, layout: Layout) -> int:
    """Over how many GPUs the experts of a layer are spread."""
    # vLLM flattens the data parallel group into that of the experts, with and without EP.
    return layout.tensor * (layout.data if engine == "vllm" else 1)


def check(
    shape: ModelShape,
    layout: Layout,
    engine: str,
    gpus: int,
    accept: Callable[[Layout], bool] | None = None,
) -> list[Problem]:
    """What an engine would refuse in a layout.

    Args:
        shape: the model.
        layout: how it is to be spread.
        engine: vllm or sglang.
        gpus: how many GPUs the instance has.
        accept: which layouts are good enough as a way out (those that fit into memory).
    """
    faults = list(_faults(shape, layout, engine, gpus))
    if not faults:
        return []
    other = _way_out(shape, layout, engine, gpus, accept)
    if other is None:
        fix = "no layout of these GPUs can be cut: take another checkpoint, such as the BF16 one"
        return [Problem(rule, fact, fix) for rule, fact in faults]
    fix = f"use {other.as_text()}"
    return [Problem(rule, fact, fix, other.as_answers()) for rule, fact in faults]


def is_possible(shape: ModelShape, layout: Layout, engine: str, gpus: int) -> bool:
    """Whether an engine accepts a layout."""
    return next(_faults(shape, layout, engine, gpus), None) is None


def possible(shape: ModelShape, engine: str, gpus: int, asked: Asked | None = None) -> list[Layout]:
    """Every layout of a number of GPUs that the engine accepts and the inventory allows."""
    wanted = asked is not None and asked.expert is True
    return [
        layout
        for layout in layouts(gpus, with_experts=shape.experts is not None)
        if (asked is None or asked.allows(layout))
        # Experts spread over one GPU are experts as they always are.
        and (wanted or not layout.expert or expert_ranks(engine, layout) > 1)
        and is_possible(shape, layout, engine, gpus)
    ]


@functools.cache
def layouts(gpus: int, *, with_experts: bool) -> tuple[Layout, ...]:
    """Every way to multiply to a number of GPUs."""
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
    return tuple(
        Layout(tensor, pipeline, gpus // tensor // pipeline, expert)
        for tensor in sizes
        for pipeline in sizes
        if gpus % (tensor * pipeline) == 0
        for expert in ((False, True) if with_experts else (False,))
    )


def propose(
    shape: ModelShape,
    cards: Cards,
    memory: Callable[[Layout], Room] | None,
    asked: Asked | None = None,
) -> list[Candidate]:
    """The layouts that an engine accepts for some GPUs, the best one first.

    What fits comes first; then no pipeline, tensor groups inside NVLink, no expert parallel, the
    smallest tensor group, so that the rest serve as replicas. Where nothing is known of the memory
    the largest group comes first, since it leaves the most room.

    Args:
        shape: the model.
        cards: the GPUs and the engine.
        memory: what is left under a layout, for the context and the requests that were asked for.
        asked: the parts of the layout that the inventory fixes.
    """
    asked = asked or Asked()
    rows = [
        (layout, None if memory is None else memory(layout))
        for layout in possible(shape, cards.engine, cards.count, asked)
    ]
    rows.sort(key=lambda row: _order(row[0], row[1], cards))
    return [
        Candidate(layout, room, tuple(_reasons(shape, layout, room, cards, rows)))
        for layout, room in rows
    ]


def dense_width(shape: ModelShape) -> int | None:
    """The width of the MLPs without experts; None where every layer has experts."""
    experts = shape.experts
    if experts is not None and shape.layers is not None and 0 < shape.layers <= experts.layers:
        return None
    return shape.intermediate


def is_block_fp8(shape: ModelShape) -> bool:
    """Whether a checkpoint's weights are FP8 with one scale for each block."""
    quantization = shape.quantization
    if quantization is None or quantization.block is None or min(quantization.block) < 1:
        return False
    return quantization.method == "fp8" or quantization.bits == _EIGHT_BITS


def _order(layout: Layout, room: Room | None, cards: Cards) -> tuple[int, ...]:
    plain = (layout.pipeline, _crosses(layout, cards), layout.expert)
    if room is None or room.fits is None:
        return (1, 0, *plain, -layout.tensor)
    if room.fits:
        return (0, 0, *plain, layout.tensor)
    if room.kv_tokens > 0:
        # A shorter context is a way out of these; so they stand in the order of those that fit.
        return (2, 0, *plain, room.short_bytes)
    return (3, room.short_bytes, *plain, layout.tensor)


def _crosses(layout: Layout, cards: Cards) -> bool:
    """Whether a tensor group has to talk over PCIe."""
    return cards.links is not None and layout.tensor > max(1, cards.links)


def _reasons(
    shape: ModelShape,
    layout: Layout,
    room: Room | None,
    cards: Cards,
    rows: Sequence[tuple[Layout, Room | None]],
) -> Iterator[str]:
    ranks = expert_ranks(cards.engine, layout)
    if room is not None and room.fits is False:
        yield f"{layout.as_text()} lacks {gib(room.short_bytes)} on each GPU"
    if layout.tensor == 1:
        part = "a stage" if layout.pipeline > 1 else "the model"
        but = ", but for its experts," if shape.experts is not None and ranks > 1 else ""
        yield f"{part}{but} is whole on one GPU"
    elif any(
        other.tensor < layout.tensor and other.pipeline == layout.pipeline
        for other, its in rows
        if its is not None and its.fits is False
    ):
        yield f"TP {layout.tensor}, because a smaller tensor group leaves too little memory"
    elif any(other.tensor < layout.tensor for other, _ in rows):
        yield f"TP {layout.tensor}: a larger cache for each replica, and fewer of them"
    else:
        yield f"TP {layout.tensor} is the smallest tensor group that these GPUs can form"
    if layout.data > 1:
        yield f"DP {layout.data}: the remaining GPUs serve as replicas of that group"
    if layout.pipeline > 1:
        better = any(o.pipeline == 1 and (its is None or its.fits is not False) for o, its in rows)
        why = "" if better else ", since no tensor group serves alone"
        yield f"PP {layout.pipeline}: the layers go over stages{why}"
    if layout.expert and shape.experts is not None:
        width = shape.experts.intermediate
        yield f"expert parallel, so that no expert ({width} wide) is cut over {ranks} GPUs"
    if _crosses(layout, cards):
        yield f"NVLink does not join {layout.tensor} of these GPUs, so their sums go over PCIe"


def gib(size: float) -> str:
    """A size as people read it."""
    return f"{size / 2**30:.2f} GiB"


def _way_out(
    shape: ModelShape,
    layout: Layout,
    engine: str,
    gpus: int,
    accept: Callable[[Layout], bool] | None,
) -> Layout | None:
    """The accepted layout of the same GPUs that differs least; None where there is none."""

    def distance(other: Layout) -> tuple[int, ...]:
        return (
            accept is not None and not accept(other),
            abs(other.pipeline - layout.pipeline),
            other.tensor > layout.tensor,
            other.expert is not layout.expert,
            abs(other.tensor - layout.tensor),
        )

    return min(possible(shape, engine, gpus), key=distance, default=None)


def _faults(shape: ModelShape, layout: Layout, engine: str, gpus: int) -> Iterator[tuple[str, str]]:
    """Each rule that a layout does not keep, and the fact."""
    if min(layout.tensor, layout.pipeline, layout.data) < 1:
        yield "layout-gpus", "every size of a layout is 1 or more"
        return
    if layout.gpus != gpus:
        yield (
            "layout-gpus",
            f"{layout.as_text()} uses {layout.gpus} GPUs and the instance has {gpus}",
        )
    if shape.layers is not None and 0 < shape.layers < layout.pipeline:
        yield "pp-layers", f"{shape.layers} layers over {layout.pipeline} pipeline stages"
    yield from _head_faults(shape, layout)
    yield from _width_faults(shape, layout, engine)
    yield from _expert_faults(shape, layout, engine)
    if is_block_fp8(shape):
        yield from _block_faults(shape, layout, engine)


def _head_faults(shape: ModelShape, layout: Layout) -> Iterator[tuple[str, str]]:
    tensor, heads, kv_heads = layout.tensor, shape.heads, shape.kv_heads
    if heads is not None and heads % tensor:
        yield "tp-heads", f"{heads} attention heads over TP {tensor}"
    # Fewer KV heads than GPUs are replicated; MLA has none to split.
    if kv_heads is not None and kv_heads > 0 and shape.latent is None:
        rest = kv_heads % tensor if kv_heads >= tensor else tensor % kv_heads
        if rest:
            yield "tp-heads", f"{kv_heads} key and value heads over TP {tensor}"
    recurrent = shape.recurrent
    if recurrent is not None and recurrent.heads is not None and recurrent.heads % tensor:
        yield "tp-heads", f"{recurrent.heads} heads of linear attention over TP {tensor}"


def _width_faults(shape: ModelShape, layout: Layout, engine: str) -> Iterator[tuple[str, str]]:
    tensor, experts = layout.tensor, shape.experts
    widths = [(dense_width(shape), "intermediate_size")]
    if experts is not None:
        widths.append((experts.shared_intermediate, "shared_expert_intermediate_size"))
    for width, name in widths:
        if width is not None and width % tensor:
            yield "tp-heads", f"{name} {width} over TP {tensor}"
    if experts is not None and experts.intermediate is not None and not layout.expert:
        ranks = expert_ranks(engine, layout)
        if experts.intermediate % ranks:
            yield "tp-heads", f"moe_intermediate_size {experts.intermediate} over {ranks} GPUs"


def _expert_faults(shape: ModelShape, layout: Layout, engine: str) -> Iterator[tuple[str, str]]:
    if not layout.expert:
        return
    if shape.experts is None:
        yield "ep-experts", "the model has no experts"
        return
    ranks, count = expert_ranks(engine, layout), shape.experts.count
    # SGLang asserts an even spread; vLLM gives the first GPUs one more.
    if count < ranks or (engine != "vllm" and count % ranks):
        yield "ep-experts", f"{count} experts over {ranks} GPUs"


def _block_faults(shape: ModelShape, layout: Layout, engine: str) -> Iterator[tuple[str, str]]:
    """Shards that are no whole number of blocks of an FP8 weight."""
    assert shape.quantization is not None  # noqa: S101 - is_block_fp8 looked
    assert shape.quantization.block is not None  # noqa: S101 - is_block_fp8 looked
    rows, columns = shape.quantization.block
    tensor, said = layout.tensor, set()
    matrices = shape.projections or _plain_projections(shape)
    for name, (out, into) in matrices.items():
        if name in _COLUMNS:
            what, size, block = _COLUMNS[name], out, rows
            if tensor == 1 and name not in _MERGED:
                continue
        elif name in _ROWS and tensor > 1:
            what, size, block = _ROWS[name], into, columns
        else:
            continue
        # An uneven split is another rule's.
        if size % tensor == 0 and (size // tensor) % block and what not in said:
            said.add(what)
            yield "fp8-block-tp", _cut(what, size, f"TP {tensor}", size // tensor, block)
    yield from _kv_block_fault(shape, matrices, tensor, rows)
    width = _expert_width(shape, matrices)
    if width is not None:
        ranks = 1 if layout.expert else expert_ranks(engine, layout)
        block = rows if ranks == 1 or (width // ranks) % rows else columns
        if width % ranks == 0 and (width // ranks) % block:
            over = f"TP {ranks}" if ranks == tensor else f"TP {tensor} x DP {layout.data}"
            yield (
                "fp8-block-tp",
                _cut("moe_intermediate_size", width, over, width // ranks, block),
            )


def _kv_block_fault(
    shape: ModelShape, matrices: Mapping[str, tuple[int, int]], tensor: int, block: int
) -> Iterator[tuple[str, str]]:
    width, heads = matrices.get("kv", (0, 0))[0], shape.kv_heads
    # The values stand last in the joined matrix, and unsplit the last one may end inside a block;
    # the keys, which are as wide, may not.
    if width > 0 and heads is not None and heads > 0:
        size = width * max(1, heads // tensor) // heads
        if size % block:
            yield "fp8-block-tp", _cut("key and value width", width, f"TP {tensor}", size, block)


def _cut(what: str, size: int, over: str, shard: int, block: int) -> str:
    if shard == size:
        return f"{what} {size} is not a multiple of block {block}"
    return (
        f"{what} {size} over {over} is {shard} per rank, "
        f"and {shard} is not a multiple of block {block}"
    )


def _expert_width(shape: ModelShape, matrices: Mapping[str, tuple[int, int]]) -> int | None:
    if "expert_gate_up" in matrices:
        return matrices["expert_gate_up"][0]
    if "expert_down" in matrices:
        return matrices["expert_down"][1]
    # Experts in another format than the rest have no row in a list of matrices that is there.
    return (
        shape.experts.intermediate if shape.experts is not None and not shape.projections else None
    )


def _plain_projections(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """The matrices of a plain transformer, where the model does not list its own."""
    hidden, matrices = shape.hidden or 0, {}
    if shape.heads and shape.head_dim and shape.latent is None:
        matrices["q"] = (shape.heads * shape.head_dim, hidden)
        matrices["o"] = (hidden, shape.heads * shape.head_dim)
        if shape.kv_heads:
            matrices["kv"] = (shape.kv_heads * shape.head_dim, hidden)
    if width := dense_width(shape):
        matrices["gate_up"] = (width, hidden)
        matrices["down"] = (hidden, width)
    shared = shape.experts.shared_intermediate if shape.experts is not None else None
    if shared:
        matrices["shared_gate_up"] = (shared, hidden)
        matrices["shared_down"] = (hidden, shared)
    return matrices
