# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How quantised weights are stored: what quantization_config says, as bytes of a linear layer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import Quantization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_config import Values

MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_a_proj",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_b_proj",
    "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z",
    "linear_attn.in_proj_qkvz",
    "linear_attn.out_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.experts.gate_proj",
    "mlp.experts.up_proj",
    "mlp.experts.down_proj",
    "mlp.shared_experts.gate_proj",
    "mlp.shared_experts.up_proj",
    "mlp.shared_experts.down_proj",
)
"""The linear layers of a decoder layer that can be quantised, by the names that most models use."""

HEAD = "lm_head"

_FUSED = {
    "self_attn.q_proj": ("self_attn.qkv_proj", "attn.c_attn"),
    "self_attn.k_proj": ("self_attn.qkv_proj", "attn.c_attn"),
    "self_attn.v_proj": ("self_attn.qkv_proj", "attn.c_attn"),
    "self_attn.o_proj": ("attn.c_proj",),
    "self_attn.q_a_proj": ("self_attn.fused_qkv_a_proj",),
    "self_attn.kv_a_proj_with_mqa": ("self_attn.fused_qkv_a_proj",),
    "linear_attn.in_proj_qkv": ("linear_attn.in_proj_qkvz",),
    "linear_attn.in_proj_z": ("linear_attn.in_proj_qkvz",),
    "mlp.gate_proj": ("mlp.gate_up_proj",),
    "mlp.up_proj": ("mlp.gate_up_proj", "mlp.c_fc"),
    "mlp.down_proj": ("mlp.c_proj",),
    "mlp.experts.gate_proj": ("mlp.experts.gate_up_proj", "block_sparse_moe.experts.w1"),
    "mlp.experts.up_proj": ("mlp.experts.gate_up_proj", "block_sparse_moe.experts.w3"),
    "mlp.experts.down_proj": ("block_sparse_moe.experts.w2",),
    "mlp.shared_experts.gate_proj": ("mlp.shared_expert.gate_proj",),
    "mlp.shared_experts.up_proj": ("mlp.shared_expert.up_proj",),
    "mlp.shared_experts.down_proj": ("mlp.shared_expert.down_proj",),
}
"""Other names of the same layers, where checkpoints fuse them or models call them otherwise."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})(?:\.|$)")
_EXPERT = re.compile(r"(?<=\bexperts\.)(\d{1,6})\.")
_SAFE_PATTERN = re.compile(r"[\w.\\*$^|()?+\[\]:-]{1,300}")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_MOST_REPEATS = 4
_MOST_NAMES = 50_000
_BITS = 16
_FP8 = 8


@dataclass(frozen=True)
class Storage:
    """How one quantised linear layer is stored, in bytes."""

    bits: int
    block: tuple[int, int] | None = None
    group: int | None = None
    """Inputs that share a scale; -1: all inputs of an output."""
    scale: int = 0
    """Bytes of the scale of a block or group."""
    zero_bits: int = 0
    """Bits of a group's zero point."""
    row: int = 0
    """Bytes for each output beside the weights."""
    column: int = 0
    """Bytes for each input beside the weights."""
    fixed: int = 0

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a layer with so many outputs and inputs."""
        total = -(-rows * columns * self.bits // 8) + self.row * rows + self.column * columns
        if self.block:
            total += -(-rows // self.block[0]) * -(-columns // self.block[1]) * self.scale
        elif self.group:
            groups = 1 if self.group < 0 else -(-columns // self.group)
            total += groups * rows * self.scale + -(-groups * rows * self.zero_bits // 8)
        return total + self.fixed


class Names:
    """A list of modules, as configurations write them: names, parts of names, patterns.

    A name counts for a module where its parts stand in the module's full name one after another
    (`lm_head`, `mlp.gate`, `model.layers.3.self_attn`); `re:` starts a regular expression, and `*`
    stands for anything.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        """Sort the entries by what they can match."""
        self.problem: str | None = None
        self.experts: set[int] = set()
        """Experts that are named one by one."""
        self.drafts = False
        """Whether the layers for speculation are named as a whole."""
        self._general: list[str] = []
        self._patterns: list[re.Pattern[str]] = []
        self._numbered: list[re.Pattern[str]] = []
        self._layers: dict[tuple[str, int], set[str]] = {}
        self._known: dict[frozenset[str], frozenset[str]] = {}
        for number, entry in enumerate(entries):
            if number >= _MOST_NAMES:
                self.problem = f"it names more than {_MOST_NAMES} modules"
                return
            if entry.startswith("re:"):
                self._add_pattern(entry, entry.removeprefix("re:"))
            elif "*" in entry:
                parts = (re.escape(part) for part in entry.split("*"))
                self._add_pattern(entry, ".*".join(parts) + r"(\.|$)")
            else:
                self._add_name(entry)

    def _add_pattern(self, entry: str, pattern: str) -> None:
        """Keep a pattern; one that could run for ever, or is none, is a problem."""
        repeats = pattern.count("*") + pattern.count("+") + pattern.count("{")
        safe = _SAFE_PATTERN.fullmatch(pattern) and repeats <= _MOST_REPEATS
        try:
            if not safe or _REPEATED_GROUP.search(pattern):
                self.problem = f"its pattern {entry[:80]!r} is not understood"
                return
            compiled = re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            self.problem = f"its pattern {entry[:80]!r} is not understood"
            return
        numbered = any(one.isdigit() for one in pattern.replace("[0-9]", ""))
        (self._numbered if numbered else self._patterns).append(compiled)

    def _add_name(self, entry: str) -> None:
        """Keep a name, by its layer where it has one."""
        if "experts." in entry:
            self.experts |= {int(one) for one in _EXPERT.findall(entry)}
            entry = _EXPERT.sub("", entry)
        scope = "mtp" if entry.startswith("mtp.") or ".mtp." in entry else ""
        if found := _LAYER.search(entry):
            if not entry.startswith(("visual", "vision", "model.visual", "model.vision")):
                layers = self._layers.setdefault((scope, int(found[1])), set())
                layers.add(entry[found.end() :])
        elif entry == "mtp":
            self.drafts = True
        elif entry:
            self._general.append(f".{entry}.")

    def hits(self, name: str) -> bool:
        """Whether a module outside the layers is meant."""
        return f".{name}." in self._general or any(one.match(name) for one in self._patterns)

    def of_layer(self, layer: int, scope: str = "") -> frozenset[str]:
        """Which of MODULES are meant in a layer."""
        rests = frozenset(self._layers.get((scope, layer), ()))
        if self._numbered:
            return self._find(rests, f"model.layers.{layer}.", [*self._patterns, *self._numbered])
        if rests not in self._known:
            self._known[rests] = self._find(rests, "model.layers.0.", self._patterns)
        return self._known[rests]

    def _find(
        self, rests: frozenset[str], prefix: str, patterns: list[re.Pattern[str]]
    ) -> frozenset[str]:
        parts = [*self._general, *(f".{rest}." for rest in rests if rest)]
        if not (rests or parts or patterns):
            return frozenset()
        if "" in rests:
            return frozenset(MODULES)
        return frozenset(
            module
            for module in MODULES
            if any(
                any(part in f".{name}." for part in parts)
                or any(_matches(one, prefix, name) for one in patterns)
                for name in (module, *_FUSED.get(module, ()))
            )
        )


def _matches(pattern: re.Pattern[str], prefix: str, name: str) -> bool:
    """Whether a pattern means a module; experts have their number in the full name."""
    full = f"{prefix}{name.replace('.experts.', '.experts.0.')}"
    return pattern.match(full) is not None


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint stores its linear layers."""

    storages: tuple[tuple[Names | None, Storage], ...]
    """The first whose names mean a module is its storage; None means every module."""
    ignored: Names = field(default_factory=lambda: Names(()))
    experts_only: bool = False
    head: bool = False
    """Whether lm_head is quantised, unless it is ignored."""

    def of_layer(self, layer: int, scope: str = "") -> tuple[frozenset[str], ...]:
        """What is ignored in a layer and what each storage means there: equal for equal layers."""
        ignored = self.ignored.of_layer(layer, scope)
        if scope and self.ignored.drafts:
            ignored = frozenset(MODULES)
        if len(self.storages) == 1 and self.storages[0][0] is None:
            return (ignored,)
        every = frozenset(MODULES)
        return (
            ignored,
            *(every if names is None else names.of_layer(layer) for names, _ in self.storages),
        )

    def storage(self, module: str, sets: tuple[frozenset[str], ...]) -> Storage | None:
        """How a module of a layer is stored; None where it is not quantised."""
        if module in sets[0] or (self.experts_only and ".experts." not in module):
            return None
        if len(sets) == 1:
            return self.storages[0][1]
        pairs = zip(sets[1:], self.storages, strict=True)
        return next((storage for names, (_, storage) in pairs if module in names), None)


@dataclass(frozen=True)
class Reading:
    """What quantization_config says."""

    quantization: Quantization | None = None
    scheme: Scheme | None = None
    problem: str | None = None
    """Why the quantisation is not known in full."""
    unsized: str | None = None
    """Why sizes cannot be told from it."""


def read_quantization(values: Values, itemsize: int) -> Reading:
    """Read a quantization_config.

    Args:
        values: the object.
        itemsize: bytes of a weight that is not quantised, and of most scales.

    Returns:
        The quantisation, how it is stored where that is known, and what is not known.
    """
    method = values.text("quant_method") or ""
    if not method and values.text("quant_algo"):
        method = "modelopt"
    if not method:
        return Reading(problem=f"{values.where} has no quant_method")
    method = method.lower()
    entries = values.words("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    ignored = Names(entries)
    reader = _READERS.get("modelopt" if method.startswith("modelopt") else method)
    storages = reader(values, itemsize) if reader else f"the layout of {method[:40]!r} is not known"
    if isinstance(storages, str):
        bits = values.whole("bits", "w_bit", most=_BITS)
        if bits is None and (reader is _packed or values.has("bits", "w_bit")):
            # Engines stop at what is no number of bits, so no method's usual number is taken.
            bits = 0
        found = Quantization(method, bits, None, entries)
        problem = None if bits else storages
        return Reading(found, None, problem, storages)
    first = storages[0][1]
    scheme = Scheme(
        tuple(storages),
        ignored,
        experts_only=method == "mxfp4",
        head=method in {"compressed-tensors", "modelopt"} or values.flag(HEAD, default=False),
    )
    bad = next((names.problem for names, _ in storages if names and names.problem), None)
    bad = ignored.problem or bad
    unsized = f"{values.where}: {bad}" if bad else None
    return Reading(Quantization(method, first.bits, first.block, entries), scheme, None, unsized)


def _pair(values: Values, name: str) -> tuple[int, int] | None:
    numbers = values.numbers(name)
    if numbers is None or len(numbers) != 2 or not all(0 < one < 1 << 20 for one in numbers):  # noqa: PLR2004 - rows and columns
        return None
    return numbers[0], numbers[1]


def _fp8(values: Values, _itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    """Blocks with a 4-byte scale each, or one scale for the weight and one for its input."""
    block = _pair(values, "weight_block_size")
    if block is None and values.has("weight_block_size"):
        return f"{values.where} has a weight_block_size that is no pair of whole numbers"
    return [(None, Storage(_FP8, block, scale=4, fixed=0 if block else 8))]


def _fbgemm(_values: Values, _itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    return [(None, Storage(_FP8, row=4))]


def _packed(values: Values, itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    """AWQ and GPTQ: packed integers, a scale and a zero point for each group."""
    bits = values.whole("bits", "w_bit", most=_BITS)
    if bits is None:
        return values.why("bits", "w_bit")
    group = values.whole("group_size", "q_group_size", least=-1)
    if not group:
        return values.why("group_size", "q_group_size")
    column = 4 if values.text("quant_method") == "gptq" else 0
    return [
        (None, Storage(bits, group=group, scale=itemsize, zero_bits=bits, column=column)),
    ]


def _bitsandbytes(values: Values, _itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    if values.flag("load_in_4bit", default=False):
        # Blocks of 64 weights: a scale of one byte where scales are quantised too, else four.
        nested = values.flag("bnb_4bit_use_double_quant", default=False)
        return [(None, Storage(4, group=64, scale=1 if nested else 4, fixed=256))]
    if values.flag("load_in_8bit", default=False):
        return [(None, Storage(_FP8, row=4))]
    return f"{values.where} has neither load_in_4bit nor load_in_8bit"


def _mxfp4(_values: Values, _itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    return [(None, Storage(4, group=32, scale=1))]


def _modelopt(values: Values, itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    algorithm = (values.text("quant_algo") or "").upper()
    if algorithm == "FP8":
        return [(None, Storage(_FP8, fixed=8))]
    if algorithm == "NVFP4":
        return [(None, Storage(4, group=16, scale=1, fixed=8))]
    if values.has("config_groups"):
        return _compressed(values, itemsize)
    return f"{values.where} has a quant_algo whose layout is not known"


def _compressed(values: Values, itemsize: int) -> list[tuple[Names | None, Storage]] | str:
    """compressed-tensors: groups of modules, each with its own bits and scales."""
    found: list[tuple[Names | None, Storage]] = []
    rest: list[tuple[Names | None, Storage]] = []
    for _, group in values.subs("config_groups"):
        storage = _compressed_group(group.sub("weights"), itemsize)
        if isinstance(storage, str):
            return storage
        targets = group.words("targets")
        named = tuple(one for one in targets if one not in {"Linear", "MoEGMM", "FusedMoE"})
        if named:
            found.append((Names(named), storage))
        if len(named) < len(targets) or not targets:
            rest.append((None, storage))
    if not found and not rest:
        return f"{values.where} has no config_groups"
    return [*found, *rest[:1]]


def _compressed_group(weights: Values, itemsize: int) -> Storage | str:
    bits = weights.whole("num_bits", most=_BITS)
    if bits is None:
        return weights.why("num_bits")
    strategy = weights.text("strategy") or ""
    zero = 0 if weights.flag("symmetric", default=True) else bits
    # Packed integers come with their true shape, two numbers of 8 bytes.
    fixed = 16 if bits < _FP8 else 0
    if strategy in {"block", "group", "tensor_group"}:
        key = "block_structure" if strategy == "block" else "group_size"
        block, group = _pair(weights, "block_structure"), weights.whole("group_size")
        if (block if strategy == "block" else group) is None:
            return weights.why(key)
        if strategy == "block":
            return Storage(bits, block, scale=itemsize, fixed=fixed)
        scale = 1 if strategy == "tensor_group" else itemsize
        return Storage(bits, group=group, scale=scale, zero_bits=zero, fixed=fixed)
    rows = {"channel": Storage(bits, row=itemsize, fixed=fixed), "tensor": Storage(bits, fixed=8)}
    return rows.get(strategy, f"{weights.where} has a strategy that is not known")


_READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "awq": _packed,
    "gptq": _packed,
    "gptq_marlin": _packed,
    "awq_marlin": _packed,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
}
