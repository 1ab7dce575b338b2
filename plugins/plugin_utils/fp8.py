# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine computes a quantised checkpoint on some hardware: natively, slowly or not at all.

The table is data/fp8_paths.yml. What it does not name is unknown, and that is said, not guessed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import compat, versions
from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import (
        ModelShape,
        Quantization,
    )

NATIVE, WEIGHT_ONLY, UNKNOWN, IMPOSSIBLE = "native", "weight_only", "unknown", "impossible"
_WORSE = (NATIVE, WEIGHT_ONLY, UNKNOWN, IMPOSSIBLE)
_BITS = {"fp8": 8, "awq": 4, "gptq": 4, "mxfp4": 4, "nvfp4": 4, "modelopt_fp4": 4}
_ALIASES = {"awq_marlin": "awq", "gptq_marlin": "gptq", "gpt_oss_mxfp4": "mxfp4"}
_SIXTEEN_BITS, _EIGHT_BITS = 2, 1
_NAMES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
"""Types as options name them, and as config.json does."""


@dataclass(frozen=True)
class Fp8Path:
    """The way of a checkpoint through an engine."""

    kind: str
    """native, weight_only, unknown or impossible: the worst of its parts."""
    kernel: str | None
    why: str
    source: tuple[str, ...]
    by_design: bool = False
    """Whether every newer GPU goes the same way."""


@dataclass(frozen=True)
class KvDtype:
    """In what the cache holds keys and values."""

    value: str | None
    """The engine option's value; None where the option is left out."""
    bytes: int
    problem: Problem | None = None


def path(
    engine: str,
    engine_device: str,
    compute: str | None,
    shape: ModelShape,
    *,
    amx: bool | None = None,
) -> Fp8Path | None:
    """The way of a checkpoint through an engine; None where it is not quantised.

    Args:
        engine: vllm or sglang.
        engine_device: gpu or cpu.
        compute: the GPU's compute capability.
        shape: the model.
        amx: whether the processor has AMX tiles, None where that is not known.
    """
    quantization = shape.quantization
    if quantization is None:
        return None
    parts = ["dense"] if shape.experts is None else ["dense", "experts"]
    found = [_part(engine, engine_device, compute, quantization, part, amx=amx) for part in parts]
    worst = max(found, key=lambda row: _WORSE.index(row.kind))
    kernels = [row.kernel for row in found if row.kernel is not None]
    if len(set(kernels)) > 1:
        pairs = zip(parts, found, strict=True)
        kernel = ", ".join(f"{row.kernel} ({part})" for part, row in pairs)
    else:
        kernel = kernels[0] if kernels else ""
    if worst.kind == IMPOSSIBLE:
        kernel = ""
    return Fp8Path(worst.kind, kernel or None, worst.why, worst.source, worst.by_design)


def check(found: Fp8Path | None, shape: ModelShape, where: str) -> list[Problem]:
    """What a plan has to say of a checkpoint's way.

    Args:
        found: what path() found.
        shape: the model.
        where: the hardware, as a person reads it.
    """
    if found is None or found.kind == NATIVE or shape.quantization is None:
        return []
    method = shape.quantization.method
    if found.kind == IMPOSSIBLE:
        fix = "use a BF16 checkpoint of the model, an engine with a kernel for it, or a newer GPU"
        return [Problem("fp8-path", f"{method} weights on {where}: {found.why}", fix)]
    if found.kind == WEIGHT_ONLY and found.by_design:
        # No other hardware would be faster, so there is nothing to be done.
        return []
    if found.kind == WEIGHT_ONLY:
        fact = f"{method} weights on {where} run on {found.kernel}: {found.why}"
        fix = "nothing, where memory was the reason for them; for speed use a newer GPU"
        return [Problem("fp8-weight-only", fact, fix)]
    fact = f"how {method} weights are computed on {where} is not known: {found.why}"
    fix = "start it once and read in its log which kernel it chose"
    return [Problem("model-undecided", fact, fix)]


def kv_dtype(
    engine: str, engine_device: str, compute: str | None, asked: str | None, *, width: int = 2
) -> KvDtype:
    """In what the cache holds keys and values, and whether the hardware can.

    Args:
        engine: vllm or sglang.
        engine_device: gpu or cpu.
        compute: the GPU's compute capability.
        asked: auto, fp8, fp8_e4m3, fp8_e5m2 or another value of the option; None for the engine's
            default.
        width: bytes of a value in the type that the model computes in.
    """
    if asked in {None, "auto", "bf16", "bfloat16", "float16", "half"}:
        plain = asked in {None, "auto"}
        return KvDtype(None, width) if plain else KvDtype(asked, _SIXTEEN_BITS)
    table = _table()["kv_cache"]
    value = (table.get(engine) or {}).get(asked)
    relax = {"options": {"kv-cache-dtype": "auto"}}
    fix = "leave the type of the cache to the engine (auto)"
    if value is None and asked in table["unjudged"].get(engine, ()):
        fact = f"what a token takes in a cache of {asked} is not known: memory counted with 16 bits"
        mend = "start it once and read in its log how many tokens the cache holds"
        return KvDtype(asked, _SIXTEEN_BITS, Problem("model-undecided", fact, mend))
    if value is None:
        known = ", ".join(table.get(engine) or ())
        fact = f"kv-cache-dtype is {asked!r}, and none of auto, bfloat16, {known}"
        return KvDtype(None, width, Problem("engine-option-value", fact, fix, relax))
    if engine_device != "gpu" or compute is None:
        fact = f"{asked} is not known to work on {engine_device} {compute or ''}".rstrip()
        return KvDtype(value, _EIGHT_BITS, Problem("kv-dtype", fact, fix, relax))
    if value != "fp8_e5m2" and not versions.is_at_least(compute, table["e4m3_from"]):
        fact = f"{asked} on compute capability {compute}"
        return KvDtype(value, _EIGHT_BITS, Problem("kv-dtype", fact, fix, relax))
    return KvDtype(value, _EIGHT_BITS)


def check_dtype(engine: str, compute: str | None, asked: str, shape: ModelShape) -> list[Problem]:
    """What an engine refuses of the type that it is asked to compute in.

    Args:
        engine: vllm or sglang.
        compute: the GPU's compute capability.
        asked: the option's value.
        shape: the model.
    """
    row = _table()["dtypes"].get(engine)
    if row is None:
        return []
    name = full_name(asked)
    fix = "leave dtype out: the engine takes one that it can compute in"
    if name == "bfloat16" and compute and not versions.is_at_least(compute, row["bfloat16_from"]):
        fact = f"dtype {asked} on compute capability {compute}"
        return [Problem("dtype-compute", fact, f"{fix}; or ask for half")]
    if name == "float16" and shape.model_type in row["not_float16"]:
        fact = f"dtype is {asked!r}, in which {engine} does not compute {shape.model_type}"
        return [Problem("engine-option-value", fact, fix)]
    method = shape.quantization.method if shape.quantization is not None else ""
    if name == "float32" and method in row["not_float32"]:
        fact = f"dtype is {asked!r}, and {engine} computes {method} weights in 16 bits alone"
        return [Problem("engine-option-value", fact, fix)]
    return []


def computed_in(
    engine: str, compute: str | None, asked: str | None, shape: ModelShape
) -> str | None:
    """The type that an engine computes in; None where that is not known.

    Args:
        engine: vllm or sglang.
        compute: the GPU's compute capability.
        asked: the value of the option dtype; None where it is left out.
        shape: the model.
    """
    row = _table()["dtypes"].get(engine)
    if asked not in {None, "auto"}:
        return full_name(str(asked))
    if row is None or shape.dtype is None:
        return shape.dtype
    # A type that the GPU or the model cannot have gives way to the first one that it can.
    order = ["bfloat16", "float16", "float32"]
    if compute and not versions.is_at_least(compute, row["bfloat16_from"]):
        order.remove("bfloat16")
    if shape.model_type in row["not_float16"]:
        order.remove("float16")
    wanted = full_name(shape.dtype)
    if wanted == "float32":
        return order[0]
    return wanted if wanted in order or wanted not in _NAMES.values() else order[0]


def full_name(dtype: str) -> str:
    """The name that config.json has for a type."""
    return _NAMES.get(dtype, dtype)


def check_quantization(engine: str, asked: str, shape: ModelShape) -> tuple[str | None, str]:
    """What an engine makes of the option quantization for a checkpoint.

    Returns:
        The format that it turns 16-bit weights into at its start, or None; and why it would refuse
        to start, or nothing.
    """
    row = _table()["quantization"]
    own = shape.quantization
    alike = {asked, *(one for names in row["alike"] if asked in names for one in names)}
    if own is None:
        if asked in row["of_checkpoints"]:
            return None, f"quantization is {asked!r}, and the checkpoint is not quantised"
        return asked, ""
    if own.method in alike or asked not in (*row["of_checkpoints"], *row["online"][engine]):
        return None, ""
    return None, f"quantization is {asked!r}, and the checkpoint is quantised with {own.method}"


def online(engine: str, asked: str) -> Mapping[str, Any] | None:
    """A quantization_config like what an engine makes at its start; None where it is not known."""
    found: Mapping[str, Any] | None = _table()["quantization"]["online"].get(engine, {}).get(asked)
    return found


def _part(  # noqa: PLR0913 - the columns of the table
    engine: str,
    device: str,
    compute: str | None,
    quantization: Quantization,
    part: str,
    *,
    amx: bool | None,
) -> Fp8Path:
    """The row of the table for the linear layers or for the experts."""
    method = _ALIASES.get(quantization.method, quantization.method)
    bits = _BITS.get(method) if quantization.bits is None else quantization.bits
    scheme = "tensor" if quantization.block is None else "block"
    if (method, bits, scheme) == ("compressed-tensors", 8, "block"):
        # Both go to the same kernels; eight bits without blocks can be INT8 as well.
        method = "fp8"
    for row in _rows(engine, device, method, bits, compute):
        if row["part"] not in {"any", part} or row["scheme"] not in {"any", scheme}:
            continue
        kind, source = str(row["kind"]), tuple(row["source"])
        if row.get("needs") == "amx" and not amx:
            kind = UNKNOWN if amx is None else IMPOSSIBLE
        by_design = row["compute"][1] is None and device == "gpu"
        return Fp8Path(kind, row["kernel"], str(row["why"]), source, by_design)
    here = f"compute capability {compute}" if device == "gpu" else "processors"
    why = f"no row for {method} ({scheme} scales, {part}) of {engine} on {here}"
    return Fp8Path(UNKNOWN, None, why, ())


@functools.cache
def _rows(
    engine: str, device: str, method: str, bits: int | None, compute: str | None
) -> Sequence[Mapping[str, Any]]:
    """The rows for an engine, a format and a compute capability, in their order."""
    return [
        row
        for row in _table()["paths"]
        if (row["engine"], row["device"], row["bits"]) == (engine, device, bits)
        and method in row["methods"]
        and _covers(row["compute"], compute)
    ]


def _covers(span: Sequence[str | None], compute: str | None) -> bool:
    first, end = span
    if first is None and end is None:
        return True
    if not compute or not versions.numbers(compute):
        return False
    after = first is None or versions.is_at_least(compute, first)
    return after and (end is None or not versions.is_at_least(compute, end))


@functools.cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = compat.load_data("fp8_paths.yml")
    return table
