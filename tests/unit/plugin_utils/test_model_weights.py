# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights: counted ones against what models really have, and against tensors of the same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import model_weights
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_reader import shape_of
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import TensorInfo
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import Weights

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"
GIB = 1 << 30
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
QWEN3_30B = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def weights_of(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None = None
) -> Weights:
    """The weights of a model that has nothing missing."""
    shape = shape_of(config, tensors)
    assert "weights" not in shape.missing, shape.missing
    assert shape.weights is not None
    return shape.weights


@pytest.mark.parametrize(
    "row",
    json.loads((MODELS / "transformers_5.20.2.json").read_bytes()),
    ids=lambda row: str(row["config"]["model_type"]),
)
def test_parameters_as_transformers_has_them(row: Mapping[str, Any]) -> None:
    """Small models built by transformers on the meta device have just the counted parameters.

    Corrections of a router's scores are buffers there and tensors in a checkpoint.
    """
    counted = weights_of(row["config"]).parameters
    assert counted is not None
    experts = shape_of(row["config"]).experts
    buffers = experts.count * experts.layers if experts else 0
    assert counted - row["parameters"] in {0, buffers}


@pytest.mark.parametrize(
    ("config", "gib"),
    [
        # What vLLM 0.26.0 said it had loaded on one GPU.
        (QWEN3_8B, 15.27),
        (QWEN3_8B | {"quantization_config": FP8}, 8.80),
        (QWEN3_30B, 56.88),
        (QWEN3_30B | {"quantization_config": FP8}, 29.03),
    ],
)
def test_bytes_as_seen(config: Mapping[str, Any], gib: float) -> None:
    """Counted bytes are within a quarter of a percent of what was loaded or published."""
    assert weights_of(config).total / GIB == pytest.approx(gib, rel=0.0025)


def test_two_gpus_of_a_user() -> None:
    """Qwen3.5-27B-FP8 over two GPUs took 14.28 GiB each, with its encoder split."""
    config = json.loads((MODELS / "qwen3.5-27b-fp8" / "config.json").read_bytes())
    weights = weights_of(config)
    loaded = weights.total - weights.drafts
    whole = weights.replicated - weights.vision
    assert ((loaded - whole) / 2 + whole) / GIB == pytest.approx(14.28, rel=0.01)
    upper = ((loaded - weights.replicated) / 2 + weights.replicated) / GIB
    assert 14.28 < upper < 14.28 * 1.03


def test_experts_are_told_apart() -> None:
    """Expert parallel spreads routed experts alone; each GPU has the routers and norms."""
    config = json.loads((MODELS / "qwen3.5-35b-a3b-fp8" / "config.json").read_bytes())
    weights = weights_of(config)
    assert 35e9 < weights.total < 38e9
    layer = 256 * (3 * 512 * 2048 + 3 * 4 * 16 * 4)
    assert weights.experts == 40 * layer
    routers = 40 * (256 * 2048 + 2048) * 2
    norms = 40 * 2 * 2048 * 2 + 2048 * 2 + (10 * 512 + 30 * 128) * 2
    assert weights.replicated == weights.vision + routers + norms


def small(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of config.json
    """A small dense model, but for some values."""
    return QWEN3_8B | {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        **changes,
    }


LINEAR = 512 * (512 + 2 * 256 + 512) + 3 * 512 * 1024
"""Weights of the linear layers of one layer of `small`."""
PLAIN = 2 * (2 * 1000 * 512 + 512 + 4 * (2 * 512 + 2 * 128))
"""Bytes of all that is not quantised in it."""


def groups(**weights: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of config.json
    """compressed-tensors with one group of modules."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


OUT = 512 + 2 * 256 + 512 + 2 * 1024 + 512
"""Outputs of the linear layers of one layer of `small`; INS are their inputs."""
INS = 4 * 512 + 2 * 512 + 1024


@pytest.mark.parametrize(
    ("quantization", "layer"),
    [
        ({"quant_method": "fp8"}, LINEAR + 7 * 8),
        (FP8, LINEAR + LINEAR // (128 * 128) * 4),
        ({"quant_method": "fbgemm_fp8"}, LINEAR + OUT * 4),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            LINEAR // 2 + LINEAR // 128 * 2 + LINEAR // 256,
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            LINEAR // 2 + LINEAR // 128 * 2 + LINEAR // 256 + INS * 4,
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            LINEAR // 2 + LINEAR // 64 * 4 + 7 * 256,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, LINEAR + OUT * 4),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            LINEAR // 2 + LINEAR // 16 + 7 * 8,
        ),
        (
            {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
            LINEAR + 7 * 8,
        ),
        (groups(num_bits=8, strategy="channel"), LINEAR + OUT * 2),
        (groups(num_bits=8, strategy="tensor"), LINEAR + 7 * 8),
        (
            groups(num_bits=4, strategy="group", group_size=64, symmetric=False),
            LINEAR // 2 + LINEAR // 64 * 2 + LINEAR // 128 + 7 * 16,
        ),
        (
            groups(num_bits=8, strategy="block", block_structure=[128, 128]),
            LINEAR + LINEAR // (128 * 128) * 2,
        ),
    ],
)
def test_quantised(quantization: dict[str, Any], layer: int) -> None:
    """Each method has its own scales; embeddings, norms and the head stay as they are."""
    weights = weights_of(small(quantization_config=quantization))
    assert weights.total == PLAIN + 4 * layer
    assert weights.parameters == PLAIN // 2 + 4 * LINEAR


MLP = 3 * 512 * 1024
ATTENTION = LINEAR - MLP


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ([], 0),
        (["lm_head", "model.embed_tokens", "model.norm", "visual", "mlp.gate"], 0),
        (["model.layers.0"], LINEAR),
        (["model.layers.1.mlp"], MLP),
        (["mlp"], 4 * MLP),
        (["gate_up_proj"], 4 * MLP * 2 // 3),
        (["model.layers.2.self_attn.qkv_proj"], ATTENTION - 512 * 512),
        ([f"model.language_model.layers.{one}.self_attn.o_proj" for one in range(4)], 4 * 512**2),
        (["re:.*self_attn.*"], 4 * ATTENTION),
        ([r"re:.*layers\.[01]\.mlp.*"], 2 * MLP),
        (["model.layers.*.self_attn"], 4 * ATTENTION),
        (["model.visual.blocks.0.mlp.gate_proj", "mtp.layers.0.mlp"], 0),
    ],
)
def test_ignored_modules(names: list[str], kept: int) -> None:
    """Modules that are named keep two bytes for each weight."""
    quantization = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}
    weights = weights_of(small(quantization_config=quantization))
    whole = weights_of(small(quantization_config={"quant_method": "fbgemm_fp8"}))
    assert weights.total - whole.total == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:(", "re:" + ".*" * 30, "re:" + "a" * 999])
def test_patterns_that_are_not_understood(pattern: str) -> None:
    """A pattern that could run for ever is not run; then nothing is counted."""
    quantization = {"quant_method": "fp8", "modules_to_not_convert": [pattern]}
    shape = shape_of(small(quantization_config=quantization))
    assert shape.weights is None
    assert "is not understood" in shape.missing["weights"]
    assert shape.quantization is not None
    assert shape.quantization.bits == 8


def test_groups_by_name() -> None:
    """Different modules with different bits."""
    by_name = {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        "config_groups": {
            "wide": {
                "targets": ["re:.*self_attn.*"],
                "weights": {"num_bits": 8, "strategy": "channel"},
            },
            "narrow": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "strategy": "group", "group_size": 128},
            },
        },
    }
    weights = weights_of(small(quantization_config=by_name))
    attention = ATTENTION + (512 + 2 * 256 + 512) * 2
    mlp = MLP // 2 + MLP // 128 * 2 + 3 * 16
    assert weights.total == PLAIN + 4 * (attention + mlp)


def test_single_experts_are_not_counted() -> None:
    """Experts that are left out one by one cannot be counted."""
    names = ["model.layers.0.mlp.experts.3.gate_proj"]
    config = QWEN3_30B | {
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": names}
    }
    assert "single experts" in shape_of(config).missing["weights"]


def test_mxfp4_is_for_experts() -> None:
    """gpt-oss stores experts in four bits, and all else as it was."""
    config = small(
        model_type="gpt_oss",
        num_local_experts=8,
        intermediate_size=512,
        attention_bias=True,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        },
    )
    weights = weights_of(config)
    expert = 3 * 512 * 512
    assert weights.experts == 4 * 8 * (expert // 2 + expert // 32 + (2 * 512 + 512) * 2)


# The tensors of a model, written down another way than the count is.
def tensors_of(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Names and shapes of a checkpoint, and what can be quantised."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden), False
    yield "model.norm.weight", (hidden,), False
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden), False
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,), False
        yield f"{at}.post_attention_layernorm.weight", (hidden,), False
        for name, rows, columns in (
            ("q", query, hidden),
            ("k", key, hidden),
            ("v", key, hidden),
            ("o", hidden, query),
        ):
            yield f"{at}.self_attn.{name}_proj.weight", (rows, columns), True
        for name in ("q_norm", "k_norm"):
            yield f"{at}.self_attn.{name}.weight", (config["head_dim"],), False
        experts = config.get("num_experts", 0)
        if experts:
            yield f"{at}.mlp.gate.weight", (experts, hidden), False
        width = config["moe_intermediate_size"] if experts else config["intermediate_size"]
        for part in [f".experts.{one}" for one in range(experts)] or [""]:
            yield f"{at}.mlp{part}.gate_proj.weight", (width, hidden), True
            yield f"{at}.mlp{part}.up_proj.weight", (width, hidden), True
            yield f"{at}.mlp{part}.down_proj.weight", (hidden, width), True


def header_of(config: Mapping[str, Any], *, fp8: bool) -> dict[str, TensorInfo]:
    """The tensors as headers of safetensors files give them."""
    found: dict[str, TensorInfo] = {}
    for name, shape, linear in tensors_of(config):
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if fp8 and linear:
            blocks = (-(-shape[0] // 128), -(-shape[1] // 128))
            found[name] = TensorInfo("F8_E4M3", shape, size)
            scale = TensorInfo("F32", blocks, 4 * blocks[0] * blocks[1])
            found[f"{name}_scale_inv"] = scale
        else:
            found[name] = TensorInfo("BF16", shape, 2 * size)
    return found


SIZES = st.fixed_dictionaries(
    {
        "hidden_size": st.integers(1, 12).map(lambda one: 64 * one),
        "intermediate_size": st.integers(1, 2000),
        "num_hidden_layers": st.integers(1, 5),
        "num_key_value_heads": st.integers(1, 4),
        "groups": st.integers(1, 4),
        "head_dim": st.sampled_from([32, 64, 80, 128]),
        "vocab_size": st.integers(1, 3000),
        "tie_word_embeddings": st.booleans(),
        "num_experts": st.integers(0, 6),
        "moe_intermediate_size": st.integers(1, 300),
    }
).map(
    lambda one: {
        **QWEN3_8B,
        **one,
        "num_attention_heads": one["groups"] * one["num_key_value_heads"],
        "model_type": "qwen3_moe" if one["num_experts"] else "qwen3",
    }
)


@given(SIZES, st.booleans())
@settings(max_examples=60, deadline=None)
def test_counted_as_listed(config: dict[str, Any], fp8: bool) -> None:  # noqa: FBT001 - generated
    """A count and the tensors of the same model agree in every part."""
    if fp8:
        config = config | {"quantization_config": FP8}
    counted = weights_of(config)
    listed = weights_of(config, header_of(config, fp8=fp8))
    assert counted.counted
    assert not listed.counted
    assert (counted.total, counted.experts, counted.replicated, counted.parameters) == (
        listed.total,
        listed.experts,
        listed.replicated,
        listed.parameters,
    )


@given(SIZES, st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_more_layers_are_more_weights(config: dict[str, Any], more: int) -> None:
    """Another layer never makes a model smaller."""
    larger = config | {"num_hidden_layers": config["num_hidden_layers"] + more}
    assert weights_of(larger).total > weights_of(config).total
    assert weights_of(larger).experts >= weights_of(config).experts


def test_tensors_by_their_names() -> None:
    """Encoders and layers for speculation are told apart by name."""
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": TensorInfo("BF16", (8, 8), 128),
        "model.layers.1.mlp.experts.0.up_proj.weight": TensorInfo("BF16", (8, 8), 128),
        "model.layers.1.mlp.shared_experts.up_proj.weight": TensorInfo("BF16", (4, 8), 64),
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight": TensorInfo("BF16", (2, 8), 32),
        "model.layers.2.mlp.experts.0.up_proj.weight": TensorInfo("BF16", (8, 8), 128),
        "model.layers.1.block_sparse_moe.input_linear.weight": TensorInfo("BF16", (1, 2), 4),
        "model.layers.1.shared_mlp.input_linear.weight": TensorInfo("BF16", (1, 1), 2),
        "mtp.fc.weight": TensorInfo("BF16", (1, 8), 16),
        "model.visual.blocks.7.attn.qkv.weight": TensorInfo("BF16", (1, 4), 8),
    }
    weights = model_weights.read_weights(tensors, 1000, 2)
    assert weights.total == 510
    assert weights.files == 1000
    assert (weights.experts, weights.replicated, weights.vision, weights.drafts) == (
        128 + 4,
        32 + 8,
        8,
        144,
    )
    assert weights.parameters == 255


def test_packed_weights_have_no_known_number() -> None:
    """Integers of packed weights do not tell how many weights they hold."""
    tensors = {"model.layers.0.mlp.up_proj.qweight": TensorInfo("I32", (8, 8), 256)}
    assert model_weights.read_weights(tensors).parameters is None
