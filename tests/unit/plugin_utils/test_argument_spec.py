# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values against options: what is wrong, where, and what would be right."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import argument_spec

OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True, "pattern": "[a-z]+"},
    "port": {"type": "int", "default": 8000, "min": 1, "max": 65535},
    "kind": {"type": "str", "choices": ["gpu", "cpu"], "default": "gpu"},
    "on": {"type": "bool"},
    "share": {"type": "float"},
    "free": {"type": "dict"},
    "inner": {"type": "dict", "default": {}, "options": {"depth": {"type": "int", "default": 3}}},
    "rows": {
        "type": "list",
        "elements": "dict",
        "unique": ["id"],
        "options": {"id": {"type": "int", "required": True}},
    },
}


def test_good_values_get_their_types_and_defaults() -> None:
    """A text that is a number becomes one; defaults are filled in, inner ones too."""
    good, issues = argument_spec.check(OPTIONS, {"name": "a", "port": "9", "on": "yes"})
    assert issues == []
    assert good == {"name": "a", "port": 9, "kind": "gpu", "on": True, "inner": {"depth": 3}}


@pytest.mark.parametrize(
    ("values", "path", "why"),
    [
        ({}, "name", "is required"),
        ({"name": "A1"}, "name", "is not of the form that is allowed"),
        ({"name": 1.5}, "name", "is a number, not a text"),
        ({"name": ["a"]}, "name", "is not of type str"),
        ({"name": "a", "port": "many"}, "port", "is not of type int"),
        ({"name": "a", "port": 0}, "port", "is too small"),
        ({"name": "a", "port": 65536}, "port", "is too large"),
        ({"name": "a", "kind": "gpuu"}, "kind", "is not one of the choices; did you mean gpu?"),
        ({"name": "a", "on": "maybe"}, "on", "is not of type bool"),
        ({"name": "a", "port": True}, "port", "is not of type int"),
        ({"name": "a", "port": float("inf")}, "port", "is not of type int"),
        ({"name": "a", "port": float("nan")}, "port", "is not of type int"),
        ({"name": "a", "share": False}, "share", "is not of type float"),
        ({"name": "a", "share": float("inf")}, "share", "is not a finite number"),
        ({"name": "a", "share": "nan"}, "share", "is not a finite number"),
        ({"name": "a", "free": {5: 1}}, "free.5", "is a key that is not a text"),
        ({"name": "a", 5: 1}, "5", "is not known here"),
        ({"name": "a", None: 1}, "None", "is not known here"),
        ({"name": "a", "inner": {"\x1b[1m": 1}}, "inner.\\x1b[1m", "is not known here"),
        ({"name": "a", "inner": "x=1"}, "inner", "is not of type dict"),
        ({"name": "a", "inner": {"dept": 1}}, "inner.dept", "is not known here"),
        ({"name": "a", "rows": "x"}, "rows", "is not of type list"),
        ({"name": "a", "rows": ["x"]}, "rows[0]", "is not of type dict"),
        ({"name": "a", "rows": [{}]}, "rows[0].id", "is required"),
        (
            {"name": "a", "rows": [{"id": 1}, {"id": 1}]},
            "rows[1].id",
            "is used twice: rows[0] has it too",
        ),
    ],
)
def test_issue(values: dict[Any, Any], path: str, why: str) -> None:
    """One thing is wrong, and is named by its path."""
    _, issues = argument_spec.check(OPTIONS, values)
    assert [(argument_spec.shown(issue.path), issue.why) for issue in issues] == [(path, why)]


def test_a_misspelt_name_is_told_apart() -> None:
    """The nearest known name is offered."""
    _, (issue,) = argument_spec.check(OPTIONS, {"name": "a", "ports": 1})
    assert issue.fix == "did you mean port?"


def test_long_values_are_cut() -> None:
    """A problem stays readable, whatever was found."""
    _, (issue,) = argument_spec.check(OPTIONS, {"name": "9" * 500})
    assert len(issue.found) == 80


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"name": "http://me:hush@h/x"}, "'http://(hidden)@h/x'"),
        ({"name": ["hush"]}, "a list"),
        ({"name": "a", "inner": "hush"}, "a text"),
        ({"name": "a", "inner": None, "rows": {"token": "hush"}}, "a dictionary"),
        ({"name": "a", "rows": True}, "true or false"),
        ({"name": "a", "rows": 5}, "a number"),
        ({"name": "a", "rows": [None]}, "another value"),
        ({"name": "a", "port": {"token": "hush"}}, "a dictionary"),
    ],
)
def test_what_was_found_is_said_without_secrets(values: dict[str, Any], found: str) -> None:
    """Of a value of another shape only the shape is said; credentials of a URL never are."""
    _, (issue,) = argument_spec.check(OPTIONS, values)
    assert issue.found == found


def test_no_choice_is_shown() -> None:
    """An empty text among the choices can be seen."""
    options = {"kind": {"type": "str", "choices": ["", "gpu"]}}
    _, (issue,) = argument_spec.check(options, {"kind": "cpu"})
    assert issue.allowed == 'one of "", gpu'
