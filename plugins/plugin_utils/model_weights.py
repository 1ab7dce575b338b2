# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weights of a model: counted from its architecture, or added up from safetensors headers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ansible_collections.llmetal.inference.plugins.plugin_utils.model_quantization import HEAD
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import Weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_config import Values
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_families import Family
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_quantization import (
        Scheme,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import Experts

SHARDED, REPLICATED, EXPERTS = "sharded", "replicated", "experts"
LINEAR = "linear"
"""The kind of a layer with linear attention; all others that are counted have attention."""


class TensorInfo(NamedTuple):
    """A tensor as the header of a safetensors file describes it."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    """Bytes."""


@dataclass(frozen=True)
class LatentSizes:
    """The projections of multi-head latent attention."""

    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class LinearSizes:
    """The heads of linear attention."""

    kernel: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    @property
    def keys(self) -> int:
        """Outputs for all keys, and as many for all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Outputs for all values, and as many for their gate."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class Blueprint:
    """All that a count needs."""

    family: Family
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int | None
    """Width of a layer without experts; None where there is no such layer."""
    layers: tuple[tuple[str, bool], ...]
    """The kind of each layer, and whether it has experts."""
    tied: bool
    itemsize: int
    gate: bool
    """Whether the queries come with a gate of their size."""
    biases: tuple[bool, bool, bool]
    """On q, k and v; on o; in the MLP."""
    positions: int = 0
    experts: Experts | None = None
    expert_gate: bool = False
    """Whether shared experts have a gate of one output."""
    latent: LatentSizes | None = None
    linear: LinearSizes | None = None
    drafts: int = 0
    vision: int = 0
    """Weights of the encoders beside the text model."""
    scheme: Scheme | None = None


class Module(NamedTuple):
    """Equal linear layers of a layer, or, without a name, weights that are never quantised."""

    name: str
    rows: int
    columns: int
    times: int
    part: str


def count(blueprint: Blueprint) -> Weights:
    """Count the weights of a model, in bytes as its checkpoint stores them."""
    total: Counter[str] = Counter()
    drafts: Counter[str] = Counter()
    known: dict[tuple[str, bool], tuple[Module, ...]] = {}
    for (kind, sparse, sets), times in _alike(blueprint).items():
        key = (kind, sparse)
        if key not in known:
            known[key] = tuple(_layer(blueprint, kind, sparse=sparse))
        _add(total, blueprint, known[key], sets, times)
    outside = _outside(blueprint)
    sets = (frozenset[str](),)
    _add(total, blueprint, outside, sets, 1)
    for number in range(blueprint.drafts):
        _add_draft(drafts, blueprint, number)
    vision = blueprint.vision * blueprint.itemsize
    replicated = total[REPLICATED] + vision
    held = drafts[SHARDED] + drafts[REPLICATED] + drafts[EXPERTS]
    return Weights(
        total=total[SHARDED] + replicated + total[EXPERTS] + held,
        replicated=replicated,
        experts=total[EXPERTS],
        parameters=total["parameters"] + blueprint.vision + drafts["parameters"],
        counted=True,
        vision=vision,
        drafts=held,
    )


def _alike(blueprint: Blueprint) -> Counter[tuple[str, bool, tuple[frozenset[str], ...]]]:
    """The layers, those that are stored alike counted together."""
    scheme = blueprint.scheme
    nothing = (frozenset[str](),)
    return Counter(
        (kind, sparse, scheme.of_layer(number) if scheme else nothing)
        for number, (kind, sparse) in enumerate(blueprint.layers)
    )


def _add(
    total: Counter[str],
    blueprint: Blueprint,
    modules: tuple[Module, ...],
    sets: tuple[frozenset[str], ...],
    times: int,
) -> None:
    """Add modules to the sums of their parts."""
    scheme, itemsize = blueprint.scheme, blueprint.itemsize
    for name, rows, columns, each, part in modules:
        number = times * each
        weights = rows * columns
        storage = None
        if scheme is not None and name == HEAD:
            quantised = scheme.head and not scheme.ignored.hits(HEAD)
            storage = scheme.storages[-1][1] if quantised else None
        elif scheme is not None and name:
            storage = scheme.storage(name, sets)
        size = weights * itemsize if storage is None else storage.size(rows, columns)
        total[part] += size * number
        total["parameters"] += weights * number


def _plain(weights: int, part: str = REPLICATED) -> Module:
    return Module("", weights, 1, 1, part)


def _outside(blueprint: Blueprint) -> tuple[Module, ...]:
    """What is not in a layer: embeddings, the last norm, the head."""
    hidden, vocab = blueprint.hidden, blueprint.vocab
    found = [_plain(vocab * hidden, SHARDED), _plain(hidden)]
    if not blueprint.tied:
        found.append(Module(HEAD, vocab, hidden, 1, SHARDED))
    if blueprint.family.positions:
        found.append(_plain((blueprint.positions + 1) * hidden))
    return tuple(found)


def _add_draft(total: Counter[str], blueprint: Blueprint, number: int) -> None:
    """Add a layer for speculation and what belongs to it."""
    hidden = blueprint.hidden
    scheme = blueprint.scheme
    own = blueprint.family.drafts == "deepseek"
    place = len(blueprint.layers) + number if own else number
    scope = "" if own else "mtp"
    sets = scheme.of_layer(place, scope) if scheme else (frozenset[str](),)
    layer = tuple(_layer(blueprint, "full", sparse=blueprint.experts is not None))
    joint = [_plain(2 * hidden * hidden, REPLICATED if own else SHARDED), _plain(3 * hidden)]
    if own:
        # Each of these layers has its own copy of the embeddings and of the head.
        joint.append(_plain(2 * blueprint.vocab * hidden, SHARDED))
    _add(total, blueprint, layer, sets, 1)
    if own or number == 0:
        _add(total, blueprint, tuple(joint), sets, 1)


def _layer(blueprint: Blueprint, kind: str, *, sparse: bool) -> Iterator[Module]:
    """The modules of one layer."""
    family = blueprint.family
    norms = family.norms * blueprint.hidden
    yield _plain(2 * norms if family.positions else norms)
    if kind == LINEAR:
        yield from _linear_attention(blueprint)
    elif blueprint.latent is not None:
        yield from _latent_attention(blueprint, blueprint.latent)
    else:
        yield from _attention(blueprint)
    if sparse and blueprint.experts is not None:
        yield from _experts(blueprint, blueprint.experts)
    else:
        yield from _mlp(blueprint, "mlp", blueprint.intermediate or 0, 1, SHARDED)


def _attention(blueprint: Blueprint) -> Iterator[Module]:
    hidden = blueprint.hidden
    query = blueprint.heads * blueprint.head_dim
    key = blueprint.kv_heads * blueprint.head_dim
    asked = 2 * query if blueprint.gate else query
    yield Module("self_attn.q_proj", asked, hidden, 1, SHARDED)
    yield Module("self_attn.k_proj", key, hidden, 1, SHARDED)
    yield Module("self_attn.v_proj", key, hidden, 1, SHARDED)
    yield Module("self_attn.o_proj", hidden, query, 1, SHARDED)
    qkv_bias, o_bias, _ = blueprint.biases
    if qkv_bias:
        yield _plain(asked + 2 * key, SHARDED)
    if o_bias:
        yield _plain(hidden)
    norm = {"head": 2 * blueprint.head_dim, "full": query + key}.get(blueprint.family.qk_norm)
    if norm:
        yield _plain(norm)
    if blueprint.family.sinks:
        yield _plain(blueprint.heads, SHARDED)


def _latent_attention(blueprint: Blueprint, sizes: LatentSizes) -> Iterator[Module]:
    hidden, heads = blueprint.hidden, blueprint.heads
    asked = heads * (sizes.nope + sizes.rope)
    if sizes.query_rank:
        yield Module("self_attn.q_a_proj", sizes.query_rank, hidden, 1, REPLICATED)
        yield _plain(sizes.query_rank)
        yield Module("self_attn.q_b_proj", asked, sizes.query_rank, 1, SHARDED)
    else:
        yield Module("self_attn.q_proj", asked, hidden, 1, SHARDED)
    rows = sizes.rank + sizes.rope
    yield Module("self_attn.kv_a_proj_with_mqa", rows, hidden, 1, REPLICATED)
    yield _plain(sizes.rank)
    out = heads * (sizes.nope + sizes.value)
    yield Module("self_attn.kv_b_proj", out, sizes.rank, 1, SHARDED)
    yield Module("self_attn.o_proj", hidden, heads * sizes.value, 1, SHARDED)


def _linear_attention(blueprint: Blueprint) -> Iterator[Module]:
    sizes = blueprint.linear
    if sizes is None:
        return
    hidden = blueprint.hidden
    mixed = 2 * sizes.keys + sizes.values
    if blueprint.family.linear == "joined":
        rows = mixed + sizes.values
        yield Module("linear_attn.in_proj_qkvz", rows, hidden, 1, SHARDED)
    else:
        yield Module("linear_attn.in_proj_qkv", mixed, hidden, 1, SHARDED)
        yield Module("linear_attn.in_proj_z", sizes.values, hidden, 1, SHARDED)
    yield Module("linear_attn.out_proj", hidden, sizes.values, 1, SHARDED)
    # Rates and gates of the heads are too narrow for blocks; no checkpoint quantises them.
    yield _plain(2 * sizes.value_heads * hidden, SHARDED)
    yield _plain(mixed * sizes.kernel + 2 * sizes.value_heads, SHARDED)
    yield _plain(sizes.value_dim)


def _experts(blueprint: Blueprint, experts: Experts) -> Iterator[Module]:
    hidden, family = blueprint.hidden, blueprint.family
    width = experts.intermediate or 0
    yield from _mlp(blueprint, "mlp.experts", width, experts.count, EXPERTS)
    if family.expert_bias:
        yield _plain(experts.count * (2 * width + hidden), EXPERTS)
    router = experts.count * (hidden + 1 if family.router_bias else hidden)
    yield _plain(router)
    if experts.shared_intermediate:
        shared = experts.shared_intermediate
        yield from _mlp(blueprint, "mlp.shared_experts", shared, 1, SHARDED)
        if blueprint.expert_gate:
            yield _plain(hidden)


def _mlp(blueprint: Blueprint, name: str, width: int, times: int, part: str) -> Iterator[Module]:
    hidden = blueprint.hidden
    if blueprint.family.gated:
        yield Module(f"{name}.gate_proj", width, hidden, times, part)
    yield Module(f"{name}.up_proj", width, hidden, times, part)
    yield Module(f"{name}.down_proj", hidden, width, times, part)
    if blueprint.biases[2] and part == SHARDED:
        yield _plain((2 if blueprint.family.gated else 1) * width, part)
        yield _plain(hidden)


def count_vision(kind: str, vision: Values, outer: Values, hidden: int) -> int | str:
    """The weights of an image encoder with its projector.

    Args:
        kind: how it is built, see Family.vision; qwen3_vl has mergers in between.
        vision: its vision_config.
        outer: config.json.
        hidden: the hidden size of the text model.

    Returns:
        How many weights, or why that is not known.
    """
    counter = {"siglip": _siglip, "pixtral": _pixtral}.get(kind)
    if counter is not None:
        return counter(vision, outer, hidden)
    return _qwen_vision(vision, mergers=kind == "qwen3_vl")


def _qwen_vision(vision: Values, *, mergers: bool) -> int | str:
    names = ("depth", "hidden_size", "intermediate_size", "out_hidden_size", "patch_size")
    sizes = [vision.whole(name) for name in names]
    merge = vision.whole("spatial_merge_size") or 2
    channels = vision.whole("in_channels") or 3
    frames = vision.whole("temporal_patch_size") or 2
    positions = vision.whole("num_position_embeddings") or 2304
    known = [one for one in sizes if one is not None]
    if len(known) < len(sizes):
        return vision.why(names[sizes.index(None)])
    depth, width, inner, out, patch = known
    merged = width * merge**2
    merger = merged * merged + merged + merged * out + out
    block = 4 * width + 4 * width * width + 4 * width + 2 * width * inner + inner + width
    total = width * (channels * frames * patch**2) + width + positions * width + depth * block
    total += merger + 2 * width
    if mergers:
        indexes = vision.numbers("deepstack_visual_indexes")
        total += (3 if indexes is None else len(indexes)) * (merger + 2 * merged)
    return total


def _siglip(vision: Values, _outer: Values, hidden: int) -> int | str:
    names = (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "patch_size",
        "image_size",
    )
    sizes = [vision.whole(name) for name in names]
    known = [one for one in sizes if one is not None]
    if len(known) < len(sizes):
        return vision.why(names[sizes.index(None)])
    depth, width, inner, patch, image = known
    block = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    total = 3 * patch**2 * width + width + (image // patch) ** 2 * width + depth * block
    return total + 2 * width + width * hidden + width


def _pixtral(vision: Values, outer: Values, hidden: int) -> int | str:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "patch_size")
    sizes = [vision.whole(name) for name in names]
    known = [one for one in sizes if one is not None]
    if len(known) < len(sizes):
        return vision.why(names[sizes.index(None)])
    depth, width, inner, patch = known
    merge = outer.whole("spatial_merge_size") or 2
    total = 3 * patch**2 * width + width
    total += depth * (4 * width * width + 3 * width * inner + 2 * width)
    return total + width + (width * merge**2) * width + width * hidden + hidden * hidden


_VISION = (
    "visual.",
    "vision_",
    "multi_modal_projector.",
    "mm_projector.",
    "embed_vision.",
    "embed_audio.",
    "audio_tower.",
    "audio_encoder.",
    "image_newline",
    "patch_merger.",
    "aligner.",
    "resampler.",
    "vpm.",
    "mlp1.",
)
_JOINED = ("sparse_moe.input_linear.", "sparse_moe.output_linear.")
"""In the names of Granite's routed experts, which are one tensor a layer."""
_WHOLE = (
    "norm",
    "mlp.gate.",
    "mixer.gate.",
    "router.",
    "feed_forward.gate.",
    "block_sparse_moe.gate.",
    "e_score_correction_bias",
    "shared_expert_gate",
    "q_a_proj",
    "kv_a_proj_with_mqa",
    "ln_",
    "wpe.",
)
_SCALES = ("_scale", "_scale_inv", "_scale_2", ".scales", "_scales", "_zero_point", "_shape")
_PACKED = frozenset({"I32", "U32", "I64", "U8", "F4", "F8_E8M0"})


def is_draft(name: str, layers: int | None) -> bool:
    """Whether a tensor of the text model is of a layer for speculation: MTP, or after the last."""
    if name.startswith("mtp.") or ".mtp." in name:
        return True
    start = name.find("layers.")
    if layers is None or start < 0:
        return False
    number = name[start + 7 : name.find(".", start + 7)]
    return number.isdecimal() and int(number) >= layers


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to an encoder of images or sound."""
    return name.removeprefix("model.").startswith(_VISION)


def read_weights(
    tensors: Mapping[str, TensorInfo], files: int | None = None, layers: int | None = None
) -> Weights:
    """Add up the tensors of a checkpoint, by what their names say of them.

    Args:
        tensors: all tensors.
        files: bytes of the files that hold them.
        layers: how many layers the model has; those after them are for speculation.
    """
    parts: Counter[str] = Counter()
    parameters = 0
    packed = False
    for name, (dtype, shape, size) in tensors.items():
        if is_vision(name):
            parts["vision"] += size
        elif is_draft(name, layers):
            parts["drafts"] += size
        elif ".experts." in name or any(one in name for one in _JOINED):
            parts[EXPERTS] += size
        elif any(mark in name for mark in _WHOLE):
            parts[REPLICATED] += size
        else:
            parts[SHARDED] += size
        if dtype in _PACKED:
            packed = True
        elif not name.endswith(_SCALES):
            parameters += math.prod(shape)
    return Weights(
        total=parts.total(),
        replicated=parts[REPLICATED] + parts["vision"],
        experts=parts[EXPERTS],
        parameters=None if packed else parameters,
        counted=False,
        files=files,
        vision=parts["vision"],
        drafts=parts["drafts"],
    )
