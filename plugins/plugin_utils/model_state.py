# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What layers without a cache of keys and values keep for each sequence: a state of fixed size.

The sizes are those of vLLM's state calculators (model_executor/layers/mamba/mamba_utils.py),
without tensor parallel and without room for speculated tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_config import Values
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import (
        LinearSizes,
    )

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "half": 2,
    "float": 4,
}
"""Bytes of a value by the name of its type."""


class State(NamedTuple):
    """The state of one sequence in one layer: values of the convolution and of the recurrence."""

    convolution: int
    recurrence: int
    heads: int | None
    """Into how many shards it can be split."""


def item_size(dtype: str | None) -> int | None:
    """Bytes of a value of a type, as config.json or torch names it."""
    return ITEM_SIZES.get((dtype or "").removeprefix("torch."))


def state_bytes(values: Values, state: State, itemsize: int) -> int:
    """Bytes of a layer's state; the recurrence may have a type of its own."""
    own = values.text("mamba_ssm_dtype") or values.text("mamba_ssm_cache_dtype")
    recurrence = item_size(own) or itemsize
    return state.convolution * itemsize + state.recurrence * recurrence


def linear_state(sizes: LinearSizes) -> State:
    """The state of gated delta nets (Qwen3-Next, Qwen3.5)."""
    mixed = 2 * sizes.keys + sizes.values
    return State(
        (sizes.kernel - 1) * mixed,
        sizes.value_heads * sizes.key_dim * sizes.value_dim,
        math.gcd(sizes.key_heads, sizes.value_heads),
    )


def mamba_state(naming: str, values: Values, hidden: int | None) -> State | str:
    """The state of a Mamba layer, or why it is not known.

    Args:
        naming: whose names the keys have, see Family.mamba.
        values: the configuration of the text model.
        hidden: its hidden size.
    """
    if naming in {"jamba", "mamba"}:
        return _first(naming, values, hidden)
    return _second(naming, values, hidden)


def _first(naming: str, values: Values, hidden: int | None) -> State | str:
    """Mamba: one state for each channel."""
    prefix = naming == "jamba"
    keys = ("mamba_d_state", "mamba_d_conv") if prefix else ("state_size", "conv_kernel")
    size, kernel = values.whole(keys[0]), values.whole(keys[1])
    if size is None or kernel is None:
        return values.why(keys[1] if size else keys[0])
    width = values.whole("intermediate_size") if naming == "mamba" else None
    if width is None:
        expand = values.whole("mamba_expand" if prefix else "expand")
        if expand is None or hidden is None:
            return values.why("mamba_expand" if prefix else "expand")
        width = expand * hidden
    return State((kernel - 1) * width, width * size, width)


_SECOND = {
    "bamba": ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    "nemotron_h": (
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
    ),
    "mamba2": ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
}


def _second(naming: str, values: Values, hidden: int | None) -> State | str:
    """Mamba 2: heads with a matrix each, and groups that share what is read and written."""
    keys = _SECOND.get(naming, _SECOND["bamba"])
    heads = values.whole(keys[0])
    width = values.whole(keys[1])
    if width is None and values.raw(keys[1]) == "auto" and heads:
        # "auto" is the inner width by the number of heads.
        inner = values.whole("mamba_d_ssm")
        if inner is None and hidden is not None:
            inner = (values.whole("mamba_expand") or 2) * hidden
        width = None if inner is None else inner // heads
    groups = values.whole(keys[2], "mamba_n_groups")
    size, kernel = values.whole(keys[3]), values.whole(keys[4], "mamba_d_conv")
    sizes = (heads, width, groups, size, kernel)
    if None in sizes:
        return values.why(keys[sizes.index(None)])
    heads, width, groups, size, kernel = (one or 0 for one in sizes)
    mixed = heads * width + 2 * groups * size
    return State((kernel - 1) * mixed, heads * width * size, heads)
