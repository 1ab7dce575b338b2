# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine computes quantised weights on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import compat, fp8
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import (
    Experts,
    ModelShape,
    Quantization,
)
from hypothesis import given, settings
from hypothesis import strategies as st

BLOCK, TENSOR = Quantization("fp8", 8, (128, 128)), Quantization("fp8", 8)
NATIVE, SLOW, NEVER, UNKNOWN = "native", "weight_only", "impossible", "unknown"


def shape(quantization: Quantization | None, *, experts: bool = False) -> ModelShape:
    """A model of which only the format of its weights matters."""
    return ModelShape(
        architecture="X",
        model_type="x",
        dtype="bfloat16",
        layers=None,
        hidden=None,
        heads=None,
        kv_heads=None,
        head_dim=None,
        intermediate=None,
        vocab=None,
        max_context=None,
        attention_layers=None,
        experts=Experts(8, 2, 512) if experts else None,
        quantization=quantization,
    )


@pytest.mark.parametrize(
    ("engine", "compute", "block", "tensor", "experts"),
    [
        ("vllm", "7.0", NEVER, NEVER, NEVER),
        ("vllm", "7.5", SLOW, SLOW, SLOW),
        ("vllm", "8.0", SLOW, SLOW, SLOW),
        ("vllm", "8.6", SLOW, SLOW, SLOW),
        ("vllm", "8.9", SLOW, NATIVE, SLOW),
        ("vllm", "9.0", NATIVE, NATIVE, NATIVE),
        ("vllm", "10.0", NATIVE, NATIVE, NATIVE),
        ("vllm", "10.3", NATIVE, NATIVE, NATIVE),
        ("vllm", "11.0", UNKNOWN, UNKNOWN, UNKNOWN),
        ("vllm", "12.0", NATIVE, NATIVE, NATIVE),
        ("sglang", "7.5", NEVER, NEVER, NEVER),
        ("sglang", "8.0", SLOW, SLOW, NEVER),
        ("sglang", "8.6", SLOW, SLOW, NEVER),
        ("sglang", "8.9", NATIVE, NATIVE, NATIVE),
        ("sglang", "9.0", NATIVE, NATIVE, NATIVE),
        ("sglang", "12.0", NATIVE, NATIVE, NATIVE),
        ("vllm", None, UNKNOWN, UNKNOWN, UNKNOWN),
        ("other", "9.0", UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_fp8(engine: str, compute: str | None, block: str, tensor: str, experts: str) -> None:
    """The table of the engines' own choices."""
    models = (shape(BLOCK), shape(TENSOR), shape(BLOCK, experts=True))
    found = [fp8.path(engine, "gpu", compute, model) for model in models]
    assert [path.kind for path in found if path] == [block, tensor, experts]


def test_kernels() -> None:
    """Ada computes FP8, and still vLLM unpacks its blocks; experts go another way."""
    path = fp8.path("vllm", "gpu", "8.9", shape(BLOCK))
    assert path is not None
    assert path.kernel == "Marlin W8A16"
    assert "Ada computes FP8" in path.why
    assert path.source == ("engines_read", "vllm58241")
    both = fp8.path("vllm", "gpu", "8.9", shape(BLOCK, experts=True))
    assert both is not None
    assert both.kernel == "Marlin W8A16 (dense), Triton (experts)"
    never = fp8.path("sglang", "gpu", "8.0", shape(BLOCK, experts=True))
    assert never is not None
    assert never.kernel is None
    assert "fp8e4nv" in never.why


@pytest.mark.parametrize(
    ("quantization", "compute", "kind"),
    [
        (Quantization("awq", 4), "8.6", SLOW),
        (Quantization("awq_marlin", None), "8.6", SLOW),
        (Quantization("gptq", None), "12.0", SLOW),
        (Quantization("gptq", 4), "7.0", NEVER),
        (Quantization("gptq", 3), "8.6", UNKNOWN),
        (Quantization("awq", 0), "8.6", UNKNOWN),
        (Quantization("mxfp4", None), "7.5", NEVER),
        (Quantization("mxfp4", None), "9.0", SLOW),
        (Quantization("modelopt_fp4", 4), "9.0", SLOW),
        (Quantization("nvfp4", 4), "10.0", NATIVE),
        (Quantization("compressed-tensors", 4), "10.0", UNKNOWN),
        # Eight bits may be INT8 or FP8; blocks are FP8.
        (Quantization("compressed-tensors", 8), "9.0", UNKNOWN),
        (Quantization("compressed-tensors", 8, (128, 128)), "9.0", NATIVE),
        (Quantization("bitsandbytes", 4), "9.0", UNKNOWN),
    ],
)
def test_others(quantization: Quantization, compute: str, kind: str) -> None:
    """Other formats, as far as they were read."""
    path = fp8.path("vllm", "gpu", compute, shape(quantization))
    assert path is not None
    assert path.kind == kind


@pytest.mark.parametrize(("amx", "kind"), [(True, NATIVE), (False, NEVER), (None, UNKNOWN)])
def test_processors(amx: bool | None, kind: str) -> None:  # noqa: FBT001 - a row of a table
    """FP8 on processors needs AMX."""
    path = fp8.path("vllm", "cpu", None, shape(BLOCK), amx=amx)
    assert path is not None
    assert path.kind == kind


def test_plain() -> None:
    """A model in 16 bits has no way to look up."""
    assert fp8.path("vllm", "gpu", "8.0", shape(None)) is None
    assert fp8.check(None, shape(None), "an A100") == []


def test_check() -> None:
    """What a plan says: nothing, a warning or a refusal."""
    model = shape(BLOCK, experts=True)
    rows = [
        ("sglang", "8.0", "fp8-path"),
        ("vllm", "8.0", "fp8-weight-only"),
        ("vllm", "11.0", "model-undecided"),
    ]
    for engine, compute, rule in rows:
        (problem,) = fp8.check(fp8.path(engine, "gpu", compute, model), model, "this GPU")
        assert problem.rule == rule
        assert "this GPU" in problem.fact
    assert fp8.check(fp8.path("vllm", "gpu", "9.0", model), model, "an H100") == []
    # Four-bit integers are unpacked on every GPU, so no newer one is a way out.
    four = shape(Quantization("awq", 4))
    assert fp8.check(fp8.path("vllm", "gpu", "8.0", four), four, "this GPU") == []


@pytest.mark.parametrize(
    ("engine", "compute", "asked", "model_type", "own", "found"),
    [
        ("vllm", "7.5", None, "qwen3", "bfloat16", "float16"),
        ("vllm", "7.5", "auto", "gemma2", "bfloat16", "float32"),
        ("vllm", "8.0", None, "qwen3", "float32", "bfloat16"),
        ("vllm", "8.0", "half", "qwen3", "bfloat16", "float16"),
        ("vllm", "8.0", None, "qwen3", None, None),
        ("vllm", "8.0", None, "qwen3", "float8_e4m3fn", "float8_e4m3fn"),
        ("sglang", "8.0", None, "qwen3", "float32", "float32"),
    ],
)
def test_computed_in(  # noqa: PLR0913, PLR0917 - a row of a table
    engine: str,
    compute: str,
    asked: str | None,
    model_type: str,
    own: str | None,
    found: str | None,
) -> None:
    """The type that is asked for, or that the engine falls back to."""
    model = replace(shape(None), model_type=model_type, dtype=own)
    assert fp8.computed_in(engine, compute, asked, model) == found


@pytest.mark.parametrize(
    ("compute", "asked", "model_type", "rules"),
    [
        ("7.5", "bfloat16", "qwen3", ["dtype-compute"]),
        ("8.0", "bfloat16", "qwen3", []),
        ("8.0", "half", "gemma2", ["engine-option-value"]),
        ("8.0", "float", "qwen3", ["engine-option-value"]),
    ],
)
def test_check_dtype(compute: str, asked: str, model_type: str, rules: list[str]) -> None:
    """What vLLM refuses; of SGLang nothing was read."""
    model = replace(shape(BLOCK), model_type=model_type)
    assert [one.rule for one in fp8.check_dtype("vllm", compute, asked, model)] == rules
    assert fp8.check_dtype("sglang", compute, asked, model) == []


@pytest.mark.parametrize(
    ("engine", "compute", "asked", "value", "size", "works"),
    [
        ("vllm", "8.0", None, None, 2, True),
        ("vllm", "8.0", "auto", None, 2, True),
        ("vllm", "8.9", "fp8", "fp8", 1, True),
        ("vllm", "8.6", "fp8", "fp8", 1, False),
        ("vllm", "8.6", "fp8_e5m2", "fp8_e5m2", 1, True),
        ("sglang", "9.0", "fp8", "fp8_e4m3", 1, True),
        ("sglang", "9.0", "float8", None, 2, False),
        ("sglang", "9.0", "bfloat16", "bfloat16", 2, True),
        ("vllm", None, "fp8", "fp8", 1, False),
        ("vllm", "9.0", "foo", None, 2, False),
    ],
)
def test_kv_dtype(  # noqa: PLR0913, PLR0917 - a row of a table
    engine: str,
    compute: str | None,
    asked: str | None,
    value: str | None,
    size: int,
    works: bool,  # noqa: FBT001 - a row of a table
) -> None:
    """The cache's type in the engine's own words."""
    found = fp8.kv_dtype(engine, "gpu", compute, asked)
    assert (found.value, found.bytes, found.problem is None) == (value, size, works)
    if found.problem is not None:
        again = fp8.kv_dtype(
            engine, "gpu", compute, found.problem.relax["options"]["kv-cache-dtype"]
        )
        assert again.problem is None


@settings(deadline=None)
@given(
    engine=st.sampled_from(["vllm", "sglang", ""]),
    device=st.sampled_from(["gpu", "cpu", "tpu"]),
    compute=st.none() | st.text(max_size=4) | st.sampled_from(["8.0", "9.0"]),
    quantization=st.none()
    | st.builds(Quantization, st.text(max_size=4) | st.just("fp8"), st.none() | st.integers()),
    experts=st.booleans(),
)
def test_never_raises(
    engine: str,
    device: str,
    compute: str | None,
    quantization: Quantization | None,
    experts: bool,  # noqa: FBT001 - drawn
) -> None:
    """What is not known is said, not raised."""
    model = shape(quantization, experts=experts)
    path = fp8.path(engine, device, compute, model)
    assert (path is None) == (quantization is None)
    fp8.check(path, model, "here")


def test_rows() -> None:
    """A row names one thing; no method, bits and capability has two of them for one part."""
    for row in compat.load_data("fp8_paths.yml")["paths"]:
        assert row["kind"] in {NATIVE, SLOW, NEVER}
        assert row["part"] in {"dense", "experts", "any"}
        assert row["scheme"] in {"block", "tensor", "any"}
        assert (row["kernel"] is None) == (row["kind"] == NEVER)
