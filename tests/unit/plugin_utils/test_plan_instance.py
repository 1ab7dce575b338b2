# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance as its options ask for it: types, formats, sizes, and files that do not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import hypothetical
from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
from ansible_collections.llmetal.inference.plugins.plugin_utils.hypothetical import Hardware
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import TensorInfo

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

    from tests.unit.plugin_utils.conftest import Bench

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
DENSE, MOE_FP8 = (
    json.loads((MODELS / name / "config.json").read_text("utf-8"))
    for name in ("qwen3-14b", "qwen3.5-35b-a3b-fp8")
)
A100, T4 = ("a100_sxm4_80",), ("t4",) * 4
GIB = 1 << 30
COUNTED = 27.51
"""GiB of weights that the dense model's config.json says."""
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def ask(
    compat: Compat,
    config: dict[str, Any] = DENSE,
    gpus: tuple[str, ...] = A100,
    seen: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401 - any part of a question
) -> Plan:
    """The plan for a model of which config.json is known, and files where they are given."""
    metadata = Metadata("here", config, None, (), None, None)
    metadata = dataclasses.replace(metadata, **(seen or {}))
    return hypothetical.plan(Hardware(gpus, "ubuntu2404", model="here", **more), metadata, compat)


def instance(plan: Plan) -> dict[str, Any]:
    """The one instance of a plan."""
    assert plan.lock is not None, plan.refusals
    (one,) = plan.lock["instances"]
    found: dict[str, Any] = one
    return found


def gib(plan: Plan) -> float:
    """The weights on each GPU."""
    return float(instance(plan)["memory"]["weights_bytes"]) / GIB


def warned(plan: Plan) -> dict[str, str]:
    """The warnings, by rule."""
    return {one.rule: one.fact for one in plan.warnings}


@pytest.mark.parametrize("seen", [None, {"weight_bytes": int(COUNTED * GIB)}])
def test_dtype_is_the_size_of_what_is_not_quantised(
    compat: Compat, seen: dict[str, Any] | None
) -> None:
    """32 bits double weights, cache and activations; another type of 16 bits changes nothing."""
    plain, wide, half = (
        ask(compat, seen=seen, options=options)
        for options in ({}, {"dtype": "float32"}, {"dtype": "half"})
    )
    assert gib(plain) == pytest.approx(COUNTED, abs=0.01)
    assert gib(wide) == pytest.approx(2 * COUNTED, abs=0.02)
    was, then = instance(plain)["memory"], instance(wide)["memory"]
    assert then["kv_bytes_per_token"] == 2 * was["kv_bytes_per_token"]
    assert then["reserve_bytes"] > was["reserve_bytes"]
    assert instance(half)["memory"] == was
    assert any("float32, which dtype asks for" in why for why in instance(wide)["why"])


def test_dtype_of_an_unknown_family(compat: Compat) -> None:
    """Files of a model whose layers are not known grow as a whole."""
    config = {**DENSE, "model_type": "new"}
    wide = ask(compat, config, seen={"weight_bytes": 10 * GIB}, options={"dtype": "float32"})
    assert gib(wide) == 20


def test_dtype_of_read_tensors(compat: Compat) -> None:
    """Tensors that were read grow in proportion too."""
    size = int(COUNTED * GIB)
    tensors = {"model.layers.0.mlp.up_proj.weight": TensorInfo("BF16", (size // 2,), size)}
    wide = ask(compat, seen={"tensors": tensors}, options={"dtype": "float32"})
    assert gib(wide) == pytest.approx(2 * COUNTED, rel=0.01)


def test_quantised_weights_stay_as_they_are(compat: Compat) -> None:
    """SGLang: only the embeddings, norms and the like grow. vLLM computes FP8 in 16 bits alone."""
    gpus = ("h200_sxm",)
    plain, wide = (
        gib(ask(compat, MOE_FP8, gpus, engine="sglang", options=options))
        for options in ({}, {"dtype": "float32"})
    )
    assert 1 < wide / plain < 1.2
    (finding,) = ask(compat, MOE_FP8, gpus, options={"dtype": "float32"}).refusals
    assert finding.rule == "engine-option-value"
    assert finding.relax == {"options": {}}


def test_bfloat16_needs_8_0(compat: Compat) -> None:
    """Asked for on a T4 it is refused; else vLLM falls back, and the plan says so."""
    options = {"dtype": "bfloat16", "enforce-eager": True}
    (finding,) = ask(compat, gpus=T4, options=options).refusals
    assert finding.rule == "dtype-compute"
    assert finding.relax == {"options": {"enforce-eager": True}}
    found = instance(ask(compat, gpus=T4, context=2048))
    assert any("computed in float16, to which vllm falls back" in why for why in found["why"])
    assert ask(compat, gpus=T4, context=2048, options={"dtype": "half"}).lock is not None
    assert ask(compat, options={"dtype": "bfloat16"}).lock is not None


def test_a_checkpoint_in_32_bits(compat: Compat) -> None:
    """Engines take it in 16, unless dtype asks for more."""
    config = {**DENSE, "torch_dtype": "float32", "dtype": "float32"}
    plan = ask(compat, config)
    assert gib(plan) == pytest.approx(COUNTED, abs=0.01)
    assert any("vllm takes 32 bits only where" in why for why in instance(plan)["why"])
    wide = ask(compat, config, options={"dtype": "float32"})
    assert gib(wide) == pytest.approx(2 * COUNTED, abs=0.02)


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ((("pytorch_model.bin", 100),), 100),
        ((("model.safetensors.index.json", 100),), 1),
        ((("model-00001-of-00004.safetensors", 300),), 300),
        ((("model.gguf", 4096),), 4096),
        ((("model.safetensors", 99 * GIB),), 99 * GIB),
    ],
)
def test_files_of_another_size(
    compat: Compat, files: tuple[tuple[str, int], ...], size: int
) -> None:
    """The count stands, and the plan says why."""
    plan = ask(compat, seen={"files": files, "weight_bytes": size})
    assert gib(plan) == pytest.approx(COUNTED, abs=0.01)
    assert instance(plan)["memory"]["weights_counted"] is True
    fact = warned(plan)["model-partial"]
    assert "by config.json the weights are 27.5 GiB" in fact
    assert ("of 4 files model-*-of-00004.safetensors there are 1" in fact) is ("4" in files[0][0])
    assert any("since the files have another size" in why for why in instance(plan)["why"])


def test_whole_files_are_believed(compat: Compat) -> None:
    """What differs by little is the truth, and nothing is said."""
    plan = ask(compat, seen={"weight_bytes": 28 * GIB})
    assert gib(plan) == 28
    assert "model-partial" not in warned(plan)


@pytest.mark.parametrize(("size", "said"), [(300, True), (int(COUNTED * GIB), False)])
def test_files_of_a_site(bench: Bench, size: int, said: bool) -> None:  # noqa: FBT001 - a column
    """A folder that was read is warned of."""
    hashed = {"sha256": "ab" * 32}
    names = [("model.safetensors", size), ("consolidated.safetensors", 5), ("tokenizer.json", 5)]
    answers = bench.candidates()
    answers["models"]["smollm2"] |= {
        "files": [{"path": path, "size": count, **hashed} for path, count in names],
        "architectures": DENSE["architectures"],
        "config": DENSE,
    }
    models = [{"name": "smollm2", "source": {"type": "folder", "path": "/srv/models/smollm2"}}]
    chat = {"name": "chat", "engine": "vllm", "model": "smollm2", "device": "cpu", "context": 2048}
    plan = bench.plan({"models": models, "instances": [chat]}, candidates=answers)
    assert ("model-size" in warned(plan)) is said


@pytest.mark.parametrize(
    ("config", "asked", "refused"),
    [
        (DENSE, "awq", True),
        (DENSE, "gptq_marlin", True),
        (DENSE | {"quantization_config": AWQ}, "awq_marlin", False),
        (DENSE | {"quantization_config": AWQ}, "moe_wna16", False),
        (DENSE | {"quantization_config": AWQ}, "awq", False),
        (DENSE | {"quantization_config": AWQ}, "fp8", True),
        (MOE_FP8, "fp8", False),
        (MOE_FP8, "awq", True),
    ],
)
def test_format_of_the_checkpoint(
    compat: Compat,
    config: dict[str, Any],
    asked: str,
    refused: bool,  # noqa: FBT001 - a column
) -> None:
    """A format that the checkpoint does not have is refused."""
    options = {"quantization": asked, "enforce-eager": True}
    plan = ask(compat, config, options=options)
    found = [(one.rule, one.relax) for one in plan.refusals]
    wanted = ("engine-option-value", {"options": {"enforce-eager": True}})
    assert found == ([wanted] if refused else [])


@pytest.mark.parametrize("asked", ["fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel"])
def test_weights_made_at_the_start(compat: Compat, asked: str) -> None:
    """FP8 made of 16 bits: about half, by the kernels that the GPU has for it."""
    plan = ask(compat, options={"quantization": asked})
    assert gib(plan) == pytest.approx(15.2, abs=0.05)
    assert instance(plan)["memory"]["approximate"] is True
    assert instance(plan)["fp8"]["path"] == "weight_only"
    assert "fp8-weight-only" in warned(plan)


@pytest.mark.parametrize(
    ("config", "asked"),
    [(DENSE, "nvfp4_per_token"), ({**DENSE, "model_type": "new"}, "fp8")],
)
def test_weights_that_cannot_be_told(compat: Compat, config: dict[str, Any], asked: str) -> None:
    """Then those of the checkpoint count, and that is said."""
    plan = ask(compat, config, seen={"weight_bytes": 28 * GIB}, options={"quantization": asked})
    assert gib(plan) == 28
    facts = [one.fact for one in plan.warnings if one.rule == "model-undecided"]
    assert any("memory was planned with those of the checkpoint" in fact for fact in facts)


@pytest.mark.parametrize("asked", ["nvfp4", "int8_per_token_head", "fp8_inc"])
def test_caches_that_cannot_be_judged(compat: Compat, asked: str) -> None:
    """A type that the release has: counted with 16 bits."""
    plan = ask(compat, options={"kv-cache-dtype": asked})
    assert "memory counted with 16 bits" in warned(plan)["model-undecided"]
    plain = instance(ask(compat))["memory"]
    assert instance(plan)["memory"]["kv_bytes_per_token"] == plain["kv_bytes_per_token"]


@pytest.mark.parametrize(
    ("engine", "asked", "rule"),
    [
        ("vllm", "foo", "engine-option-value"),
        ("vllm", "float8", "engine-option-value"),
        ("sglang", "foo", "engine-option-value"),
        ("vllm", "fp8", "kv-dtype"),
    ],
)
def test_caches_that_are_refused(compat: Compat, engine: str, asked: str, rule: str) -> None:
    """Once, and by the rule that is the reason; the other options stay in the way out."""
    options = {"kv-cache-dtype": asked, "enable-metrics": True}
    if engine == "vllm":
        options = {"kv-cache-dtype": asked, "enforce-eager": True}
    plan = ask(compat, engine=engine, options=options)
    (finding,) = plan.refusals
    assert finding.rule == rule
    assert finding.relax == {"options": {k: v for k, v in options.items() if v is True}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu-memory-utilization", 0.01),
        ("max-num-batched-tokens", 1_000_000_000),
        ("max-num-seqs", 100_000_000),
    ],
)
def test_an_option_that_is_why(compat: Compat, name: str, value: float) -> None:
    """The first way out is to leave it out, and no way is one that leads nowhere."""
    options = {name: value, "dtype": "auto"}
    (finding,) = ask(compat, options=options).refusals
    assert finding.fix.startswith(f"leave {name} out; or ")
    assert "still" not in finding.fix
    assert "0.00 GiB" not in finding.fix
    assert finding.relax == {"options": {"dtype": "auto"}}
    assert ask(compat, options=dict(finding.relax["options"])).lock is not None


def test_four_bits_are_so_everywhere(compat: Compat) -> None:
    """No GPU computes them otherwise, so there is nothing to warn of."""
    plan = ask(compat, DENSE | {"quantization_config": AWQ})
    assert instance(plan)["fp8"] == {"path": "weight_only", "kernel": "Marlin W4A16"}
    assert "fp8-weight-only" not in warned(plan)


@pytest.mark.parametrize("value", [None, [], "Qwen3ForCausalLM", [3]])
def test_no_class(compat: Compat, value: object) -> None:
    """An engine needs the name of the model's class."""
    plan = ask(compat, {**DENSE, "architectures": value})
    assert plan.lock is not None
    assert "architectures" in warned(plan)["model-undecided"]


def test_no_limit_of_its_own(compat: Compat) -> None:
    """What fits is said, and not as a length that the model reads."""
    config = {k: v for k, v in DENSE.items() if k != "max_position_embeddings"}
    plan = ask(compat, config, context=200_000)
    memory = instance(plan)["memory"]
    assert memory["longest_context"] is None
    assert memory["kv_tokens"] > 200_000
    assert "max_position_embeddings" in warned(plan)["model-undecided"]
