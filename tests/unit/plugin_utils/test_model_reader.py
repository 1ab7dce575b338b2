# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model is, from its config.json: dimensions, kinds of layers, state, what is not known."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_reader import shape_of
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import (
    Latent,
    ModelShape,
    Recurrent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"
DECISIONS = {
    "weights",
    "kv_cache",
    "heads",
    "layers",
    "context",
    "experts",
    "quantization",
    "state",
    "architecture",
}
QWEN3: Mapping[str, Any] = json.loads((MODELS / "qwen3-14b" / "config.json").read_bytes())
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
MAMBA = LLAMA | {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
MAMBA2 = MAMBA | {"mamba_n_heads": 16, "mamba_d_head": "auto", "mamba_n_groups": 1}


def config(name: str) -> dict[str, Any]:
    """A recorded config.json."""
    found: dict[str, Any] = json.loads((MODELS / name / "config.json").read_bytes())
    return found


def test_dense() -> None:
    """A plain model, whole."""
    shape = shape_of(QWEN3)
    assert shape.missing == {}
    assert shape.architecture == "Qwen3ForCausalLM"
    assert (shape.layers, shape.attention_layers, shape.window_layers) == (40, 40, 0)
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (5120, 40, 8, 128)
    assert (shape.intermediate, shape.vocab, shape.max_context) == (17408, 151936, 40960)
    assert (shape.dtype, shape.tied, shape.experts, shape.recurrent) == (
        "bfloat16",
        False,
        None,
        None,
    )
    assert shape.projections == {
        "q": (5120, 5120),
        "kv": (1024, 5120),
        "o": (5120, 5120),
        "gate_up": (17408, 5120),
        "down": (5120, 17408),
    }


def test_hybrid_with_images() -> None:
    """A text part inside; a gate doubles q; the state is a sum that can be checked by hand."""
    shape = shape_of(config("qwen3.5-27b-fp8"))
    assert shape.missing == {}
    assert shape.model_type == "qwen3_5"
    assert (shape.layers, shape.attention_layers) == (64, 16)
    assert shape.projections["q"] == (2 * 24 * 256, 5120)
    assert shape.projections["o"] == (5120, 24 * 256)
    assert shape.projections["linear_qk"] == (16 * 128, 5120)
    assert shape.projections["linear_v"] == (48 * 128, 5120)
    convolution = 3 * (2 * 16 * 128 + 48 * 128) * 2
    recurrence = 48 * 128 * 128 * 4
    assert shape.recurrent == Recurrent(48, 48 * (convolution + recurrence), 16)
    assert shape.quantization is not None
    assert (shape.quantization.method, shape.quantization.bits, shape.quantization.block) == (
        "fp8",
        8,
        (128, 128),
    )


def test_experts_of_every_layer() -> None:
    """Routed and shared experts, and no MLP beside them."""
    shape = shape_of(config("qwen3.5-35b-a3b-fp8"))
    assert shape.missing == {}
    assert shape.experts is not None
    assert (shape.experts.count, shape.experts.per_token, shape.experts.intermediate) == (
        256,
        8,
        512,
    )
    assert (shape.experts.shared_intermediate, shape.experts.layers) == (512, 40)
    assert "gate_up" not in shape.projections
    assert shape.projections["expert_gate_up"] == (512, 2048)
    assert shape.projections["shared_down"] == (2048, 512)


@pytest.mark.parametrize(
    "row",
    json.loads((MODELS / "transformers_5.20.2.json").read_bytes()),
    ids=lambda row: str(row["config"]["model_type"]),
)
def test_layers_as_transformers_has_them(row: Mapping[str, Any]) -> None:
    """The kinds of layers are those that the model's class derives."""
    shape = shape_of(row["config"])
    assert shape.missing == {}
    if kinds := row.get("layers"):
        linear = shape.recurrent.layers if shape.recurrent else 0
        assert (shape.attention_layers, shape.window_layers, linear) == (
            kinds["full"],
            kinds["window"],
            kinds["linear"],
        )


def test_latent_attention() -> None:
    """The cache of DeepSeek is a vector, whatever its heads."""
    shape = shape_of(
        LLAMA
        | {
            "model_type": "deepseek_v3",
            "num_key_value_heads": 8,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 16,
            "n_shared_experts": 2,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 256,
            "first_k_dense_replace": 3,
        }
    )
    assert shape.missing == {}
    assert shape.latent == Latent(512, 64)
    assert shape.projections["q_b"] == (8 * 192, 1536)
    assert shape.projections["kv_b"] == (8 * 256, 512)
    assert shape.projections["o"] == (512, 8 * 128)
    assert shape.experts is not None
    assert (shape.experts.layers, shape.experts.shared_intermediate) == (5, 512)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, (0, 8, 128)),
        ({"model_type": "mistral", "sliding_window": None}, (8, 0, None)),
        ({"model_type": "qwen2", "sliding_window": 128}, (8, 0, None)),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 128,
                "use_sliding_window": True,
                "max_window_layers": 6,
            },
            (6, 2, 128),
        ),
        ({"model_type": "gemma3_text", "sliding_window": 512}, (1, 7, 512)),
        ({"layer_types": ["sliding_attention", "full_attention"] * 4}, (4, 4, None)),
        ({"layer_types": ["full_attention"] * 8, "sliding_window": 7}, (8, 0, None)),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 8192, "vocab_size": 100},
            (2, 6, 8192),
        ),
    ],
)
def test_windows(changes: dict[str, Any], expected: tuple[int, int, int | None]) -> None:
    """Which layers attend to a window, and how wide it is."""
    shape = shape_of(LLAMA | changes)
    assert (shape.attention_layers, shape.window_layers, shape.window) == expected
    assert ("kv_cache" in shape.missing) == (expected[1] > 0 and expected[2] is None)


@pytest.mark.parametrize(
    ("values", "attention", "state"),
    [
        (
            MAMBA | {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2},
            2,
            Recurrent(6, 6 * (3 * 1024 + 1024 * 16) * 2, 1024),
        ),
        (
            MAMBA2 | {"model_type": "bamba", "attn_layer_indices": [1]},
            1,
            Recurrent(7, 7 * (3 * (1024 + 32) + 1024 * 16) * 2, 16),
        ),
        (
            MAMBA2
            | {
                "model_type": "granitemoehybrid",
                "layer_types": ["mamba"] * 7 + ["attention"],
                "num_local_experts": 0,
            },
            1,
            Recurrent(7, 7 * (3 * (1024 + 32) + 1024 * 16) * 2, 16),
        ),
        (
            MAMBA2 | {"model_type": "falcon_h1", "mamba_d_ssm": 256},
            8,
            Recurrent(8, 8 * (3 * (256 + 32) + 256 * 16) * 2, 16),
        ),
        (
            {
                "model_type": "mamba2",
                "dtype": "bfloat16",
                "hidden_size": 512,
                "num_hidden_layers": 8,
                "num_heads": 16,
                "head_dim": 64,
                "n_groups": 2,
                "state_size": 32,
                "conv_kernel": 4,
            },
            0,
            Recurrent(8, 8 * (3 * (1024 + 128) + 1024 * 32) * 2, 16),
        ),
        (
            {
                "model_type": "mamba",
                "dtype": "float32",
                "hidden_size": 512,
                "num_hidden_layers": 2,
                "state_size": 16,
                "conv_kernel": 4,
                "expand": 2,
            },
            0,
            Recurrent(2, 2 * (3 * 1024 + 1024 * 16) * 4, 1024),
        ),
    ],
)
def test_mamba(values: dict[str, Any], attention: int, state: Recurrent) -> None:
    """The state of Mamba layers, under the names of each family."""
    shape = shape_of(values)
    assert shape.attention_layers == attention
    assert shape.recurrent == state
    assert "state" not in shape.missing
    assert "safetensors" in shape.missing["weights"] or "not known" in shape.missing["weights"]


def test_nemotron_pattern() -> None:
    """A pattern names the layers: Mamba, MLP, attention, experts."""
    shape = shape_of(
        LLAMA
        | {
            "model_type": "nemotron_h",
            "num_hidden_layers": 6,
            "hybrid_override_pattern": "M-M*ME",
            "mamba_num_heads": 8,
            "mamba_head_dim": 64,
            "n_groups": 2,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "mamba_ssm_cache_dtype": "float32",
            "n_routed_experts": 4,
            "moe_intermediate_size": 128,
        }
    )
    assert (shape.layers, shape.attention_layers) == (6, 1)
    state = 3 * (8 * 64 + 2 * 2 * 16) * 2 + 8 * 64 * 16 * 4
    assert shape.recurrent == Recurrent(3, 3 * state, 8)
    assert shape.experts is not None
    assert shape.experts.layers == 1


def test_gpt2_names() -> None:
    """Old names of the same dimensions."""
    shape = shape_of(
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "torch_dtype": "float16",
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        }
    )
    assert shape.missing == {}
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (768, 12, 12, 64)
    assert (shape.layers, shape.max_context, shape.tied) == (12, 1024, True)
    assert shape.weights is not None
    assert shape.weights.parameters == 124_439_808


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"type": "linear", "factor": 2.0}, 8192),
        ({"type": "dynamic", "factor": float("nan")}, 4096),
        ({"type": "linear", "factor": 1e300}, 4096),
        ({"type": "linear", "factor": True}, 4096),
        ("linear", 4096),
    ],
)
def test_context(rope: object, length: int) -> None:
    """The context is stretched where vLLM stretches it, and not twice."""
    assert shape_of(LLAMA | {"rope_scaling": rope}).max_context == length
    gemma = LLAMA | {"model_type": "gemma3_text", "rope_scaling": rope}
    assert shape_of(gemma).max_context == 4096


@pytest.mark.parametrize("value", [None, {}])
def test_no_quantisation(value: object) -> None:
    """A quantization_config of nothing is none."""
    shape = shape_of(LLAMA | {"quantization_config": value})
    assert shape.quantization is None
    assert shape.missing == {}


@pytest.mark.parametrize(
    ("changes", "key", "sentence"),
    [
        ({"num_attention_heads": None}, "heads", "config.json has no num_attention_heads"),
        (
            {"num_attention_heads": "8"},
            "heads",
            "config.json has num_attention_heads = '8', which is no whole number from 1",
        ),
        ({"num_key_value_heads": 3}, "kv_cache", "3 key-value heads do not divide"),
        ({"num_key_value_heads": True}, "heads", "num_key_value_heads = true"),
        ({"head_dim": 0}, "kv_cache", "head_dim = 0"),
        ({"hidden_size": 500}, "kv_cache", "config.json has no head_dim"),
        ({"hidden_size": -1}, "weights", "hidden_size = -1"),
        ({"num_hidden_layers": 10**9}, "layers", "1000000000 layers, more than the 10000"),
        ({"num_hidden_layers": 10**6000}, "layers", "a number of very many digits"),
        ({"num_hidden_layers": 8.0}, "layers", "num_hidden_layers = 8.0"),
        ({"max_position_embeddings": []}, "context", "max_position_embeddings = a list"),
        ({"layer_types": ["conv"] * 8}, "kv_cache", "layers of type 'conv', which is not known"),
        (
            {"layer_types": ["full_attention"]},
            "weights",
            "8 layers and names the types of 1",
        ),
        ({"layer_types": "x"}, "kv_cache", "layer_types = 'x', which names no types"),
        ({"layer_types": [1, 2]}, "kv_cache", "layer_types = a list, which names no types"),
        ({"layer_types": []}, "weights", "layer_types = a list, which names no types"),
        ({"architectures": None}, "architecture", "config.json has no architectures"),
        ({"architectures": []}, "architecture", "config.json has no architectures"),
        ({"architectures": "X"}, "architecture", "architectures = 'X', which is no list"),
        ({"layer_types": ["linear_attention"] * 8}, "state", "no linear_conv_kernel_dim"),
        ({"num_experts": "many"}, "experts", "num_experts = 'many'"),
        ({"model_type": "mixtral"}, "experts", "config.json has no num_experts"),
        ({"dtype": None}, "weights", "config.json has no dtype or torch_dtype"),
        ({"dtype": "int3"}, "weights", "dtype 'int3', whose size is not known"),
        ({"vocab_size": {}}, "weights", "vocab_size = an object"),
        ({"kv_lora_rank": 512}, "kv_cache", "config.json has no qk_rope_head_dim"),
        ({"quantization_config": {"bits": 4}}, "quantization", "has no quant_method"),
        ({"quantization_config": "fp8"}, "quantization", "is 'fp8', and no object"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "weights", "layout of 'aqlm'"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            "weights",
            "weight_block_size that is no pair",
        ),
        ({"vision_config": {"depth": 3}}, "weights", "a vision_config whose encoder is not known"),
        ({"audio_config": {}}, "weights", "an audio_config"),
        ({"model_type": None}, "architecture", "config.json has no model_type"),
        ({"model_type": "new"}, "architecture", "model_type 'new', a family that is not known"),
        ({"model_type": "new", "linear_attn_config": {}}, "kv_cache", "has linear_attn_config"),
        ({"model_type": "new", "mamba_d_state": 1}, "state", "has mamba_d_state"),
        ({"model_type": "new"}, "weights", "cannot be counted without safetensors"),
    ],
)
def test_missing(changes: dict[str, Any], key: str, sentence: str) -> None:
    """What cannot be known is None, and a sentence names the key."""
    shape = shape_of(LLAMA | changes)
    assert sentence in shape.missing[key]
    if key == "weights":
        assert shape.weights is None


def test_unknown_family_keeps_its_dimensions() -> None:
    """What an unknown model says is read, and defaults of a class are not made up."""
    shape = shape_of(LLAMA | {"model_type": "new"})
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (8, 8, 2, 64)
    assert set(shape.missing) == {"architecture", "weights"}
    values = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert shape_of(values).kv_heads == 8
    assert shape_of(values | {"model_type": "mistral"}).kv_heads == 8
    assert shape_of(values | {"model_type": "glm4"}).kv_heads == 2
    assert "num_key_value_heads" in shape_of(values | {"model_type": "new"}).missing["kv_cache"]


def test_known_files_of_an_unknown_family() -> None:
    """The size of the files is the size of the weights, even where these cannot be counted."""
    shape = shape_of(LLAMA | {"model_type": "new"}, None, 10**9)
    assert shape.weights is not None
    assert (shape.weights.total, shape.weights.files, shape.weights.counted) == (
        10**9,
        10**9,
        False,
    )
    assert set(shape.missing) == {"architecture"}


@pytest.mark.parametrize(("share", "believed"), [(0.92, True), (1.08, True), (0.5, False)])
def test_files_and_count(share: float, believed: bool) -> None:  # noqa: FBT001 - a column
    """Files near the count are the size of the weights; others are not this model, or not whole."""
    alone = shape_of(LLAMA).weights
    assert alone is not None
    size = int(alone.total * share)
    weights = shape_of(LLAMA, None, size).weights
    assert weights is not None
    assert (weights.total == size, weights.differs, weights.files) == (believed, not believed, size)
    assert believed or (weights.total, weights.counted) == (alone.total, True)


@pytest.mark.parametrize("value", [-4, "4", 0, None])
def test_bits_that_are_no_number(value: object) -> None:
    """They are not taken for the usual number."""
    shape = shape_of(LLAMA | {"quantization_config": {"quant_method": "awq", "bits": value}})
    assert shape.quantization is not None
    assert shape.quantization.bits == 0
    assert "quantization" in shape.missing


WORDS = st.sampled_from(
    [
        "model_type",
        "dtype",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "intermediate_size",
        "layer_types",
        "text_config",
        "vision_config",
        "quantization_config",
        "quant_method",
        "modules_to_not_convert",
        "config_groups",
        "rope_scaling",
        "sliding_window",
        "full_attention_interval",
        "kv_lora_rank",
        "num_experts",
        "moe_intermediate_size",
        "n_shared_experts",
        "mlp_only_layers",
        "hybrid_override_pattern",
        "linear_num_value_heads",
        "tie_word_embeddings",
        "max_position_embeddings",
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 64),
    st.just(10**4000),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["qwen3_5_text", "deepseek_v3", "jamba", "nemotron_h", "gpt_oss", "bfloat16", "fp8", "M*"]
    ),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(WORDS, st.text()), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(st.dictionaries(WORDS, JSON, max_size=14), st.sampled_from(["", *"abcdef"]))
@settings(max_examples=200, deadline=None)
def test_never_raises(values: dict[str, Any], family: str) -> None:
    """Whatever config.json holds: a shape, with known decisions and sentences."""
    known = {
        "a": "llama",
        "b": "qwen3_5",
        "c": "deepseek_v3",
        "d": "nemotron_h",
        "e": "gpt_oss",
        "f": "llama4",
    }
    if family:
        values = {**LLAMA, **values, "model_type": known[family]}
    shape = shape_of(values)
    assert isinstance(shape, ModelShape)
    assert set(shape.missing) <= DECISIONS
    assert all(sentence for sentence in shape.missing.values())
    assert (shape.weights is None) == ("weights" in shape.missing)
    if shape.weights:
        assert shape.weights.total >= shape.weights.replicated + shape.weights.experts >= 0


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_never_raises_without_an_object(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """A config.json that is no object is an empty one."""
    assert "layers" in shape_of(value).missing or isinstance(value, dict)


def test_a_thousand_models_are_read_in_a_moment() -> None:
    """A plan of a thousand hosts has five seconds; a model has two milliseconds of them."""
    values = [config(name.name) for name in sorted(MODELS.iterdir()) if name.is_dir()]
    names = [f"model.layers.{one}.self_attn.q_proj" for one in range(64)]
    values[0]["quantization_config"] = {"quant_method": "fp8", "modules_to_not_convert": names}
    times = Counter[int]()
    for _ in range(5):
        for number, one in enumerate(values):
            start = time.perf_counter()
            shape_of(one)
            spent = time.perf_counter() - start
            times[number] = min(times[number] or 10**9, int(spent * 1e6))
    # Four times the measured limit, for machines that do other things too.
    assert max(times.values()) < 8000
