# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models of a host: what a plan knows of them, and what their files lack."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    model_files,
    model_reader,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_context import (
    Context,
    at_home,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Snapshot
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape


_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ext>\.\w+)")


def models(host: Context) -> tuple[list[dict[str, Any]], list[str]]:
    """The models of the lock, and which of their fields nobody could look up."""
    rows: list[dict[str, Any]] = []
    unresolved: list[str] = []
    for model in host.request.used_models:
        seen = host.candidates.models.get(model.name)
        if seen is None and host.candidates.asked:
            _unread(host, model.name, model.path, "nobody looked at the folder")
            continue
        if seen is not None and (seen.error or not (seen.files or seen.metadata)):
            why = seen.error or "the folder holds no file"
            _unread(host, model.name, model.path, why, seen.fix)
            continue
        known = seen is not None and bool(seen.files)
        if seen is not None:
            _check_files(host, model.name, seen)
        if not known:
            unresolved += [f"models.{model.name}.revision", f"models.{model.name}.files"]
        rows.append(
            {
                "name": model.name,
                "revision": seen.revision if seen and known else None,
                "source": {"type": model.source_type, "path": at_home(model.path, host.facts.home)},
                "files": [dict(row) for row in seen.files] if seen else [],
                "architectures": list(seen.architectures) if seen else [],
            }
        )
    return rows, unresolved


def _unread(host: Context, name: str, path: str, why: str, fix: str = "") -> None:
    host.findings.add(
        "model-unread",
        fact=f"model {name} at {path}: {why}; so weights, layout, precision and context of its "
        "instances could not be decided",
        fix=fix or "put the model's files there, or set source.path in llmetal_models",
    )


def _check_files(host: Context, name: str, seen: Snapshot) -> None:
    """Whether a model has what an engine reads: the folder is all that it gets."""
    names = [str(row["path"]) for row in seen.files]
    if seen.metadata is not None:
        names = [path for path, _ in seen.metadata.files]
    said = [*_missing_shards(names), *_wrong_size(seen)]
    if seen.metadata is not None:
        facts = list(dict.fromkeys((*seen.metadata.problems, *said)))
        if facts:
            host.findings.add(
                "model-partial",
                fact="; ".join(facts),
                fix="nothing for a plan: weights are then counted; complete it before it is served",
            )
        return
    if said:
        host.findings.add(
            "model-size",
            fact=f"model {name}: {'; '.join(said)}",
            fix="fetch the missing files, or the config.json that belongs to these: the plan has "
            "counted with what config.json says",
        )
    if not model_files.has_tokenizer(names):
        host.findings.add(
            "model-incomplete",
            fact=f"model {name} has no tokenizer (tokenizer.json or the like)",
            fix="put the tokenizer's files beside the weights",
        )


def _missing_shards(names: Iterable[str]) -> Iterable[str]:
    """Sets of weight files whose own numbers say that some are not there."""
    found: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for name in names:
        if one := _SHARD.fullmatch(name):
            found[one["stem"], int(one["count"]), one["ext"]].add(int(one["number"]))
    for (stem, count, ext), there in sorted(found.items()):
        if len(there) < count:
            yield f"of {count} files {stem}-*-of-{count:05}{ext} there are {len(there)}"


def _wrong_size(seen: Snapshot) -> Iterable[str]:
    """Weight files that cannot be those of config.json."""
    shape = shape_of(seen)
    weights = shape.weights if shape else None
    if weights is not None and weights.differs:
        yield (
            f"the weight files hold {size(weights.files or 0)}, and by config.json the weights are "
            f"{size(weights.total)}"
        )


def model_bytes(host: Context, name: str) -> int:
    """Bytes that a model takes on disk; 0 where nobody knows."""
    seen = host.candidates.models.get(name)
    if seen is None:
        return 0
    shape = shape_of(seen)
    weights = shape.weights if shape and not seen.files else None
    if weights is not None and weights.differs:
        return max(weights.files or 0, weights.total)
    return seen.size or (weights.files or weights.total if weights else 0)


def shape_of(seen: Snapshot | None) -> ModelShape | None:
    """What a model is; None where nobody looked at it."""
    if seen is None or seen.error:
        return None
    if seen.shape is not None:
        return seen.shape
    sizes = {str(row["path"]): int(row["size"]) for row in seen.files}
    weights = {path: one for path, one in sizes.items() if path.endswith(".safetensors")}
    # The same weights in the layout of their maker, beside the one that engines read.
    usual = {path: one for path, one in weights.items() if not path.startswith("consolidated")}
    config = dict(seen.config)
    if seen.architectures:
        config.setdefault("architectures", list(seen.architectures))
    total = sum((usual or weights).values()) or None
    return _shape(json.dumps(config, sort_keys=True), total)


@functools.lru_cache(maxsize=256)
def _shape(config: str, weights: int | None) -> ModelShape:
    # Many hosts serve the same model.
    return model_reader.shape_of(json.loads(config), None, weights)
