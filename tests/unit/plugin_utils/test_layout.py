# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which layouts an engine accepts, which one is proposed, and whether a way out is one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import layout as layout_
from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import (
    Asked,
    Cards,
    Layout,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import (
    Experts,
    Latent,
    ModelShape,
    Quantization,
    Recurrent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

FP8 = Quantization("fp8", 8, (128, 128))
DENSE = ModelShape(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    dtype="bfloat16",
    layers=36,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=12288,
    vocab=151936,
    max_context=40960,
    attention_layers=36,
)
MOE = replace(
    DENSE,
    layers=48,
    hidden=2048,
    kv_heads=4,
    intermediate=None,
    attention_layers=48,
    experts=Experts(128, 8, 768, None, 48),
)
HYBRID_MOE = ModelShape(
    architecture="Qwen3_5MoeForConditionalGeneration",
    model_type="qwen3_5_moe",
    dtype="bfloat16",
    layers=40,
    hidden=2048,
    heads=16,
    kv_heads=2,
    head_dim=256,
    intermediate=None,
    vocab=248320,
    max_context=262144,
    attention_layers=10,
    experts=Experts(256, 8, 512, 512, 40),
    recurrent=Recurrent(30, 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2), 16),
    quantization=FP8,
    projections={
        "q": (8192, 2048),
        "kv": (512, 2048),
        "o": (2048, 4096),
        "expert_gate_up": (512, 2048),
        "expert_down": (2048, 512),
        "shared_gate_up": (512, 2048),
        "shared_down": (2048, 512),
        "linear_qk": (2048, 2048),
        "linear_v": (4096, 2048),
        "linear_out": (2048, 4096),
    },
)
PADDED = replace(DENSE, hidden=768, heads=12, kv_heads=4, head_dim=64, intermediate=1536)


def rules(shape: ModelShape, layout: Layout, engine: str = "vllm", gpus: int | None = None) -> str:
    """The rules that a layout breaks, each once."""
    found = layout_.check(shape, layout, engine, layout.gpus if gpus is None else gpus)
    return " ".join(sorted({problem.rule for problem in found}))


@pytest.mark.parametrize(
    ("shape", "layout", "engine", "expected"),
    [
        (DENSE, Layout(8), "vllm", ""),
        (DENSE, Layout(3), "vllm", "tp-heads"),
        (replace(DENSE, heads=52, kv_heads=4), Layout(8), "vllm", "tp-heads"),
        # Fewer KV heads than GPUs are replicated, if they divide.
        (replace(DENSE, heads=48, kv_heads=2), Layout(4), "vllm", ""),
        (replace(DENSE, heads=48, kv_heads=2), Layout(3), "vllm", "tp-heads"),
        (replace(DENSE, heads=48, kv_heads=3), Layout(2), "vllm", "tp-heads"),
        # MLA has none to split.
        (replace(DENSE, kv_heads=3, latent=Latent(512, 64)), Layout(2), "vllm", ""),
        (replace(DENSE, intermediate=1001), Layout(2), "vllm", "tp-heads"),
        (replace(DENSE, recurrent=Recurrent(3, 10, 6)), Layout(4), "vllm", "tp-heads"),
        # A vocabulary is padded.
        (replace(DENSE, vocab=151937), Layout(8), "vllm", ""),
        (DENSE, Layout(1, 36), "vllm", ""),
        (DENSE, Layout(1, 37), "vllm", "pp-layers"),
        (DENSE, Layout(1, 1, 5), "vllm", ""),
        (DENSE, Layout(2, expert=True), "vllm", "ep-experts"),
        # 768 / 8 is 96: fine in BF16, no whole block in FP8.
        (MOE, Layout(4, 1, 2), "vllm", ""),
        (replace(MOE, quantization=FP8), Layout(4, 1, 2), "vllm", "fp8-block-tp"),
        (replace(MOE, quantization=FP8), Layout(4), "vllm", "fp8-block-tp"),
        # A width that no layer has is no obstacle.
        (replace(MOE, intermediate=1001), Layout(4), "vllm", ""),
        (replace(MOE, quantization=FP8), Layout(2), "vllm", ""),
        (replace(MOE, quantization=FP8), Layout(4, expert=True), "vllm", ""),
        (replace(MOE, quantization=FP8), Layout(2, 1, 4), "sglang", ""),
        # vLLM spreads experts unevenly, SGLang does not.
        (replace(MOE, experts=Experts(130, 8, 768)), Layout(4, expert=True), "vllm", ""),
        (
            replace(MOE, experts=Experts(130, 8, 768)),
            Layout(4, expert=True),
            "sglang",
            "ep-experts",
        ),
        (
            replace(MOE, experts=Experts(6, 2, 768)),
            Layout(4, 1, 2, expert=True),
            "vllm",
            "ep-experts",
        ),
        # The known case. vLLM cuts experts over the replicas too.
        (HYBRID_MOE, Layout(8), "vllm", "fp8-block-tp"),
        (HYBRID_MOE, Layout(8), "sglang", "fp8-block-tp"),
        (HYBRID_MOE, Layout(8, expert=True), "vllm", "fp8-block-tp"),
        (HYBRID_MOE, Layout(4, 1, 2), "vllm", "fp8-block-tp"),
        (HYBRID_MOE, Layout(4, 1, 2), "sglang", ""),
        (HYBRID_MOE, Layout(4, 1, 2, expert=True), "vllm", ""),
        (HYBRID_MOE, Layout(4), "vllm", ""),
        # The padded SmolLM2: one KV head of 64 columns is half a block.
        (replace(PADDED, quantization=FP8), Layout(2), "vllm", ""),
        (replace(PADDED, quantization=FP8), Layout(4), "vllm", "fp8-block-tp"),
        (PADDED, Layout(4), "vllm", ""),
        # The unpadded one cannot even be joined to one matrix.
        (
            replace(DENSE, hidden=576, heads=9, kv_heads=3, head_dim=64, quantization=FP8),
            Layout(),
            "vllm",
            "fp8-block-tp",
        ),
        (replace(DENSE, quantization=Quantization("fp8", 8)), Layout(8), "vllm", ""),
        (
            replace(PADDED, quantization=Quantization("compressed-tensors", 8, (128, 128))),
            Layout(4),
            "vllm",
            "fp8-block-tp",
        ),
    ],
)
def test_rules(shape: ModelShape, layout: Layout, engine: str, expected: str) -> None:
    """What the engines' own checks say."""
    assert rules(shape, layout, engine) == expected


def test_gpus() -> None:
    """A layout uses the GPUs that there are, and its sizes are sizes."""
    assert rules(DENSE, Layout(4), gpus=8) == "layout-gpus"
    assert rules(DENSE, Layout(0), gpus=8) == "layout-gpus"


def test_words() -> None:
    """The numbers stand in the message, the way out is a layout that works."""
    problem = layout_.check(replace(MOE, quantization=FP8), Layout(8), "sglang", 8)[-1]
    assert problem.fact == (
        "moe_intermediate_size 768 over TP 8 is 96 per rank, and 96 is not a multiple of block 128"
    )
    problem = layout_.check(HYBRID_MOE, Layout(8), "sglang", 8)[-1]
    assert "512 over TP 8 is 64 per rank, and 64 is not a multiple of block 128" in problem.fact
    assert problem.fix == "use TP 4 x DP 2"
    problem = layout_.check(HYBRID_MOE, Layout(8), "vllm", 8)[-1]
    assert problem.fix == "use TP 4 x DP 2 with expert parallel"
    assert problem.relax == {
        "tensor_parallel": 4,
        "pipeline_parallel": 1,
        "data_parallel": 2,
        "expert_parallel": True,
    }


def test_no_way_out() -> None:
    """Where no layout works, the fix is another checkpoint, and nothing to relax."""
    shape = replace(PADDED, heads=9, kv_heads=3, quantization=FP8)
    (*_, problem) = layout_.check(shape, Layout(), "vllm", 1)
    assert "BF16" in problem.fix
    assert problem.relax == {}


def test_accept() -> None:
    """A way out that does not fit into memory comes after one that does."""
    found = layout_.check(DENSE, Layout(3), "vllm", 6, lambda layout: layout.pipeline == 3)
    assert found[0].relax["pipeline_parallel"] == 3


@dataclass(frozen=True)
class _Room:
    fits: bool | None
    short_bytes: int = 0
    kv_tokens: int = 0


def _needs(gpus: int) -> dict[Layout, _Room]:
    """A memory in which a replica needs a number of GPUs."""
    return {
        row: _Room(row.tensor * row.pipeline >= gpus, 2**30)
        for count in range(1, 17)
        for experts in (False, True)
        for row in layout_.layouts(count, with_experts=experts)
    }


@pytest.mark.parametrize(
    ("shape", "cards", "needed", "asked", "expected"),
    [
        (DENSE, Cards("vllm", 8), 1, Asked(), Layout(1, 1, 8)),
        (DENSE, Cards("vllm", 8), 2, Asked(), Layout(2, 1, 4)),
        (DENSE, Cards("vllm", 8), 2, Asked(tensor=4), Layout(4, 1, 2)),
        (DENSE, Cards("vllm", 8, links=8), 8, Asked(), Layout(8)),
        # Three GPUs cannot share 32 heads.
        (DENSE, Cards("vllm", 3), 2, Asked(), Layout(1, 3)),
        (DENSE, Cards("vllm", 3), 1, Asked(), Layout(1, 1, 3)),
        (HYBRID_MOE, Cards("vllm", 8), 1, Asked(), Layout(1, 1, 8, expert=True)),
        (HYBRID_MOE, Cards("vllm", 8), 4, Asked(), Layout(4, 1, 2, expert=True)),
        (HYBRID_MOE, Cards("sglang", 8), 4, Asked(), Layout(4, 1, 2)),
        (HYBRID_MOE, Cards("vllm", 8), 4, Asked(expert=False), Layout(2, 2, 2)),
    ],
)
def test_propose(
    shape: ModelShape, cards: Cards, needed: int, asked: Asked, expected: Layout
) -> None:
    """The smallest tensor group that fits, and replicas of it; the rest only where it must be."""
    rooms = _needs(needed)
    best = layout_.propose(shape, cards, rooms.__getitem__, asked)[0]
    assert best.layout == expected
    assert best.why


def test_propose_why() -> None:
    """Each choice says why."""
    rooms = _needs(2)
    best = layout_.propose(DENSE, Cards("vllm", 4, links=1), rooms.__getitem__)[0]
    assert best.why == (
        "TP 2, because a smaller tensor group leaves too little memory",
        "DP 2: the remaining GPUs serve as replicas of that group",
        "NVLink does not join 2 of these GPUs, so their sums go over PCIe",
    )


def test_propose_unknown() -> None:
    """Of an unknown memory the largest group is the safest."""
    assert layout_.propose(DENSE, Cards("vllm", 8), None)[0].layout == Layout(8)
    assert layout_.propose(DENSE, Cards("vllm", 8, links=4), None)[0].layout == Layout(4, 1, 2)
    assert layout_.propose(HYBRID_MOE, Cards("vllm", 8), None, Asked(tensor=8)) == []
    assert Asked(tensor=8).completed(8) == Layout(8)
    assert Asked(tensor=2).completed(8) == Layout(2, 1, 4)


sizes = st.none() | st.integers(-2, 300) | st.sampled_from([512, 4096, 12288])
counts = st.none() | st.integers(-1, 130)
quantizations = st.none() | st.builds(
    Quantization,
    method=st.sampled_from(["fp8", "awq", "compressed-tensors", "odd"]),
    bits=st.sampled_from([None, 4, 8]),
    block=st.none() | st.tuples(st.integers(0, 128), st.integers(0, 128)) | st.just((128, 128)),
)
matrices = st.dictionaries(
    st.sampled_from([*HYBRID_MOE.projections, "gate_up", "down", "q_b", "odd"]),
    st.tuples(st.integers(-1, 9000), st.integers(-1, 9000)),
)
shapes = st.builds(
    ModelShape,
    architecture=st.just("X"),
    model_type=st.just("x"),
    dtype=st.sampled_from([None, "bfloat16", "float32", "odd"]),
    layers=counts,
    hidden=sizes,
    heads=counts,
    kv_heads=counts,
    head_dim=counts,
    intermediate=sizes,
    vocab=sizes,
    max_context=sizes,
    attention_layers=counts,
    window_layers=st.integers(-1, 40),
    window=counts,
    tied=st.booleans(),
    experts=st.none()
    | st.builds(Experts, st.integers(-1, 256), counts, sizes, sizes, st.integers(-1, 60)),
    recurrent=st.none() | st.builds(Recurrent, st.integers(-1, 60), st.integers(-1, 10**9), counts),
    latent=st.none() | st.builds(Latent, st.integers(-1, 512), st.integers(-1, 64)),
    quantization=quantizations,
    projections=matrices,
)
layouts = st.builds(
    Layout, st.integers(-1, 16), st.integers(-1, 16), st.integers(-1, 16), st.booleans()
)
engines = st.sampled_from(["vllm", "sglang"])


@settings(deadline=None)
@given(shape=shapes, layout=layouts, engine=engines, gpus=st.integers(1, 16))
def test_every_way_out_is_one(shape: ModelShape, layout: Layout, engine: str, gpus: int) -> None:
    """Whatever is asked, nothing breaks, and what a fix names passes."""
    for problem in layout_.check(shape, layout, engine, gpus):
        if problem.relax:
            answers = problem.relax
            other = Layout(
                answers["tensor_parallel"],
                answers["pipeline_parallel"],
                answers["data_parallel"],
                answers["expert_parallel"],
            )
            assert layout_.check(shape, other, engine, gpus) == []


@settings(deadline=None)
@given(shape=shapes, engine=engines, gpus=st.integers(1, 16))
def test_every_proposal_passes(shape: ModelShape, engine: str, gpus: int) -> None:
    """Whatever is proposed, the engine accepts."""
    for candidate in layout_.propose(shape, Cards(engine, gpus), None):
        assert layout_.check(shape, candidate.layout, engine, gpus) == []
