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


@dataclass(frozen=True)
class Fp8Path:
    """The way of a checkpoint through an engine."""

    kind: str
    """native, weight_only, unknown or impossible: the worst of its parts."""
    kernel: str | None
    why: str
    source: tuple[str, ...]


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
    return Fp8Path(worst.kind, kernel or None, worst.why, worst.source)


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
        asked: auto, fp8, fp8_e4m3 or fp8_e5m2; None for the engine's default.
        width: bytes of a value in the type that the model computes in.
    """
    if asked in {None, "auto"}:
        return KvDtype(None, width)
    if asked in {"bf16", "bfloat16", "float16", "half"}:
        return KvDtype(asked, _SIXTEEN_BITS)
    table = _table()["kv_cache"]
    value = (table.get(engine) or {}).get(asked)
    relax = {"options": {"kv-cache-dtype": "auto"}}
    fix = "leave the type of the cache to the engine (auto)"
    if value is None:
        known = ", ".join(table.get(engine) or ())
        return KvDtype(None, width, Problem("kv-dtype", f"{asked} is none of {known}", fix, relax))
    if engine_device != "gpu" or compute is None:
        fact = f"{asked} is not known to work on {engine_device} {compute or ''}".rstrip()
        return KvDtype(value, _EIGHT_BITS, Problem("kv-dtype", fact, fix, relax))
    if value != "fp8_e5m2" and not versions.is_at_least(compute, table["e4m3_from"]):
        fact = f"{asked} on compute capability {compute}"
        return KvDtype(value, _EIGHT_BITS, Problem("kv-dtype", fact, fix, relax))
    return KvDtype(value, _EIGHT_BITS)


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
    bits = quantization.bits or _BITS.get(method)
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
        return Fp8Path(kind, row["kernel"], str(row["why"]), source)
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
