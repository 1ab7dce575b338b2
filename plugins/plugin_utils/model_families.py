# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What config.json does not say because a model's class does: defaults, norms, biases.

One row for each `model_type` (that of the text part, without `_text`), read from the configuration
and modelling files of transformers 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Family:
    """What models of one class have in common."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    """Dimensions that the class takes where config.json has none. Without `num_key_value_heads`
    there are as many of them as heads; without `head_dim` it is hidden size by heads."""
    tied: bool = False
    counted: bool = True
    """Whether the layers below describe all of its weights."""
    attention: str = "grouped"
    """`grouped` (also where every head has its own keys), `latent`, or `none`."""
    windows: str = ""
    """Which layers attend to a window where there is no `layer_types`: `all` of them, those after
    `max_window_layers` (`qwen`), all but each `every`-th (`pattern`), or `chunks` of llama4."""
    every: int = 0
    linear: str = ""
    """Linear attention: `split` or `joined` input projections."""
    mamba: str = ""
    """The naming of its Mamba layers, see model_state.py."""
    experts: str = ""
    """Which layers have experts: `steps`, `first_dense`, `all`."""
    qkv_bias: bool | None = False
    """None: `attention_bias` says so."""
    o_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: str = ""
    """`head` (one vector of head size each) or `full` (over all heads)."""
    norms: int = 2
    """Vectors of hidden size in each layer."""
    gated: bool = True
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    positions: bool = False
    """Learned positions, biases on everything and biased norms, as GPT-2 has."""
    drafts: str = ""
    """How layers for speculation are stored: `qwen` or `deepseek`."""
    vision: str = ""
    """The image encoder that comes with it: `qwen`, `siglip` or `pixtral`."""


_LLAMA = Family(qkv_bias=None, o_bias=None, mlp_bias=None)
_MISTRAL = Family(
    {"num_key_value_heads": 8, "sliding_window": 4096}, windows="all", vision="pixtral"
)
_QWEN2 = Family({"num_key_value_heads": 32}, qkv_bias=True, windows="qwen")
_QWEN3 = Family(
    {"num_key_value_heads": 32, "head_dim": 128},
    qkv_bias=None,
    o_bias=None,
    qk_norm="head",
    windows="qwen",
    vision="qwen3_vl",
)
_QWEN3_MOE = replace(_QWEN3, defaults={"num_key_value_heads": 4}, experts="steps", windows="")
_QWEN3_NEXT = Family(
    {"num_key_value_heads": 2, "head_dim": 256},
    qkv_bias=None,
    o_bias=None,
    qk_norm="head",
    linear="joined",
    experts="steps",
    drafts="qwen",
)
_QWEN3_5 = replace(
    _QWEN3_NEXT,
    defaults={"num_key_value_heads": 4, "head_dim": 256},
    linear="split",
    experts="",
    vision="qwen",
)
_DEEPSEEK = Family(
    attention="latent",
    qkv_bias=None,
    o_bias=None,
    experts="first_dense",
    router_bias=True,
    drafts="deepseek",
)
_GEMMA = Family({"num_key_value_heads": 16, "head_dim": 256}, tied=True, qkv_bias=None, o_bias=None)
_GEMMA2 = replace(
    _GEMMA,
    defaults={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    norms=4,
    windows="pattern",
    every=2,
)
_HYBRID = Family(counted=False)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": replace(_LLAMA, defaults={"num_key_value_heads": 4}, tied=True),
    "olmo2": replace(_LLAMA, qk_norm="full", mlp_bias=False),
    "seed_oss": replace(_LLAMA, defaults={"num_key_value_heads": 8, "head_dim": 128}, o_bias=False),
    "mistral": _MISTRAL,
    "ministral3": replace(
        _MISTRAL, defaults={"num_key_value_heads": 8, "head_dim": 128}, vision="pixtral"
    ),
    "phi3": Family(windows="all"),
    "glm4": Family({"num_key_value_heads": 2, "head_dim": 128}, qkv_bias=None, norms=4),
    "qwen2": _QWEN2,
    "qwen2_vl": replace(_QWEN2, counted=False),
    "qwen2_5_vl": replace(_QWEN2, counted=False),
    "qwen2_moe": replace(_QWEN2, defaults={"num_key_value_heads": 16}, experts="steps", windows=""),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe": replace(_QWEN3_MOE, defaults={"num_key_value_heads": 16}),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": replace(
        _QWEN3_5, defaults={"num_key_value_heads": 2, "head_dim": 256}, experts="all"
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": replace(
        _GEMMA2,
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 262_208,
        },
        qk_norm="head",
        every=6,
        vision="siglip",
    ),
    "mixtral": Family({"num_key_value_heads": 8}, experts="all", windows="all"),
    "olmoe": Family(qkv_bias=None, o_bias=None, qk_norm="full", experts="all"),
    "minimax_m2": Family(
        {"num_key_value_heads": 8, "head_dim": 128},
        qk_norm="full",
        experts="all",
        router_bias=True,
        counted=False,
    ),
    "glm4_moe": Family(
        {"num_key_value_heads": 8},
        qkv_bias=None,
        experts="first_dense",
        router_bias=True,
        drafts="deepseek",
    ),
    "gpt_oss": Family(
        {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
        qkv_bias=True,
        o_bias=True,
        experts="all",
        router_bias=True,
        expert_bias=True,
        sinks=True,
        windows="pattern",
        every=2,
    ),
    "deepseek_v2": replace(_DEEPSEEK, router_bias=False, drafts=""),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gpt2": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, positions=True, tied=True
    ),
    "llama4": Family(
        {"num_key_value_heads": 8, "head_dim": 128},
        experts="steps",
        windows="chunks",
        every=4,
        counted=False,
    ),
    "cohere2": Family(windows="pattern", every=4, tied=True, counted=False),
    "jamba": replace(_HYBRID, mamba="jamba", defaults={"num_key_value_heads": 8}, experts="steps"),
    "bamba": replace(_HYBRID, mamba="bamba", defaults={"num_key_value_heads": 8}),
    "granitemoehybrid": replace(_HYBRID, mamba="bamba", experts="all"),
    "nemotron_h": replace(_HYBRID, mamba="nemotron_h", defaults={"num_key_value_heads": 8}),
    "falcon_h1": replace(_HYBRID, mamba="falcon_h1", defaults={"num_key_value_heads": 8}),
    "mamba2": replace(_HYBRID, mamba="mamba2", attention="none"),
    "mamba": replace(_HYBRID, mamba="mamba", attention="none"),
    "falcon_mamba": replace(_HYBRID, mamba="mamba", attention="none"),
}


def family_of(model_type: str) -> Family | None:
    """The family of a model_type; None where it is not one of the known ones."""
    return FAMILIES.get(model_type.removesuffix("_text"))
