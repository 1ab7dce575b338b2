# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of an engine in an inventory: checked against its release, made into arguments."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.argument_spec import (
    nearest,
    presentable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OWNED = {
    "model": "model",
    "served-model-name": "the name in llmetal_models",
    "host": "host",
    "port": "port",
    "max-model-len": "context",
}
"""Options that come from variables of the instance, and which."""

_REFUSED = {
    "config": "its file could set every other option, unchecked",
    "uds": "the instance listens on its host and port, where llmetal asks it",
    "headless": "the instance would answer no request",
}
"""Options that no instance may have, and why."""

_SECRET = re.compile(r"(.*-)?(api-key|token|passwd)|.*(password|secret).*")
_SHARES = frozenset({"gpu-memory-utilization"})
_TYPES: Mapping[str, Callable[[str], float]] = {"int": int, "float": float}
_SUFFIXES = "kKmMgG"


@dataclass(frozen=True)
class OptionIssue:
    """An option that cannot be passed on."""

    rule: str
    fact: str
    fix: str


def arguments(
    table: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[list[str], list[OptionIssue]]:
    """Make options into command line arguments, in the order of their names.

    Args:
        table: the option table of the release.
        options: the options, named without dashes in front; `true` for one without a value.
    """
    argv: list[str] = []
    issues: list[OptionIssue] = []
    known = _spellings(table)
    for name, value in sorted(options.items(), key=lambda item: str(item[0])):
        issue = _refused(str(name), known, table)
        if issue is None:
            option = known[f"--{name}"]
            part, why = _argument(f"--{name}", table["options"][option], value, option)
            issue = None if why is None else OptionIssue("engine-option-value", *why)
            argv += part
        if issue is not None:
            issues.append(issue)
    return argv, [_with_modern(issue, options, table) for issue in issues]


def _spellings(table: Mapping[str, Any]) -> dict[str, str]:
    """Every spelling that the parser takes, with the option that it stands for."""
    known: dict[str, str] = {}
    for option, row in table["options"].items():
        for spelling in (option, *row.get("aliases", ()), *row.get("negated", ())):
            known[spelling] = option
    return known


def _refused(name: str, known: Mapping[str, str], table: Mapping[str, Any]) -> OptionIssue | None:
    option = known.get(f"--{name}")
    if option is not None and (owner := OWNED.get(option.removeprefix("--"))):
        fix = f"leave it out: it comes from {owner}"
        return OptionIssue("engine-option-owned", f"option {name}", fix)
    if option is not None and _SECRET.fullmatch(option.removeprefix("--")):
        fix = "leave it out: on a command line every user of the host could read it"
        return OptionIssue("engine-option-owned", f"option {name}", fix)
    if option is not None and (why := _REFUSED.get(option.removeprefix("--"))):
        return OptionIssue("engine-option-owned", f"option {name}", f"leave it out: {why}")
    if option is not None:
        return None
    release = f"{table['engine']} {table['release']}"
    replaced = table["replaced"].get(f"--{name}")
    if replaced:
        fix = f"today: {replaced['modern']}"
        return OptionIssue("engine-option", f"{release} has no option {name}", fix)
    close = nearest(name, (spelling.removeprefix("--") for spelling in known))
    fix = f"did you mean {close}?" if close else "leave it out"
    return OptionIssue("engine-option", f"{release} has no option {name}", fix)


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
    return ([], wrong) if wrong else ([spelling, *values], None)


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
    if isinstance(value, list) and row.get("nargs") not in {"+", "*"}:
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
