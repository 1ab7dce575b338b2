# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance with all that its decisions look at, and what its engine calls its options."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    engine_options,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    load_option_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Release
    from ansible_collections.llmetal.inference.plugins.plugin_utils.layout import Problem
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import (
        Context,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
        InstanceRequest,
    )


GIB = 1 << 30
MANY = 10**6
AMX = "amx_tile"


@dataclass(frozen=True)
class Knobs:
    """What an engine calls the options that a plan reads or writes."""

    tensor: str
    pipeline: str
    data: str
    expert: str
    utilization: str
    sequences: str
    batch: str
    eager: str
    context: str
    model: tuple[str, ...]
    kv_dtype: str = "kv-cache-dtype"
    offload: str = "cpu-offload-gb"


KNOBS = {
    "vllm": Knobs(
        tensor="tensor-parallel-size",
        pipeline="pipeline-parallel-size",
        data="data-parallel-size",
        expert="enable-expert-parallel",
        utilization="gpu-memory-utilization",
        sequences="max-num-seqs",
        batch="max-num-batched-tokens",
        eager="enforce-eager",
        context="max-model-len",
        model=("serve",),
    ),
    "sglang": Knobs(
        tensor="tp-size",
        pipeline="pp-size",
        data="dp-size",
        expert="ep-size",
        utilization="mem-fraction-static",
        sequences="max-running-requests",
        batch="chunked-prefill-size",
        eager="disable-cuda-graph",
        context="context-length",
        model=("serve", "--model-path"),
    ),
}


@dataclass(frozen=True)
class One:
    """An instance with all that its decisions look at."""

    host: Context
    release: Release
    asked: InstanceRequest
    gpus: list[int]
    shape: ModelShape | None
    table: Mapping[str, Any]
    options: Mapping[str, Any]
    """Its options under the names of the table."""

    @property
    def knobs(self) -> Knobs:
        """What the engine calls its options."""
        return KNOBS[self.release.engine]

    def add(self, problems: Iterable[Problem]) -> bool:
        """Add problems as findings; whether one of them refuses."""
        refused = False
        for one in problems:
            fact = f"instance {self.asked.name}: {one.fact}"
            added = self.host.findings.add(one.rule, fact=fact, fix=one.fix, relax=one.relax)
            refused = added or refused
        return refused

    def without(self, *names: str) -> dict[str, Any]:
        """Its options without some, whatever the inventory spells these."""
        known = spellings(self.release.options)
        left_out = {f"--{name}" for name in names}
        return {k: v for k, v in self.asked.options.items() if known.get(f"--{k}") not in left_out}

    def word(self, name: str) -> str | None:
        """The value of an option as text; None where it is not given, or the engine refuses it."""
        value = self.options.get(name)
        if value is None or engine_options.arguments(self.table, {name: value})[1]:
            return None
        return str(value)

    def number(self, name: str) -> float | None:
        """The value of an option that is a number; None where it is not given."""
        value = self.options.get(name)
        if isinstance(value, bool) or value is None:
            return None
        try:
            found = float(value)
        except (TypeError, ValueError):
            return None
        return found if math.isfinite(found) and found > 0 else None

    def count(self, name: str) -> int | None:
        """The value of an option that is a count."""
        value = self.number(name)
        return None if value is None else int(value)


@functools.cache
def spellings(name: str) -> Mapping[str, str]:
    """What the parser of a release takes, by the name of its option table."""
    return engine_options.spellings(load_option_table(name))


def canonical(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under the names that a table has, without dashes; unknown ones are left out."""
    known = spellings(name)
    found = {known.get(f"--{name}"): value for name, value in options.items()}
    return {name.removeprefix("--"): value for name, value in found.items() if name is not None}


def gpus_of(host: Context, one: InstanceRequest) -> list[int]:
    """The GPUs of an instance: those asked for, or all."""
    if one.device != "gpu":
        return []
    return list(range(len(host.facts.gpus))) if one.gpus is None else list(one.gpus)


def needed_options(it: One, *, say: bool = True) -> dict[str, str]:
    """The options without which a release is wrong on this host, unless the inventory has them."""
    needed = it.release.amx_dtype
    if not needed or AMX not in it.host.facts.cpu_flags:
        return {}
    asked = it.options.get("dtype", needed)
    if asked == needed:
        return {"dtype": needed}
    if say:
        it.host.findings.add(
            "engine-amx",
            fact=f"instance {it.asked.name} asks for dtype {asked}, the processor has AMX",
            fix=f"leave dtype out: {needed} is taken",
        )
    return {}
