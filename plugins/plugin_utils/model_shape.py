# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model is, as far as a plan has to know: its dimensions, its weights, its quantisation.

Plain values. model_reader.py makes them from config.json and safetensors; what it could not find
out is None here and named in `missing`, and the decisions that need it are not made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Quantization:
    """How the weights of a checkpoint are stored."""

    method: str
    """As config.json names it: fp8, awq, gptq, compressed-tensors, ..."""
    bits: int | None = None
    """Bits of a quantised weight; None where it is not said, 0 where what is said is no number."""
    block: tuple[int, int] | None = None
    """Rows (out) and columns (in) that share a scale; None for per-tensor or per-channel scales."""
    ignored: tuple[str, ...] = ()
    """Modules that are not quantised."""


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture-of-experts model."""

    count: int
    per_token: int | None
    intermediate: int | None
    """Width of one routed expert."""
    shared_intermediate: int | None = None
    """Width of all shared experts of a layer together; None where there are none."""
    layers: int = 0
    """How many layers have experts."""


@dataclass(frozen=True)
class Recurrent:
    """Layers that keep a state of fixed size for each sequence (linear attention, Mamba)."""

    layers: int
    state_bytes: int
    """Bytes of one sequence's state over all these layers, on one GPU without tensor parallel."""
    heads: int | None = None
    """Into how many shards tensor parallel can split the state; None where it cannot."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: a compressed vector a token, on every GPU of a group."""

    rank: int
    rope: int


@dataclass(frozen=True)
class Weights:
    """The weights of a checkpoint, in bytes as they are stored."""

    total: int
    replicated: int
    """Of these, what every GPU of a tensor group holds whole (norms, routers, a vision tower)."""
    experts: int
    """Of these, what the routed experts hold (expert parallel spreads just these)."""
    parameters: int | None
    counted: bool
    """Counted from the architecture, and not read from safetensors."""
    differs: bool = False
    """Counted although there are files, since their size is another than config.json says."""
    files: int | None = None
    """Bytes of all weight files, for the disk; None where no file was seen."""
    vision: int = 0
    """Of `replicated`, what encoders of images and sound hold: engines split these by default, so
    `replicated` is then an upper bound."""
    drafts: int = 0
    """Of `total`, layers for speculative decoding (MTP), which engines load only for that. Neither
    in `replicated` nor in `experts`."""


@dataclass(frozen=True)
class ModelShape:
    """A model."""

    architecture: str
    model_type: str
    dtype: str | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    intermediate: int | None
    vocab: int | None
    max_context: int | None
    attention_layers: int | None
    """Layers that cache keys and values of the whole context."""
    window_layers: int = 0
    """Layers that cache those of the last `window` tokens only."""
    window: int | None = None
    tied: bool = False
    experts: Experts | None = None
    recurrent: Recurrent | None = None
    latent: Latent | None = None
    quantization: Quantization | None = None
    weights: Weights | None = None
    projections: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Sharded linear layers by name: `q`, `kv` (one of both), `o`, `gate_up` (one of both), `down`,
    `expert_gate_up`, `expert_down`, `shared_gate_up`, `shared_down`; `q_b` and `kv_b` of latent
    attention; those of linear attention: `linear_qk` (one of both), `linear_v` (values or gate),
    `linear_out`, and `linear_qkvz` where a checkpoint has these four as one:
    (out features, in features) before any split."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Decisions that cannot be made (`weights`, `kv_cache`, `heads`, ...), each with why."""
