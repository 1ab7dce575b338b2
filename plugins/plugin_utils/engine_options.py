# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of an engine in an inventory: checked against its release, made into arguments."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.words import (
    nearest,
    presentable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OWNED_BY_ALL = {
    "served-model-name": "the name in llmetal_models",
    "host": "host",
    "port": "port",
}
OWNED: Mapping[str, Mapping[str, str]] = {
    "vllm": _OWNED_BY_ALL | {"model": "model", "max-model-len": "context"},
    "sglang": _OWNED_BY_ALL | {"model-path": "model", "context-length": "context"},
}
"""Options of each engine that come from variables of the instance, and which."""

_UNCHECKED = "its file could set every other option, unchecked"
_SILENT = "the instance would answer no request over HTTP"
_REFUSED: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "config": _UNCHECKED,
        "uds": "the instance listens on its host and port, where llmetal asks it",
        "headless": "the instance would answer no request",
        "grpc": _SILENT,
    },
    "sglang": {"config": _UNCHECKED, "smg-grpc-mode": _SILENT, "grpc-mode": _SILENT},
}
"""Options of each engine that no instance may have, and why."""

_COUNTS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            "block-size",
            "data-parallel-size",
            "decode-context-parallel-size",
            "kv-cache-memory-bytes",
            "mamba-block-size",
            "max-loras",
            "max-num-batched-tokens",
            "max-num-scheduled-tokens",
            "max-num-seqs",
            "max-parallel-loading-workers",
            "nnodes",
            "num-gpu-blocks-override",
            "offload-num-in-group",
            "pipeline-parallel-size",
            "prefill-context-parallel-size",
            "stream-interval",
            "tensor-parallel-size",
        }
    ),
    "sglang": frozenset(
        {
            "dp-size",
            "ep-size",
            "max-loras-per-batch",
            "max-prefill-tokens",
            "max-running-requests",
            "max-total-tokens",
            "nnodes",
            "page-size",
            "pp-size",
            "stream-interval",
            "tp-size",
        }
    ),
}
"""Options of each engine that are counts of what there must be one of at least."""
_SIZES: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            "cpu-offload-gb",
            "data-parallel-rank",
            "data-parallel-size-local",
            "kv-offloading-size",
            "mm-ipc-gpu-memory-gb",
            "mm-processor-cache-gb",
            "node-rank",
        }
    ),
    "sglang": frozenset({"base-gpu-id", "cpu-offload-gb", "hicache-size", "node-rank"}),
}
"""Options of each engine that are sizes or places, of which none may be below zero."""

_SECRET = re.compile(r"(.*-)?(api-key|token|passwd)|.*(password|secret).*")
_SHARES = frozenset({"gpu-memory-utilization", "mem-fraction-static"})
_TYPES: Mapping[str, Callable[[str], float]] = {"int": int, "float": float}
_SUFFIXES = "kKmMgG"


@dataclass(frozen=True)
class OptionIssue:
    """An option that cannot be passed on."""

    rule: str
    fact: str
    fix: str


def arguments(
    table: Mapping[str, Any],
    options: Mapping[str, Any],
    known: Mapping[str, str] | None = None,
) -> tuple[list[str], list[OptionIssue]]:
    """Make options into command line arguments, in the order of their names.

    Args:
        table: the option table of the release.
        options: the options, named without dashes in front; `true` for one without a value.
        known: the table's spellings, where somebody has them already.
    """
    argv: list[str] = []
    issues: list[OptionIssue] = []
    known = spellings(table) if known is None else known
    for name, value in sorted(options.items(), key=lambda item: str(item[0])):
        issue = _refused(str(name), known, table)
        if issue is None:
            option = known[f"--{name}"]
            part, why = _argument(f"--{name}", table["options"][option], value, option)
            least = _least(option, str(table["engine"]))
            if why is None and least is not None and _is_below(value, least):
                part, why = [], (f"{name} is {value}", f"give it a number from {least} on")
            elif why is None and _refused_value(option, value, table):
                part, why = [], (f"{name} is {presentable(repr(value))}", "take another value")
            issue = None if why is None else OptionIssue("engine-option-value", *why)
            argv += part
        if issue is not None:
            issues.append(issue)
    return argv, [_with_modern(issue, options, table) for issue in issues]


def spellings(table: Mapping[str, Any]) -> dict[str, str]:
    """Every spelling that the parser takes, with the option that it stands for."""
    known: dict[str, str] = {}
    for option, row in table["options"].items():
        for spelling in (option, *row.get("aliases", ()), *row.get("negated", ())):
            known[spelling] = option
    return known


def _refused(name: str, known: Mapping[str, str], table: Mapping[str, Any]) -> OptionIssue | None:
    option = known.get(f"--{name}")
    if option is None:
        fact = f"{table['engine']} {table['release']} has no option {name}"
        return OptionIssue("engine-option", fact, _instead(name, known, table))
    plain, engine = option.removeprefix("--"), str(table["engine"])
    if owner := OWNED[engine].get(plain):
        why = f"it comes from {owner}"
    elif _SECRET.fullmatch(plain):
        why = "on a command line every user of the host could read it"
    elif found := _REFUSED[engine].get(plain):
        why = found
    else:
        return None
    return OptionIssue("engine-option-owned", f"option {name}", f"leave it out: {why}")


def _instead(name: str, known: Mapping[str, str], table: Mapping[str, Any]) -> str:
    """What to write in place of an option that the release does not have."""
    replaced = table["replaced"].get(f"--{name}")
    if replaced:
        return f"today: {replaced['modern']}"
    # Both engines' parsers take the beginning of an option for the whole of it, until a release
    # adds another one that begins so.
    whole = {option for spelling, option in known.items() if spelling.startswith(f"--{name}")}
    whole |= {option for spelling, option in known.items() if spelling == f"-{name}"}
    if whole and name:
        return "write it in full: " + " or ".join(sorted(one.removeprefix("--") for one in whole))
    close = nearest(name, (spelling.removeprefix("--") for spelling in known))
    return f"did you mean {close}?" if close else "leave it out"


def _least(option: str, engine: str) -> int | None:
    """The smallest number that an option takes; None where that is not known."""
    plain = option.removeprefix("--")
    if plain in _COUNTS[engine]:
        return 1
    return 0 if plain in _SIZES[engine] else None


def _is_below(value: object, least: int) -> bool:
    """Whether a value, or one of a list, is a number below another; what is none is not."""
    with contextlib.suppress(ValueError):
        values = value if isinstance(value, list) else [value]
        return any(float(str(one).rstrip(_SUFFIXES)) < least for one in values)
    return False


def _refused_value(option: str, value: object, table: Mapping[str, Any]) -> bool:
    """Whether the engine refuses a value that its parser lets through."""
    row = table["replaced"].get(f"{option} {value}")
    return bool(row) and not row["exists"]


def _argument(
    spelling: str, row: Mapping[str, Any], value: object, option: str
) -> tuple[list[str], tuple[str, str] | None]:
    """One option's arguments, or what is wrong with its value and what would be right."""
    if row.get("type") == "bool":
        negated = list(row.get("negated", ())) if spelling == option else []
        return _flag(spelling, negated, value)
    if value is True and row.get("nargs") in {"?", "*"}:
        return [spelling], None
    values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    wrong = _wrong_value(spelling.removeprefix("--"), row, value, values)
    if wrong:
        return [], wrong
    if row.get("repeat"):
        return [part for one in values for part in (spelling, one)], None
    return [spelling, *values], None


def _flag(
    spelling: str, negated: list[str], value: object
) -> tuple[list[str], tuple[str, str] | None]:
    """The argument of an option that takes no value."""
    if value is True:
        return [spelling], None
    if value is False and negated:
        return [negated[0]], None
    fix = "write true or false" if negated else "write true, or leave it out"
    return [], (f"{spelling.removeprefix('--')} is {value!r}, and takes no value", fix)


def _wrong_value(
    name: str, row: Mapping[str, Any], value: object, values: list[str]
) -> tuple[str, str] | None:
    """What is wrong with a value and what would be right; None where nothing is."""
    kind = str(row.get("type", "str"))
    choices = [str(choice) for choice in row.get("choices") or ()]
    if isinstance(value, bool | dict) or value is None:
        what = "a dictionary" if isinstance(value, dict) else repr(value)
        return f"{name} is {what}", f"give it a value of type {kind}"
    several = row.get("nargs") not in {None, "?"} or row.get("repeat")
    if isinstance(value, list) and not several:
        return f"{name} is a list", "give it one value"
    for one in values:
        if choices and one not in choices:
            close = nearest(one, choices)
            fix = f"did you mean {close}?" if close else "take one of " + ", ".join(choices)
            return f"{name} is {presentable(repr(one))}", fix
        if not choices and not _converts(one, kind):
            return f"{name} is {presentable(repr(one))}", f"give it a value of type {kind}"
        if name in _SHARES and not 0 < float(one) <= 1:
            return f"{name} is {one}", "give it a share, above 0 and up to 1"
    return None


def _converts(value: str, kind: str) -> bool:
    convert = _TYPES.get(kind)
    if convert is None:
        return True
    try:
        number = convert(value.rstrip(_SUFFIXES) if kind == "int" else value)
    except ValueError:
        return False
    return math.isfinite(number)


def _with_modern(
    issue: OptionIssue, options: Mapping[str, Any], table: Mapping[str, Any]
) -> OptionIssue:
    """Add what an old post's option and value are called today, where the table knows it."""
    if issue.rule != "engine-option-value":
        return issue
    name = issue.fact.partition(" ")[0]
    replaced = table["replaced"].get(f"--{name} {options.get(name)}")
    return issue if not replaced else OptionIssue(issue.rule, issue.fact, replaced["modern"])
