# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check values against options in the form of a role's argument_specs, and say where they differ.

Ansible's own validator knows which types there are and how a value becomes one; this asks it, and
adds what a person needs: the path of the value, and what would be allowed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import nearest, presentable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Path = tuple[str | int, ...]

_NUMBERS = ("int", "float")
_SHAPES: tuple[tuple[type, str], ...] = (
    (dict, "a dictionary"),
    (list, "a list"),
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number"),
    (str, "a text"),
)


@dataclass(frozen=True)
class Issue:
    """One value that is not as it should be."""

    path: Path
    found: str
    allowed: str
    why: str
    fix: str = ""


def shown(path: Path) -> str:
    """A path as people write it: `llmetal_instances[0].port`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return presentable(text)


def check(
    options: Mapping[str, Any], values: Mapping[str, Any], path: Path = ()
) -> tuple[dict[str, Any], list[Issue]]:
    """Check a mapping of values and fill in the defaults.

    Args:
        options: the options, by name, as in argument_specs; also `pattern`, `min`, `max`, `unique`.
        values: the values, by name.
        path: where the mapping stands, for the issues.

    Returns:
        The values in their types, with defaults, and what is wrong.
    """
    good: dict[str, Any] = {}
    issues = [_unknown(str(name), options, path) for name in values if name not in options]
    for name, option in options.items():
        value = values.get(name)
        if value is None:
            if option.get("required"):
                issues.append(
                    Issue((*path, name), "nothing", str(option.get("type", "raw")), "is required")
                )
            elif "default" in option:
                good[name] = _default(option)
            continue
        good[name], found = _one(option, value, (*path, name))
        issues += found
    return good, issues


def _default(option: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
    """The default of an option; that of a dictionary with sub-options is made of theirs."""
    default = option["default"]
    if option.get("type") == "dict" and "options" in option:
        return check(option["options"], default)[0]
    return list(default) if isinstance(default, list) else default


def _one(option: Mapping[str, Any], value: Any, path: Path) -> tuple[Any, list[Issue]]:  # noqa: ANN401 - any value
    kind = str(option.get("type", "raw"))
    allowed = _allowed(option, kind)
    if kind == "str" and isinstance(value, float):
        fix = "write it in quotes: YAML read a number, and dropped zeros at its end"
        return value, [Issue(path, repr(value), allowed, "is a number, not a text", fix)]
    wrong_shape = (
        (kind == "dict" and not isinstance(value, dict))
        or (kind == "list" and not isinstance(value, list))
        or (kind in _NUMBERS and isinstance(value, bool))
    )
    try:
        converted = value if wrong_shape else DEFAULT_TYPE_VALIDATORS[kind](value)
    except (TypeError, ValueError, OverflowError):
        wrong_shape = True
    if wrong_shape or (kind == "str" and isinstance(value, dict | list)):
        found = _shape(value) if kind in {"dict", "list"} else _text(value)
        return value, [Issue(path, found, allowed, f"is not of type {kind}")]
    if kind == "list":
        return _elements(option, converted, path)
    if kind == "dict":
        return _inner(option, converted, path)
    why = _outside(option, converted, kind)
    return converted, [Issue(path, _text(value), allowed, why)] if why else []


def _inner(
    option: Mapping[str, Any], value: dict[Any, Any], path: Path
) -> tuple[dict[str, Any], list[Issue]]:
    if "options" in option:
        return check(option["options"], value, path)
    return value, [
        Issue((*path, str(key)), _text(key), "a text", "is a key that is not a text")
        for key in value
        if not isinstance(key, str)
    ]


def _elements(option: Mapping[str, Any], values: list[Any], path: Path) -> tuple[Any, list[Issue]]:
    kind = option.get("elements")
    if kind is None:
        return values, []
    inner = {**option, "type": kind, "elements": None}
    good, issues = [], []
    for index, value in enumerate(values):
        converted, found = _one(inner, value, (*path, index))
        good.append(converted)
        issues += found
    for key in option.get("unique", ()):
        issues += _twice(good, str(key), path)
    return good, issues


def _twice(rows: Sequence[Any], key: str, path: Path) -> list[Issue]:
    seen: dict[Any, int] = {}
    issues = []
    for index, row in enumerate(rows):
        value = row.get(key) if isinstance(row, dict) else None
        if value is None or isinstance(value, dict | list):
            continue
        if value in seen:
            first = shown((*path, seen[value]))
            why = f"is used twice: {first} has it too"
            issues.append(Issue((*path, index, key), _text(value), "one of its own", why))
        seen.setdefault(value, index)
    return issues


def _outside(option: Mapping[str, Any], value: Any, kind: str) -> str:  # noqa: ANN401 - any value
    """Why a value of the right type is not allowed; empty where it is."""
    choices = option.get("choices")
    if choices and value not in choices:
        close = nearest(str(value), map(str, choices))
        return "is not one of the choices" + (f"; did you mean {close}?" if close else "")
    pattern = option.get("pattern")
    if pattern and kind in {"str", "path"} and not re.fullmatch(str(pattern), str(value)):
        return "is not of the form that is allowed"
    if kind in _NUMBERS:
        if not math.isfinite(value):
            return "is not a finite number"
        if "min" in option and value < option["min"]:
            return "is too small"
        if "max" in option and value > option["max"]:
            return "is too large"
    return ""


def _allowed(option: Mapping[str, Any], kind: str) -> str:
    if option.get("choices"):
        return "one of " + ", ".join(str(one) or '""' for one in option["choices"])
    if kind == "list" and option.get("elements"):
        return f"a list of {option['elements']}"
    if kind == "dict" and option.get("options"):
        return "a dictionary of " + ", ".join(sorted(option["options"]))
    text = kind
    if option.get("pattern"):
        text += f" of the form {option['pattern']}"
    if "min" in option:
        text += f" from {option['min']}"
    if "max" in option:
        text += f" to {option['max']}"
    return text


def _unknown(name: str, options: Mapping[str, Any], path: Path) -> Issue:
    close = nearest(name, options)
    fix = f"did you mean {shown((*path, close))}?" if close else ""
    return Issue((*path, name), name, ", ".join(sorted(options)), "is not known here", fix)


def _text(value: object) -> str:
    """A value as an issue quotes it, cut short."""
    if isinstance(value, dict | list):
        return _shape(value)
    text = presentable(repr(value) if isinstance(value, str) else str(value))
    limit = 80
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _shape(value: object) -> str:
    """What sort of value it is: its text might hold what nobody is to see."""
    return next((name for kind, name in _SHAPES if isinstance(value, kind)), "another value")
