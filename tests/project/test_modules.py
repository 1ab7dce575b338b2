# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module has its documentation, says what it supports, and has a test."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from render_docs import constants, documentation

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = "ansible_collections.llmetal.inference.plugins."
COMMON = {"errors", "command", "files"}
"""What every module may use, tested on its own."""

ATTRIBUTES = {"check_mode", "diff_mode", "idempotent"}


def options(spec: dict[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every option or return value of a documentation, those inside others too."""
    for name, item in (spec or {}).items():
        yield name, item
        yield from options(item.get(key) or {}, key)


def test_documentation(module: Path) -> None:
    """The documentation names the module, its options and what it supports."""
    doc = documentation(module)
    assert doc["module"] == module.stem
    assert doc["short_description"]
    assert doc["author"]
    assert "version_added" in doc
    for name, option in options(doc.get("options") or {}, "suboptions"):
        assert option.get("description"), name
        assert option.get("type"), name


def test_attributes(module: Path) -> None:
    """The documentation says whether check mode, diff mode and a second run are supported."""
    attributes = documentation(module)["attributes"]
    assert set(attributes) >= ATTRIBUTES
    for name in ATTRIBUTES:
        assert attributes[name].get("support") in {"full", "partial", "none", "N/A"}, name


def test_examples(module: Path) -> None:
    """The examples are tasks or plays that call the module by its full name."""
    examples = yaml.safe_load(constants(module)["EXAMPLES"])
    assert isinstance(examples, list)
    assert f"llmetal.inference.{module.stem}" in constants(module)["EXAMPLES"]


def test_return(module: Path) -> None:
    """Every value that a module returns is described, with its type and a sample."""
    values = yaml.safe_load(constants(module)["RETURN"])
    assert values
    for name, value in values.items():
        assert value.get("returned"), name
        assert "sample" in value or "contains" in value, name
    for name, value in options(values, "contains"):
        assert value.get("description"), name
        assert value.get("type"), name


def test_check_mode(module: Path) -> None:
    """A module runs in check mode; one that is the face of an action has no code to say so."""
    action = module.parent.parent / "action" / module.name
    calls = [
        node
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "AnsibleModule"
    ]
    if action.is_file() and not calls:
        return
    assert calls
    for call in calls:
        values = {keyword.arg: keyword.value for keyword in call.keywords}
        supports = values.get("supports_check_mode")
        assert isinstance(supports, ast.Constant)
        assert supports.value is True


def imports(path: Path) -> set[str]:
    """The collection's own modules that a Python file imports, by their last name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PLUGINS):
            parts = str(node.module).removeprefix(PLUGINS).split(".")
            is_package = (ROOT / "plugins").joinpath(*parts).is_dir()
            found |= {alias.name for alias in node.names} if is_package else {parts[-1]}
    return found


def test_unit_test(module: Path) -> None:
    """A module, or all the code of ours that it is a shell over, has a unit test."""
    tested = set()
    for path in (ROOT / "tests" / "unit").rglob("test_*.py"):
        tested |= imports(path)
    action = module.parent.parent / "action" / module.name
    needed = imports(module) | (imports(action) if action.is_file() else set())
    untested = needed - tested - COMMON
    assert module.stem in tested or (needed - COMMON and not untested), sorted(untested)
