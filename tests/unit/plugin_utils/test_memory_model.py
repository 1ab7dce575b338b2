# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What fits into a GPU's memory, against recorded starts; and whether a way out is one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import layout as layout_
from ansible_collections.llmetal.inference.plugins.plugin_utils import memory_model
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, load_data
from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import Cards, Layout
from ansible_collections.llmetal.inference.plugins.plugin_utils.memory_model import GIB, Settings
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import (
    Experts,
    Latent,
    ModelShape,
    Quantization,
    Recurrent,
    Weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st

FP8 = Quantization("fp8", 8, (128, 128))


def weights(size: float, replicated: float = 0, experts: float = 0) -> Weights:
    """Weights by their size in GiB."""
    return Weights(int(size * GIB), int(replicated * GIB), int(experts * GIB), None, counted=True)


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
    weights=weights(15.27),
)
DENSE_FP8 = replace(DENSE, quantization=FP8, weights=weights(8.80))
MOE = replace(
    DENSE,
    layers=48,
    hidden=2048,
    kv_heads=4,
    intermediate=None,
    attention_layers=48,
    experts=Experts(128, 8, 768, None, 48),
    weights=weights(56.88, 0, 54),
)
MOE_FP8 = replace(MOE, quantization=FP8, weights=weights(29.03, 0, 27))
HYBRID = replace(
    DENSE,
    architecture="Qwen3_5ForConditionalGeneration",
    layers=64,
    hidden=5120,
    heads=24,
    kv_heads=4,
    head_dim=256,
    intermediate=17408,
    vocab=248320,
    max_context=262144,
    attention_layers=16,
    recurrent=Recurrent(48, 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2), 16),
    quantization=FP8,
    weights=replace(weights(28.56, 0.86), vision=int(0.86 * GIB)),
)
H200 = Cards("vllm", 1, "9.0", int(139.8 * GIB), 8, ("h200_sxm",))
RTX_3090 = Cards("vllm", 1, "8.6", int(24 * GIB * 0.985), 1, ("rtx_3090",))
RECORDED = Settings(
    context=8192, utilization=0.9, max_num_seqs=256, max_batched_tokens=16384, graphs_counted=False
)


@pytest.mark.parametrize(
    ("shape", "kv_gib", "tokens"),
    [
        (DENSE, 108.74, 791_792),
        (DENSE_FP8, 115.45, 840_688),
        (MOE, 66.51, 726_416),
        (MOE_FP8, 94.24, 1_029_376),
    ],
)
def test_recorded_starts(shape: ModelShape, kv_gib: float, tokens: int) -> None:
    """Four starts of vLLM on an H200: within 0.3 percent, and never more than there was."""
    memory = memory_model.budget(shape, Layout(), H200, RECORDED)
    assert memory.kv_bytes / GIB == pytest.approx(kv_gib, rel=0.003)
    assert 0.997 * tokens <= memory.kv_tokens <= tokens
    assert memory.fits
    counted = replace(RECORDED, graphs_counted=True)
    assert 0.985 * tokens <= memory_model.budget(shape, Layout(), H200, counted).kv_tokens <= tokens


def test_experts_gather() -> None:
    """The replicas of vLLM gather their tokens, and the workspace of experts is for all."""
    eight = replace(H200, count=8)
    one = memory_model.budget(MOE, Layout(expert=True), H200, Settings()).activation_bytes
    all_ = memory_model.budget(MOE, Layout(1, 1, 8, expert=True), eight, Settings())
    assert all_.activation_bytes > 4 * one
    alone = memory_model.budget(DENSE, Layout(1, 1, 8), eight, Settings())
    assert alone.activation_bytes == (
        memory_model.budget(DENSE, Layout(), H200, Settings()).activation_bytes
    )


def test_recorded_line() -> None:
    """Peak, tokens and requests as the log of the dense model has them."""
    memory = memory_model.budget(DENSE, Layout(), H200, RECORDED)
    assert memory.activation_bytes / GIB == pytest.approx(1.59, abs=0.005)
    assert memory.kv_token_bytes == 147_456
    assert memory.kv_tokens == 791_792
    assert memory.concurrency == pytest.approx(96.65, abs=0.01)
    assert memory_model.budget(DENSE, Layout(), H200, Settings()).graph_bytes / GIB == (
        pytest.approx(0.60, abs=0.005)
    )
    assert memory_model.budget(DENSE, Layout(), H200, Settings(eager=True)).graph_bytes == 0


def test_the_known_case() -> None:
    """27B in FP8 on one card of 24 GB is refused with the number; two of them serve it."""
    (problem,) = memory_model.check_memory(HYBRID, Layout(), RTX_3090, Settings())
    assert problem.rule == "memory-weights"
    assert "28.56 GiB of weights" in problem.fact
    assert "8.69 GiB short, before any cache" in problem.fact
    for words in ("2 GPUs of this kind as TP 2", "four-bit", "over PCIe in each step", "a model"):
        assert words in problem.fix
    assert problem.relax["gpus"] == ["rtx_3090"] * 2
    assert problem.relax["tensor_parallel"] == 2
    two, context = replace(RTX_3090, count=2), problem.relax["context"]
    memory = memory_model.budget(HYBRID, Layout(2), two, Settings(context=context))
    assert memory.weights_bytes / GIB == pytest.approx(14.28, abs=0.02)
    assert memory.fits
    assert context > 32768
    # Where not even two hold all that the model reads, they are still a group, and no pipeline.
    best = memory_model.proposals(HYBRID, two, Settings())[0]
    assert best.layout == Layout(2)


def test_ways_out() -> None:
    """Each way has its number."""
    ways = memory_model.ways_out(HYBRID, Layout(), RTX_3090, Settings(context=8192))
    by_kind = {way.kind: way.text for way in ways}
    assert set(by_kind) == {"cards", "four_bit", "cpu_offload", "smaller_model"}
    assert "GB over PCIe in each step" in by_kind["cpu_offload"]
    assert "which fits with a context of 8192" in by_kind["four_bit"]
    ways = memory_model.ways_out(HYBRID, Layout(), RTX_3090, Settings())
    assert [way.text for way in ways if way.kind == "cpu_offload"] == [by_kind["cpu_offload"]]
    ada = replace(RTX_3090, compute="8.9", count=2)
    ways = memory_model.ways_out(HYBRID, Layout(2), ada, Settings(context=200_000))
    assert [way.kind for way in ways][:3] == ["cards", "context", "fp8_kv"]
    assert ways[2].relax == {"options": {"kv-cache-dtype": "fp8"}}


def test_ways_that_lead_nowhere() -> None:
    """A checkpoint that would not fit either, and a model of no size, are no ways out."""
    ways = memory_model.ways_out(HYBRID, Layout(), RTX_3090, Settings(utilization=0.01))
    assert not {"four_bit", "smaller_model"} & {way.kind for way in ways}
    settings = Settings(context=8192, utilization=0.01)
    (problem,) = memory_model.check_memory(HYBRID, Layout(), RTX_3090, settings)
    assert problem.fix


def test_wide_activations() -> None:
    """What is computed in 32 bits is twice as large."""
    wide = replace(DENSE, dtype="float32")
    one, two = (memory_model.budget(each, Layout(), H200, Settings()) for each in (DENSE, wide))
    assert 1.5 < two.activation_bytes / one.activation_bytes <= 2
    assert two.kv_token_bytes == 2 * one.kv_token_bytes


def test_layouts_of_memory() -> None:
    """What each kind of parallelism splits."""
    one = memory_model.budget(MOE, Layout(), H200, Settings())
    eight = replace(H200, count=8)
    spread = memory_model.budget(MOE, Layout(1, 1, 8, expert=True), eight, Settings())
    # vLLM spreads experts over the replicas, with expert parallel and without.
    assert spread.weights_bytes == pytest.approx((2.88 + 54 / 8) * GIB, rel=1e-6)
    cut = memory_model.budget(MOE, Layout(1, 1, 8), eight, Settings())
    assert cut.weights_bytes == spread.weights_bytes
    other = replace(eight, engine="sglang")
    assert memory_model.budget(MOE, Layout(1, 1, 8), other, Settings()).weights_bytes == (
        one.weights_bytes
    )
    # Four KV heads over eight GPUs are replicated.
    assert memory_model.budget(MOE, Layout(8), eight, Settings()).kv_token_bytes == (
        one.kv_token_bytes // 4
    )
    assert memory_model.budget(MOE, Layout(1, 8), eight, Settings()).kv_token_bytes == (
        one.kv_token_bytes // 8
    )
    # The first stage holds the embedding besides its layers.
    stage = memory_model.budget(DENSE, Layout(1, 2), replace(H200, count=2), Settings())
    table = 151936 * 4096 * 2
    assert stage.weights_bytes == pytest.approx((15.27 * GIB - 2 * table) / 2 + table, rel=1e-6)


def test_latent() -> None:
    """MLA keeps one vector a token on every GPU."""
    shape = replace(DENSE, latent=Latent(512, 64))
    for layout in (Layout(), Layout(8)):
        memory = memory_model.budget(shape, layout, replace(H200, count=layout.gpus), Settings())
        assert memory.kv_token_bytes == 576 * 2 * 36


def test_windows() -> None:
    """Layers with a window stop to grow, so that more requests and longer ones fit."""
    shape = replace(DENSE, attention_layers=6, window_layers=30, window=1024, max_context=131072)
    memory = memory_model.budget(shape, Layout(), H200, Settings())
    whole = memory_model.budget(
        replace(shape, attention_layers=36, window_layers=0), Layout(), H200, Settings()
    )
    assert memory.concurrency > 2 * whole.concurrency
    unknown = replace(shape, window=None)
    assert memory_model.budget(unknown, Layout(), H200, Settings()).concurrency == whole.concurrency


def test_states() -> None:
    """A recurrent state costs each request the same, whatever its length."""
    memory = memory_model.budget(HYBRID, Layout(), H200, Settings(context=8192))
    # Three groups of sixteen layers, two blocks each, a block as large as a state at least.
    assert memory.sequence_bytes >= 2 * 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)
    short = memory_model.budget(HYBRID, Layout(), H200, Settings(context=16))
    assert short.sequence_bytes == memory.sequence_bytes


@pytest.mark.parametrize(
    ("shape", "wanted", "rule", "relax"),
    [
        (DENSE, Settings(context=40960, concurrency=10_000), "memory-concurrency", {"concurrency"}),
        (DENSE, Settings(context=50_000), "context-model", {"context"}),
        (HYBRID, Settings(utilization=0.29), "memory-kv", {"context"}),
        (
            replace(DENSE, max_context=2**21),
            Settings(context=2**20, concurrency=64),
            "memory-kv",
            {"context"},
        ),
    ],
)
def test_check_memory(shape: ModelShape, wanted: Settings, rule: str, relax: set[str]) -> None:
    """What is short has its own rule, and the relaxed request passes."""
    problem = memory_model.check_memory(shape, Layout(), H200, wanted)[0]
    assert problem.rule == rule
    assert set(problem.relax) == relax
    again = replace(wanted, **dict(problem.relax))
    assert memory_model.check_memory(shape, Layout(), H200, again) == []


def test_undecided() -> None:
    """What is not known is said and stops nothing."""
    shape = replace(DENSE, weights=None, missing={"weights": "no file was seen"})
    memory = memory_model.budget(shape, Layout(), H200, Settings())
    assert memory.fits is None
    (problem,) = memory_model.check_memory(shape, Layout(), H200, Settings())
    assert problem.rule == "model-undecided"
    assert "no file was seen" in problem.fact
    (problem,) = memory_model.check_memory(
        DENSE, Layout(), replace(H200, memory_bytes=None), Settings()
    )
    assert problem.rule == "model-undecided"


def test_offload() -> None:
    """Weights in the host's memory are warned of."""
    wanted = Settings(context=8192, offload_bytes=12 * GIB)
    (problem,) = memory_model.check_memory(HYBRID, Layout(), RTX_3090, wanted)
    assert problem.rule == "memory-offload"
    assert "0.41 s of every step at 31.5 GB/s" in problem.fact


def test_sglang() -> None:
    """SGLang's share is estimated, and says so."""
    cards = replace(H200, engine="sglang")
    memory = memory_model.budget(DENSE, Layout(), cards, Settings())
    assert memory.approximate
    assert 0.85 < memory.usable_bytes / memory.total_bytes < 0.95
    card = replace(RTX_3090, engine="sglang")
    memory = memory_model.budget(DENSE_FP8, Layout(), card, Settings())
    assert 0.8 < memory.usable_bytes / memory.total_bytes < 0.9
    fixed = memory_model.budget(DENSE, Layout(), cards, Settings(utilization=0.8))
    assert fixed.usable_bytes == int(139.8 * GIB * 0.8)


@pytest.mark.parametrize(
    ("engine", "size", "name", "expected"),
    [
        ("vllm", 139.8, "NVIDIA H200", (1024, 8192)),
        ("vllm", 79.2, "NVIDIA A100-SXM4-80GB", (256, 2048)),
        ("vllm", 178, "NVIDIA B200", (1024, 16384)),
        ("vllm", 23.6, "NVIDIA GeForce RTX 3090", (256, 2048)),
        ("sglang", 139.8, "NVIDIA H200", (256, 8192)),
    ],
)
def test_defaults(engine: str, size: float, name: str, expected: tuple[int, int]) -> None:
    """A server's batches follow its GPU."""
    assert memory_model.defaults(engine, int(size * GIB), name) == expected


def test_processors() -> None:
    """SmolLM2-135M in a cache of one GiB: whole blocks of 128 tokens."""
    shape = replace(DENSE, layers=30, heads=9, kv_heads=3, head_dim=64, attention_layers=30)
    block = 30 * 2 * 3 * 64 * 2 * 128
    tokens = memory_model.cpu_kv_tokens(shape, GIB, 2)
    assert tokens == GIB // block * 128 == 46_592
    assert memory_model.cpu_kv_tokens(shape, GIB, 2, context=2048) == tokens
    # The engine counts in requests: 1000 tokens take eight blocks.
    assert memory_model.cpu_kv_tokens(shape, GIB, 2, context=1000) == 364 * 1000 // 8
    assert memory_model.cpu_kv_tokens(replace(shape, kv_heads=None), GIB, 2) is None


@pytest.mark.parametrize(
    ("key", "device", "gib", "read"),
    [
        ("h200_sxm", "2335", 139.8, True),
        ("a100_sxm4_80", "20b2", 79.66, True),
        ("rtx_3090", "2204", 23.64, False),
        ("v100_sxm2", "1db1", 15.76, False),
        ("v100_sxm2", "1db5", 31.52, False),
        ("rtx_a6000", "2230", 47.28, False),
        ("rtx_a6000", "2231", 23.64, False),
        ("gh200", "2348", 141.84, False),
        ("a800", "20f5", 78.8, False),
        ("h800", "2324", 78.8, False),
        # CUDA sees 22.0 GiB of an L4's 24.
        ("l4", "27b8", 21.84, False),
        ("b300", "3182", 264.96, False),
        ("b100", "29bc", None, False),
    ],
)
def test_gpu_memory(
    compat: Compat,
    key: str,
    device: str,
    gib: float | None,
    read: bool,  # noqa: FBT001 - a row of a table
) -> None:
    """A reading where there is one, else the label without what is lost of it."""
    name = str(compat.devices[device]["name"])
    found, exact = memory_model.gpu_memory(compat.gpus[key], device_id=device, name=name)
    assert exact is read
    if gib is None:
        assert found is None
    else:
        assert found is not None
        assert found / GIB == pytest.approx(gib, abs=0.02)


def test_every_gpu_of_the_data(compat: Compat) -> None:
    """Only GPUs whose size nobody knows have none, and the data names GPUs that are there."""
    rows = {key for key, row in compat.gpus.items() if memory_model.gpu_memory(row)[0] is None}
    assert rows == {"b100", "rtx_6000d"}
    data: dict[str, Any] = load_data("memory.yml")["gpu"]
    assert set(data["inline_ecc"]) | set(data["label_share_of"]) <= set(compat.gpus)
    assert set(data["size_gb_of_device"]) <= set(compat.devices)


def test_fast() -> None:
    """A thousand hosts of eight GPUs are a matter of seconds."""
    cards, wanted = replace(H200, count=8), Settings(context=32768)
    memory_model.proposals(MOE_FP8, cards, wanted)
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        memory_model.proposals(MOE_FP8, cards, wanted)
        best = min(best, time.perf_counter() - start)
    assert best < 0.005


counts = st.none() | st.integers(-1, 70)
sizes = st.none() | st.integers(-2, 20_000)
shapes = st.builds(
    ModelShape,
    architecture=st.just("X"),
    model_type=st.just("x"),
    dtype=st.sampled_from([None, "bfloat16", "float32", "odd"]),
    layers=counts,
    hidden=sizes,
    heads=st.sampled_from([None, 0, 8, 9, 32, 40]),
    kv_heads=st.sampled_from([None, 0, 1, 2, 3, 8]),
    head_dim=st.sampled_from([None, 0, 64, 80, 128]),
    intermediate=sizes,
    vocab=sizes,
    max_context=st.none() | st.integers(-1, 300_000),
    attention_layers=counts,
    window_layers=st.integers(-1, 70),
    window=st.none() | st.integers(-1, 5000),
    tied=st.booleans(),
    experts=st.none()
    | st.builds(Experts, st.integers(-1, 256), counts, sizes, sizes, st.integers(-1, 60)),
    recurrent=st.none()
    | st.builds(Recurrent, st.integers(-1, 60), st.integers(-1, 10**9), st.none() | st.just(16)),
    latent=st.none() | st.builds(Latent, st.integers(-1, 512), st.integers(-1, 64)),
    quantization=st.none() | st.just(FP8) | st.just(Quantization("awq", 4)),
    weights=st.none()
    | st.builds(
        Weights,
        total=st.integers(-1, 400 * GIB),
        replicated=st.integers(-1, 5 * GIB),
        experts=st.integers(-1, 200 * GIB),
        parameters=st.none(),
        counted=st.booleans(),
        vision=st.integers(0, GIB),
        drafts=st.integers(0, GIB),
    ),
)
cards_ = st.builds(
    Cards,
    engine=st.sampled_from(["vllm", "sglang"]),
    count=st.sampled_from([1, 2, 3, 4, 8]),
    compute=st.sampled_from([None, "8.0", "9.0"]),
    memory_bytes=st.none() | st.sampled_from([0, 16 * GIB, 24 * GIB, 80 * GIB, 141 * GIB]),
    links=st.sampled_from([None, 1, 8]),
    keys=st.just(("h100_pcie",)),
)
wishes = st.builds(
    Settings,
    context=st.none() | st.integers(-1, 300_000),
    concurrency=st.none() | st.integers(-1, 500),
    utilization=st.sampled_from([None, 0.5, 0.9]),
    kv_dtype_bytes=st.sampled_from([None, 1, 2]),
    eager=st.booleans(),
)


@settings(deadline=None, max_examples=150)
@given(shape=shapes, cards=cards_, wanted=wishes, tensor=st.integers(-1, 9))
def test_never_raises(shape: ModelShape, cards: Cards, wanted: Settings, tensor: int) -> None:
    """Whatever a model lacks, numbers stay numbers."""
    layout = Layout(tensor, 1, cards.count)
    memory = memory_model.budget(shape, layout, cards, wanted)
    assert memory.kv_tokens >= 0
    assert memory.kv_bytes >= 0
    assert memory.short_bytes >= 0
    assert memory.longest_together <= memory.longest_context
    assert (memory.fits is False) <= (memory.short_bytes > 0)
    memory_model.ways_out(shape, layout, cards, wanted)
    memory_model.check_memory(shape, layout, cards, wanted)


@settings(deadline=None, max_examples=150)
@given(shape=shapes, cards=cards_, wanted=wishes, data=st.data())
def test_every_way_out_is_one(
    shape: ModelShape, cards: Cards, wanted: Settings, data: st.DataObject
) -> None:
    """A request relaxed by its own fixes has no refusal left after a few of them."""
    found = layout_.possible(shape, cards.engine, cards.count)
    if not found:
        return
    layout = data.draw(st.sampled_from(found))
    ignored = {"model-undecided", "memory-offload"}
    first = memory_model.check_memory(shape, layout, cards, wanted)
    hopeful = all(problem.relax for problem in first if problem.rule not in ignored)
    for _ in range(4):
        problems = [
            problem
            for problem in memory_model.check_memory(shape, layout, cards, wanted)
            if problem.rule not in ignored
        ]
        if not problems or not problems[0].relax:
            break
        relax = dict(problems[0].relax)
        if "gpus" in relax:
            cards = replace(cards, count=len(relax.pop("gpus")))
        if "tensor_parallel" in relax:
            names = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel")
            layout = Layout(*(relax.pop(name) for name in names))
            assert layout_.check(shape, layout, cards.engine, cards.count) == []
        wanted = replace(wanted, **relax)
    else:
        problems = memory_model.check_memory(shape, layout, cards, wanted)
    refused = [problem for problem in problems if problem.rule not in ignored]
    assert all(not problem.relax for problem in refused)
    assert not (hopeful and refused)


@settings(deadline=None)
@given(size=st.floats(2, 300), context=st.integers(1, 40960))
def test_more_gpus_hold_more(size: float, context: int) -> None:
    """More GPUs in a group never hold fewer tokens, nor do more replicas."""
    shape, before = replace(DENSE, weights=weights(size)), -1
    for tensor in (1, 2, 4, 8, 16):
        cards = replace(H200, count=tensor)
        memory = memory_model.budget(shape, Layout(tensor), cards, Settings(context=context))
        assert memory.kv_tokens >= before
        before = memory.kv_tokens
    one = memory_model.budget(shape, Layout(), H200, Settings(context=context))
    two = memory_model.budget(
        shape, Layout(1, 1, 2), replace(H200, count=2), Settings(context=context)
    )
    assert two.concurrency == pytest.approx(2 * one.concurrency)


@settings(deadline=None)
@given(context=st.integers(1, 300_000), step=st.integers(1, 300_000))
def test_longer_requests_are_fewer(context: int, step: int) -> None:
    """A longer context never lets more requests in."""
    shape = replace(HYBRID, max_context=None)
    here = memory_model.budget(shape, Layout(), H200, Settings(context=context))
    there = memory_model.budget(shape, Layout(), H200, Settings(context=context + step))
    assert there.concurrency <= here.concurrency
    assert there.fits is not True or here.fits
