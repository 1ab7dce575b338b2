# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""From config.json and tensor lists to what a plan has to know of a model.

Pure, and it never raises: whatever config.json holds, what cannot be known is None in the result,
and `missing` says which decisions that stops and why. Nothing is guessed; a value that config.json
does not have is taken only where the model's class in transformers has a default for it, since the
engines take the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.plugin_utils.model_config import Values, shown
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_families import (
    Family,
    family_of,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_quantization import (
    Reading,
    read_quantization,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import (
    Experts,
    Latent,
    ModelShape,
    Recurrent,
    Weights,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_state import (
    State,
    item_size,
    linear_state,
    mamba_state,
    state_bytes,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import (
    LINEAR,
    Blueprint,
    LatentSizes,
    LinearSizes,
    TensorInfo,
    count,
    count_vision,
    read_weights,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FULL, WINDOW, STATE, BOTH = "full", "window", LINEAR, "both"
"""Kinds of layers: keys and values of the whole context, of a window, a state, state and keys."""
DENSE, SPARSE = "dense", "sparse"
"""Kinds of layers that keep nothing: an MLP, experts."""

_KINDS = {
    "full_attention": FULL,
    "attention": FULL,
    "*": FULL,
    "sliding_attention": WINDOW,
    "chunked_attention": WINDOW,
    "linear_attention": STATE,
    "mamba": STATE,
    "M": STATE,
    "mlp": DENSE,
    "-": DENSE,
    "moe": SPARSE,
    "E": SPARSE,
}
_WIDTHS = ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim")
"""Names of the width of a layer without experts."""
_NESTED = ("text_config", "llm_config", "language_config", "language_model_config")
_SEEING = {
    "qwen": ("qwen3_5",),
    "qwen3_vl": ("qwen3_vl",),
    "siglip": ("gemma3",),
    "pixtral": ("mistral3", "ministral3"),
}
"""Models, by how model_type begins, whose encoder is the one of Family.vision."""
_ODD = (
    "mamba",
    "ssm_",
    "state_size",
    "linear_attn",
    "lightning",
    "conv_L",
    "rwkv",
    "attn_type_list",
    "kv_shared_layers",
    "index_topk",
    "compress_ratio",
)
"""Parts of keys by which families of other layers are known."""
_TOLERANCE = 0.1
"""By how much files may differ from what config.json counts: other tensors, names, padding."""
_MOST_LAYERS = 10_000
_MOST_CONTEXT = 1 << 31
_UNSTRETCHED = frozenset({"linear", "dynamic", "ntk"})
"""Ways to stretch positions where max_position_embeddings is the length before it."""


@dataclass
class _Missing:
    """Sentences by the decision that they stop."""

    sentences: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, sentence: str) -> None:
        """Add a sentence, after those that are there."""
        old = self.sentences.get(key)
        if old is None:
            self.sentences[key] = sentence
        elif sentence not in old:
            self.sentences[key] = f"{old}; {sentence}"


@dataclass
class _Draft:
    """What is known so far."""

    outer: Values
    values: Values
    family: Family | None
    missing: _Missing = field(default_factory=_Missing)
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    kinds: tuple[str, ...] | None = None
    window: int | None = None
    sparse: tuple[bool, ...] | None = ()
    experts: Experts | None = None
    latent: LatentSizes | None = None
    linear: LinearSizes | None = None


def shape_of(
    config: Mapping[str, object],
    tensors: Mapping[str, TensorInfo] | None = None,
    files_bytes: int | None = None,
    dtype: str | None = None,
) -> ModelShape:
    """What a model is.

    Args:
        config: config.json.
        tensors: the tensors of its safetensors files; None where their headers were not read.
        files_bytes: bytes of all weight files; None where no file was seen.
        dtype: the type of what is not quantised, where it is another one than config.json says.

    Returns:
        The model; what cannot be known is None, and named in `missing`.
    """
    outer = Values(config)
    values, family, model_type = _text_part(outer)
    draft = _Draft(outer, values, family)
    if family is None:
        draft.missing.add("architecture", _unknown(outer, values, model_type))
    _read_sizes(draft)
    _read_layers(draft)
    _read_attention(draft)
    _read_experts(draft)
    dtype = dtype or _dtype(outer, values)
    itemsize = item_size(dtype)
    recurrent = _read_state(draft, itemsize, dtype)
    reading = _read_quantization(draft, itemsize)
    weights = _read_weights(draft, reading, itemsize, tensors, files_bytes)
    kinds = draft.kinds
    if reason := _why_no_class(outer):
        draft.missing.add("architecture", reason)
    return ModelShape(
        architecture=next(iter(outer.words("architectures")), ""),
        model_type=model_type,
        dtype=dtype,
        layers=draft.layers,
        hidden=draft.hidden,
        heads=draft.heads,
        kv_heads=draft.kv_heads,
        head_dim=draft.head_dim,
        intermediate=values.whole(*_WIDTHS),
        vocab=values.whole("vocab_size"),
        max_context=_context(draft),
        attention_layers=None if kinds is None else kinds.count(FULL) + kinds.count(BOTH),
        window_layers=0 if kinds is None else kinds.count(WINDOW),
        window=draft.window,
        tied=_tied(draft),
        experts=draft.experts,
        recurrent=recurrent,
        latent=Latent(draft.latent.rank, draft.latent.rope) if draft.latent else None,
        quantization=reading.quantization,
        weights=weights,
        projections=_projections(draft),
        missing=draft.missing.sentences,
    )


def recast(
    shape: ModelShape,
    config: Mapping[str, object],
    *,
    dtype: str | None = None,
    quantization: Mapping[str, object] | None = None,
) -> ModelShape:
    """A model as an engine holds it that was asked for other types than those of the checkpoint.

    Args:
        shape: the model.
        config: its config.json.
        dtype: the type of what is not quantised.
        quantization: the quantization_config of a checkpoint that is like what the engine makes.

    Returns:
        The model; its weights are those of before, as far as the difference cannot be told.
    """
    asked = dict(config)
    if quantization is not None:
        asked["quantization_config"] = quantization
    then = shape_of(asked, dtype=dtype or shape.dtype)
    was = shape_of(config, dtype=shape.dtype)
    weights = shape.weights
    if weights is None:
        weights = None if shape.missing.get("weights") else then.weights
    elif then.weights is not None and was.weights is not None:
        weights = _in_proportion(weights, was.weights, then.weights)
    elif shape.quantization is None and quantization is None:
        before, after = item_size(shape.dtype) or 2, item_size(dtype) or 2
        weights = _times(weights, after / before)
    return replace(
        shape,
        dtype=then.dtype,
        quantization=then.quantization,
        recurrent=then.recurrent,
        weights=weights,
    )


def _in_proportion(weights: Weights, was: Weights, then: Weights) -> Weights:
    """Weights whose parts grow or shrink as counted ones do."""

    def part(name: str) -> int:
        mine, old, new = (getattr(one, name) for one in (weights, was, then))
        return int(mine * new / old) if old else int(mine)

    rest = weights.total - weights.replicated - weights.experts - weights.drafts
    old = was.total - was.replicated - was.experts - was.drafts
    new = then.total - then.replicated - then.experts - then.drafts
    replicated, experts, drafts = part("replicated"), part("experts"), part("drafts")
    total = replicated + experts + drafts + (int(rest * new / old) if old else rest)
    return replace(
        weights,
        total=total,
        replicated=replicated,
        experts=experts,
        drafts=drafts,
        vision=part("vision"),
    )


def _times(weights: Weights, factor: float) -> Weights:
    return replace(
        weights,
        total=int(weights.total * factor),
        replicated=int(weights.replicated * factor),
        experts=int(weights.experts * factor),
        drafts=int(weights.drafts * factor),
        vision=int(weights.vision * factor),
    )


def _why_no_class(outer: Values) -> str | None:
    """Why an engine could not find the model's class; None where it can."""
    found = outer.raw("architectures")
    if found is None or found == []:
        return f"{outer.where} has no architectures, by which an engine finds the model's code"
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        return f"{outer.where} has architectures = {shown(found)}, which is no list of names"
    return None


def _text_part(outer: Values) -> tuple[Values, Family | None, str]:
    """The configuration of the text model, its family, and its model_type."""
    inner = next((name for name in _NESTED if outer.sub(name)), None)
    part = outer.sub(inner) if inner else outer
    if inner is None and (thinker := outer.sub("thinker_config")).sub("text_config"):
        inner, part = "text_config", thinker.sub("text_config")
    own = outer.text("model_type") or ""
    model_type = part.text("model_type") or own
    family = family_of(model_type)
    if family is None and inner and not part.has("model_type"):
        family = family_of(own)
    if family is not None and family.defaults:
        part = part.with_defaults(family.defaults)
    return part, family, own or model_type


def _unknown(outer: Values, values: Values, model_type: str) -> str:
    if not model_type:
        return f"{outer.where} has no model_type"
    name = shown(values.text("model_type") or model_type)
    return (
        f"{values.where} has model_type {name}, a family that is not known here: its weights "
        "cannot be counted without safetensors, and defaults of its class are not taken"
    )


def _dtype(outer: Values, values: Values) -> str | None:
    """The type of the weights that are not quantised; newer files call it dtype."""
    names = (values.text("dtype"), values.text("torch_dtype"))
    found = next(
        (one for one in (*names, outer.text("dtype"), outer.text("torch_dtype")) if one), None
    )
    return None if found is None else found.removeprefix("torch.")


def _tied(draft: _Draft) -> bool:
    """Whether the head is the embedding: the outer configuration decides, then the class."""
    default = draft.family.tied if draft.family else False
    inner = draft.values.flag("tie_word_embeddings", default=default)
    return draft.outer.flag("tie_word_embeddings", default=inner)


def _read_sizes(draft: _Draft) -> None:
    values, missing = draft.values, draft.missing
    draft.hidden = values.whole("hidden_size", "n_embd", "d_model")
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    draft.layers = values.whole(*names, most=_MOST_LAYERS)
    pattern = values.text("hybrid_override_pattern")
    if draft.layers is None and pattern and len(pattern) <= _MOST_LAYERS:
        draft.layers = len(pattern)
    if draft.layers is None:
        missing.add("layers", _why_layers(values, names))
    if draft.hidden is None:
        missing.add("weights", values.why("hidden_size", "n_embd", "d_model"))


def _why_layers(values: Values, names: tuple[str, ...]) -> str:
    number = values.whole(*names)
    if number is not None:
        return f"{values.where} has {number} layers, more than the {_MOST_LAYERS} that are believed"
    return values.why(*names)


def _read_layers(draft: _Draft) -> None:
    """The kind of each layer."""
    layers, values, missing = draft.layers, draft.values, draft.missing
    draft.window = values.whole("sliding_window", "attention_chunk_size")
    if layers is None:
        missing.add("kv_cache", missing.sentences["layers"])
        return
    named = next((one for one in ("layer_types", "layers_block_type") if values.has(one)), None)
    names = values.words(named) if named else ()
    pattern = values.text("hybrid_override_pattern")
    if not names and pattern:
        names = tuple(pattern[:_MOST_LAYERS])
    if named and not names:
        reason = f"{values.where} has {named} = {shown(values.raw(named))}, which names no types"
        for key in ("kv_cache", "state", "weights"):
            missing.add(key, reason)
    elif names:
        draft.kinds = _named_kinds(draft, names, layers)
    else:
        draft.kinds = _implied_kinds(draft, layers)
    kinds = draft.kinds
    if kinds is None:
        return
    if STATE not in kinds and BOTH not in kinds and draft.family and draft.family.mamba:
        missing.add("state", f"{values.where} does not say which of its layers are Mamba layers")
    if WINDOW not in kinds:
        draft.window = None
    elif draft.window is None:
        missing.add("kv_cache", values.why("sliding_window", "attention_chunk_size"))


def _named_kinds(draft: _Draft, names: tuple[str, ...], layers: int) -> tuple[str, ...] | None:
    missing, where = draft.missing, draft.values.where
    strange = next((name for name in names if name not in _KINDS), None)
    reason = None
    if strange is not None:
        reason = f"{where} has layers of type {shown(strange)}, which is not known"
    elif len(names) != layers:
        reason = f"{where} has {layers} layers and names the types of {len(names)}"
    if reason is not None:
        for key in ("kv_cache", "state", "weights"):
            missing.add(key, reason)
        return None
    return tuple(_KINDS[name] for name in names)


def _implied_kinds(draft: _Draft, layers: int) -> tuple[str, ...] | None:
    """The kinds of layers from other keys, as the model's class derives them."""
    values, family = draft.values, draft.family
    numbers = range(layers)
    if family is not None and family.mamba:
        return _mamba_kinds(draft, family.mamba, layers)
    interval = values.whole("full_attention_interval")
    if interval is None and family is not None and family.linear:
        interval = 4
    if family is None and interval is None and (odd := _odd_layers(values)):
        reason = f"{values.where} has {odd[:40]}, which says of layers what is not known here"
        draft.missing.add("kv_cache", reason)
        draft.missing.add("state", reason)
        return None
    if interval is not None and (family is None or family.linear):
        return tuple(FULL if (one + 1) % interval == 0 else STATE for one in numbers)
    return tuple(_window_kinds(values, family, layers))


def _odd_layers(values: Values) -> str | None:
    """A key of layers that keep something else than keys and values of all tokens."""
    return next((name for name in values.names() if any(one in name for one in _ODD)), None)


def _mamba_kinds(draft: _Draft, naming: str, layers: int) -> tuple[str, ...] | None:
    values = draft.values
    if naming == "falcon_h1":
        return (BOTH,) * layers
    if naming in {"mamba", "mamba2"}:
        return (STATE,) * layers
    period = values.whole("attn_layer_period")
    offset = values.whole("attn_layer_offset", least=0)
    if period is not None and offset is not None:
        return tuple(FULL if one % period == offset else STATE for one in range(layers))
    indexes = values.numbers("attn_layer_indices")
    if indexes is not None:
        chosen = set(indexes)
        return tuple(FULL if one in chosen else STATE for one in range(layers))
    reason = f"{values.where} does not say which of its layers have attention"
    for key in ("kv_cache", "state"):
        draft.missing.add(key, reason)
    return None


def _window_kinds(values: Values, family: Family | None, layers: int) -> list[str]:
    """Attention of all layers; without a family, windows are left out: the larger cache."""
    kinds = [FULL] * layers
    window = values.whole("sliding_window") is not None
    window = window and values.flag("use_sliding_window", default=True)
    rule = family.windows if family else ""
    every = values.whole("sliding_window_pattern") or (family.every if family else 0)
    if rule == "chunks" and values.has("attention_chunk_size"):
        rotated = values.numbers("no_rope_layers")
        for one in range(layers):
            chunked = (one + 1) % every != 0
            if rotated is not None and len(rotated) == layers:
                chunked = bool(rotated[one])
            kinds[one] = WINDOW if chunked else FULL
    elif rule == "all" and window:
        kinds = [WINDOW] * layers
    elif rule == "pattern" and window and every:
        kinds = [FULL if (one + 1) % every == 0 else WINDOW for one in range(layers)]
    elif rule == "qwen" and window and values.flag("use_sliding_window", default=False):
        # Qwen2's class: only the layers from max_window_layers on, 28 by default.
        start = values.whole("max_window_layers", least=0)
        start = 28 if start is None else start
        kinds = [FULL if one < start else WINDOW for one in range(layers)]
    return kinds


def _read_attention(draft: _Draft) -> None:
    values, family, missing = draft.values, draft.family, draft.missing
    if family is not None and family.attention == "none":
        return
    draft.heads = values.whole("num_attention_heads", "n_head", "n_heads")
    if draft.heads is None:
        missing.add("heads", values.why("num_attention_heads", "n_head", "n_heads"))
    _read_latent(draft)
    _read_kv_heads(draft)
    if draft.latent is not None:
        draft.head_dim = draft.latent.nope + draft.latent.rope
        return
    draft.head_dim = values.whole("head_dim", "attention_head_dim")
    if draft.head_dim is None and not values.has("head_dim", "attention_head_dim"):
        if draft.hidden and draft.heads and draft.hidden % draft.heads == 0:
            # Every class without a head_dim of its own, and vLLM, take this.
            draft.head_dim = draft.hidden // draft.heads
        else:
            missing.add(
                "kv_cache",
                f"{values.where} has no head_dim, and hidden size by heads gives no whole number",
            )
    elif draft.head_dim is None:
        missing.add("kv_cache", values.why("head_dim", "attention_head_dim"))


def _read_kv_heads(draft: _Draft) -> None:
    """The heads that have keys and values; transformers' plain classes take all heads."""
    values, family, missing = draft.values, draft.family, draft.missing
    names = ("num_key_value_heads", "n_head_kv", "num_kv_heads")
    draft.kv_heads = values.whole(*names)
    if draft.kv_heads is None and not values.has(*names):
        if family is not None:
            # transformers' configuration classes of these families set it to the heads.
            draft.kv_heads = draft.heads
        elif values.flag("multi_query", default=False):
            draft.kv_heads = 1
    reason = "" if draft.kv_heads else values.why(*names)
    if draft.heads is None and not values.has(*names):
        reason = reason and missing.sentences.get("heads", reason)
    if draft.kv_heads and draft.heads and draft.heads % draft.kv_heads:
        number = f"its {draft.kv_heads} key-value heads"
        reason = f"{values.where} has {draft.heads} heads, which {number} do not divide"
        draft.kv_heads = None
    # The latent vector serves all heads, however many have keys.
    if reason and draft.latent is None:
        missing.add("heads", reason)
        missing.add("kv_cache", reason)


def _read_latent(draft: _Draft) -> None:
    values, missing = draft.values, draft.missing
    if not values.has("kv_lora_rank"):
        if draft.family is not None and draft.family.attention == "latent":
            missing.add("kv_cache", values.why("kv_lora_rank"))
        return
    rank, rope = values.whole("kv_lora_rank"), values.whole("qk_rope_head_dim")
    nope, value = values.whole("qk_nope_head_dim"), values.whole("v_head_dim")
    if rank is None or rope is None:
        missing.add("kv_cache", values.why("qk_rope_head_dim" if rank else "kv_lora_rank"))
        return
    if nope is None or value is None:
        missing.add("weights", values.why("v_head_dim" if nope else "qk_nope_head_dim"))
    query = values.whole("q_lora_rank")
    if query is None and values.has("q_lora_rank"):
        missing.add("weights", values.why("q_lora_rank"))
    draft.latent = LatentSizes(query, rank, nope or 0, rope, value or 0)


_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk")


def _read_experts(draft: _Draft) -> None:
    values, family, missing = draft.values, draft.family, draft.missing
    number = values.whole(*_COUNTS, least=0)
    layers = draft.layers or 0
    draft.sparse = (False,) * layers
    if not number:
        if number is None and values.has(*_COUNTS):
            missing.add("experts", values.why(*_COUNTS, least=0))
            draft.sparse = None
        elif number is None and family is not None and family.experts:
            missing.add("experts", values.why(*_COUNTS))
            draft.sparse = None
        return
    own = values.has("moe_intermediate_size", "expert_ffn_hidden_size")
    names = ("moe_intermediate_size", "expert_ffn_hidden_size")
    width = values.whole(*(names if own else ("intermediate_size",)))
    if width is None:
        missing.add("experts", values.why(*names))
    shared = values.whole(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    )
    each = values.whole("n_shared_experts", "num_shared_experts")
    if values.has("intermediate_size_mlp"):
        shared = width
    elif shared is None and each is not None and width is not None:
        shared = each * width
    draft.sparse = _sparse(draft, family.experts if family else "")
    draft.experts = Experts(
        count=number,
        per_token=values.whole(*_PER_TOKEN),
        intermediate=width,
        shared_intermediate=shared,
        layers=sum(draft.sparse),
    )


def _sparse(draft: _Draft, rule: str) -> tuple[bool, ...]:
    """Which layers have experts."""
    values, numbers = draft.values, range(draft.layers or 0)
    first = values.whole("first_k_dense_replace", least=0) or 0
    every = values.whole("moe_layer_freq", "interleave_moe_layer_step", "decoder_sparse_step") or 1
    dense = set(values.numbers("mlp_only_layers") or ())
    if draft.kinds is not None and SPARSE in draft.kinds:
        return tuple(kind == SPARSE for kind in draft.kinds)
    if period := values.whole("expert_layer_period"):
        offset = values.whole("expert_layer_offset", least=0) or 0
        return tuple(one % period == offset for one in numbers)
    if rule == "all":
        return tuple(True for _ in numbers)
    if rule == "first_dense":
        return tuple(one >= first and one % every == 0 for one in numbers)
    # An unknown family has the keys of one of these two; what it has not changes nothing.
    return tuple(one >= first and one not in dense and (one + 1) % every == 0 for one in numbers)


def _read_state(draft: _Draft, itemsize: int | None, dtype: str | None) -> Recurrent | None:
    kinds, values, family = draft.kinds, draft.values, draft.family
    number = 0 if kinds is None else kinds.count(STATE) + kinds.count(BOTH)
    if not number:
        return None
    naming = family.mamba if family else ""
    state = mamba_state(naming, values, draft.hidden) if naming else _linear(draft)
    reason = state if isinstance(state, str) else None
    if reason is None and itemsize is None:
        reason = _no_dtype(draft, dtype)
    if isinstance(state, str) or itemsize is None:
        draft.missing.add("state", reason or "")
        return None
    size = number * state_bytes(values, state, itemsize)
    return Recurrent(layers=number, state_bytes=size, heads=state.heads)


def _no_dtype(draft: _Draft, dtype: str | None) -> str:
    if dtype is None:
        return f"{draft.outer.where} has no dtype or torch_dtype"
    return f"{draft.outer.where} has dtype {shown(dtype)}, whose size is not known"


def _linear(draft: _Draft) -> State | str:
    values = draft.values
    names = (
        "linear_conv_kernel_dim",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_num_value_heads",
        "linear_value_head_dim",
    )
    sizes = [values.whole(name) for name in names]
    known = [one for one in sizes if one is not None]
    if len(known) < len(sizes):
        return values.why(names[sizes.index(None)])
    draft.linear = LinearSizes(*known)
    return linear_state(draft.linear)


def _read_quantization(draft: _Draft, itemsize: int | None) -> Reading:
    # compressed-tensors wrote `compression_config` at first.
    places = (draft.outer, "quantization_config"), (draft.values, "quantization_config")
    parts = (one.sub(name) for one, name in (*places, (draft.outer, "compression_config")))
    values = next((one for one in parts if one), None)
    if values is None:
        if draft.outer.has("quantization_config") and draft.outer.raw("quantization_config") != {}:
            found = shown(draft.outer.raw("quantization_config"))
            reason = f"quantization_config of {draft.outer.where} is {found}, and no object"
            draft.missing.add("quantization", reason)
            return Reading(problem=reason, unsized=reason)
        return Reading()
    reading = read_quantization(values, itemsize or 2)
    if reading.problem:
        draft.missing.add("quantization", reading.problem)
        return replace(reading, unsized=reading.unsized or reading.problem)
    return reading


def _context(draft: _Draft) -> int | None:
    """The longest sequence, as vLLM derives it from the configuration."""
    values = draft.values
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
    length = values.whole(*names, most=_MOST_CONTEXT)
    if length is None:
        draft.missing.add("context", values.why(*names))
        return None
    rope = values.sub("rope_scaling") or values.sub("rope_parameters")
    factor = rope.raw("factor")
    kind = rope.text("rope_type") or rope.text("type")
    # vLLM: the length of Gemma 3 is the stretched one, although its kind is `linear`.
    gemma = (values.text("model_type") or "").startswith("gemma3")
    if kind not in _UNSTRETCHED or isinstance(factor, bool) or gemma:
        return length
    if not isinstance(factor, (int, float)) or not 1 <= factor <= _MOST_CONTEXT:
        return length
    return min(int(length * factor), _MOST_CONTEXT)


def _read_weights(
    draft: _Draft,
    reading: Reading,
    itemsize: int | None,
    tensors: Mapping[str, TensorInfo] | None,
    files: int | None,
) -> Weights | None:
    """The weights, from the best source that there is.

    Files that hold another size than config.json says are not the whole model, or not of this one;
    then the count stands.
    """
    blueprint = _blueprint(draft, reading, itemsize)
    weights = None
    if isinstance(blueprint, str):
        draft.missing.add("weights", blueprint)
    elif "weights" not in draft.missing.sentences:
        weights = count(blueprint)
    if files is None and not tensors:
        return weights
    draft.missing.sentences.pop("weights", None)
    seen = read_weights(tensors, files, draft.layers) if tensors else None
    size = seen.total if seen else files or 0
    if weights is not None and not _is_near(size, weights):
        return replace(weights, files=files if files is not None else size, differs=True)
    if seen is not None or files is None:
        return seen
    if weights is None:
        # The total is what the files say; how it is spread over GPUs is not known.
        return Weights(files, 0, 0, None, counted=False, files=files)
    return _fitted(weights, files)


def _is_near(size: int, weights: Weights) -> bool:
    """Whether files can be those of the counted weights; layers for speculation may be left out."""
    least = weights.total - weights.drafts
    return least * (1 - _TOLERANCE) <= size <= weights.total * (1 + _TOLERANCE)


def _fitted(weights: Weights, files: int) -> Weights:
    """Counted parts of a total that the files tell."""
    replicated = min(weights.replicated, files)
    experts = min(weights.experts, files - replicated)
    return replace(
        weights,
        total=files,
        replicated=replicated,
        experts=experts,
        vision=min(weights.vision, replicated),
        drafts=min(weights.drafts, files - replicated - experts),
        files=files,
    )


def _blueprint(draft: _Draft, reading: Reading, itemsize: int | None) -> Blueprint | str:
    """All that a count needs, or why there is no count."""
    values, family = draft.values, draft.family
    if family is None:
        return draft.missing.sentences.get("architecture", "")
    vocab, inner = values.whole("vocab_size"), values.whole(*_WIDTHS)
    if inner is None and family.positions and draft.hidden:
        inner = 4 * draft.hidden
    vision = _vision(draft, family)
    problem = reading.unsized or _uncountable(draft, family, reading) or _size_problem(draft, inner)
    if problem is None and itemsize is None:
        problem = _no_dtype(draft, _dtype(draft.outer, values))
    if problem is None and isinstance(vision, str):
        problem = vision
    if problem or isinstance(vision, str) or itemsize is None or vocab is None:
        return problem or ""
    return Blueprint(
        family=_with_norms(family, values),
        hidden=draft.hidden or 0,
        vocab=vocab,
        heads=draft.heads or 0,
        kv_heads=draft.kv_heads or 0,
        head_dim=draft.head_dim or 0,
        intermediate=inner,
        layers=tuple(zip(draft.kinds or (), draft.sparse or (), strict=False)),
        tied=_tied(draft),
        itemsize=itemsize,
        gate=_gated(draft),
        biases=_biases(family, values),
        positions=values.whole("n_positions", "max_position_embeddings") or 0,
        experts=draft.experts,
        expert_gate=values.has("shared_expert_intermediate_size"),
        latent=draft.latent,
        linear=draft.linear,
        drafts=_drafts(values),
        vision=vision,
        scheme=reading.scheme,
    )


def _biases(family: Family, values: Values) -> tuple[bool, bool, bool]:
    """Whether there are biases on q, k and v; on o; in the MLP."""
    attention = values.flag("attention_bias", default=False)
    return (
        _says(family.qkv_bias, values.flag("qkv_bias", default=attention)),
        _says(family.o_bias, values.flag("attention_out_bias", default=attention)),
        _says(family.mlp_bias, values.flag("mlp_bias", default=False)),
    )


def _size_problem(draft: _Draft, inner: int | None) -> str | None:
    """Why the sizes outside attention do not suffice."""
    values = draft.values
    if values.whole("vocab_size") is None:
        return values.why("vocab_size")
    if inner is None and not all(draft.sparse or (False,)):
        return values.why(*_WIDTHS[1:])
    return None


def _uncountable(draft: _Draft, family: Family, reading: Reading) -> str | None:
    """Why the layers cannot be counted."""
    sentences = draft.missing.sentences
    if not family.counted:
        return f"how the layers of {draft.values.where} are built is not known here"
    single = reading.scheme.ignored.experts if reading.scheme else set[int]()
    if single and draft.experts and len(single) != draft.experts.count:
        return "quantization_config names single experts, not all of a layer"
    stops = ("layers", "experts") if draft.latent else ("layers", "experts", "heads")
    found = next((sentences[key] for key in stops if key in sentences), None)
    if found is None and (draft.heads is None or draft.head_dim is None or draft.kinds is None):
        found = sentences.get("heads") or sentences.get("kv_cache") or "its layers are not known"
    if found is None and draft.kinds and STATE in draft.kinds and draft.linear is None:
        found = sentences.get("state", "the sizes of its linear attention are not known")
    return found


def _says(fixed: bool | None, said: bool) -> bool:  # noqa: FBT001 - the two sources of one answer
    return said if fixed is None else fixed


def _with_norms(family: Family, values: Values) -> Family:
    """The family, with norms on queries and keys only where config.json has them (GLM-4.5)."""
    if values.flag("use_qk_norm", default=False) and not family.qk_norm:
        return replace(family, qk_norm="head")
    return family


def _gated(draft: _Draft) -> bool:
    """Whether q_proj makes a gate too: always in Qwen3-Next and Qwen3.5, else where it is said."""
    always = draft.family is not None and bool(draft.family.linear)
    return draft.values.flag("attn_output_gate", default=always)


def _drafts(values: Values) -> int:
    names = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    return values.whole(*names, least=0, most=_MOST_LAYERS) or 0


def _vision(draft: _Draft, family: Family) -> int | str:
    """The weights of the encoders beside the text model."""
    outer = draft.outer
    if outer.has("audio_config"):
        return f"{outer.where} has an audio_config; how that encoder is built is not known"
    vision = outer.sub("vision_config")
    if not vision:
        return 0
    own = outer.text("model_type") or ""
    if not family.vision or not own.startswith(_SEEING[family.vision]):
        return f"{outer.where} has a vision_config whose encoder is not known"
    return count_vision(family.vision, vision, outer, draft.hidden or 0)


def _projections(draft: _Draft) -> dict[str, tuple[int, int]]:
    """The linear layers that tensor parallel splits, before any split."""
    found: dict[str, tuple[int, int]] = {}
    hidden = draft.hidden
    if hidden is None:
        return found
    inner = draft.values.whole(*_WIDTHS)
    if inner is not None and not all(draft.sparse or (False,)):
        found["gate_up"], found["down"] = (inner, hidden), (hidden, inner)
    found |= _attention_projections(draft, hidden)
    if draft.experts is not None:
        for name, width in (
            ("expert", draft.experts.intermediate),
            ("shared", draft.experts.shared_intermediate),
        ):
            if width is not None:
                found[f"{name}_gate_up"] = (width, hidden)
                found[f"{name}_down"] = (hidden, width)
    if draft.linear is not None:
        keys, values = draft.linear.keys, draft.linear.values
        if draft.family is not None and draft.family.linear == "joined":
            found["linear_qkvz"] = (2 * keys + 2 * values, hidden)
        else:
            found["linear_qk"], found["linear_v"] = (keys, hidden), (values, hidden)
        found["linear_out"] = (hidden, values)
    return found


def _attention_projections(draft: _Draft, hidden: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    heads, latent = draft.heads, draft.latent
    if heads is None:
        return found
    if latent is not None:
        if not latent.nope or not latent.value:
            return found
        asked = heads * (latent.nope + latent.rope)
        if latent.query_rank:
            found["q_b"] = (asked, latent.query_rank)
        else:
            found["q"] = (asked, hidden)
        found["kv_b"] = (heads * (latent.nope + latent.value), latent.rank)
        found["o"] = (hidden, heads * latent.value)
        return found
    if draft.head_dim is None or draft.kinds is None or set(draft.kinds) <= {STATE, DENSE, SPARSE}:
        return found
    query = heads * draft.head_dim
    found["q"] = (2 * query if _gated(draft) else query, hidden)
    found["o"] = (hidden, query)
    if draft.kv_heads is not None:
        found["kv"] = (draft.kv_heads * draft.head_dim, hidden)
    return found
