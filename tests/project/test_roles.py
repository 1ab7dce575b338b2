# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every role has the same form: phases, a specification that equals its defaults, a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from pathlib import Path

PHASES = ["validate", "install", "configure", "run", "verify"]

COVERED_BY = {
    "python_env": "molecule/llm_service runs it on the way to a served model",
    "vllm": "molecule/llm_service runs it on the way to a served model",
    "model": "molecule/llm_service runs it on the way to a served model",
}
"""Roles without a scenario of their own, and the one that runs them."""


def load(path: Path) -> Any:  # noqa: ANN401 - any YAML document
    """A YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def specification(role: Path) -> dict[str, dict[str, Any]]:
    """The options of all entry points of a role."""
    merged: dict[str, dict[str, Any]] = {}
    for entry in load(role / "meta" / "argument_specs.yml")["argument_specs"].values():
        merged.update(entry.get("options") or {})
    return merged


def defaults(role: Path) -> dict[str, Any]:
    """The public variables that a role has a default for."""
    path = role / "defaults" / "main.yml"
    found = (load(path) or {}) if path.is_file() else {}
    return {name: value for name, value in found.items() if not name.startswith("__")}


def test_phases(role: Path) -> None:
    """tasks/main.yml imports phases in their order, and does nothing else."""
    seen = []
    for task in load(role / "tasks" / "main.yml"):
        modules = [k for k in task if k.startswith(("ansible.builtin.i", "ansible.builtin.inc"))]
        assert len(modules) == 1, task
        assert modules[0] in {"ansible.builtin.import_tasks", "ansible.builtin.include_tasks"}
        value = task[modules[0]]
        file = value["file"] if isinstance(value, dict) else value
        seen.append(file.removesuffix(".yml"))
    assert seen == [phase for phase in PHASES if phase in seen]


def test_specification_is_described(role: Path) -> None:
    """Every entry point and option of a role says what it is for."""
    for name, entry in load(role / "meta" / "argument_specs.yml")["argument_specs"].items():
        assert entry.get("short_description"), name
    for name, option in specification(role).items():
        assert option.get("description"), name
        assert option.get("type"), name


def test_specification_equals_defaults(role: Path) -> None:
    """What is not required has a default, and it is the same in both files."""
    spec, given = specification(role), defaults(role)
    optional = {name for name, option in spec.items() if not option.get("required")}
    assert set(given) <= optional
    for name in optional:
        assert spec[name].get("default") == given.get(name), name


def test_names(role: Path) -> None:
    """Public variables begin with the name of the role."""
    for name in specification(role):
        assert name.startswith(f"{role.name}_"), name


def test_scenario(role: Path, root: Path) -> None:
    """A role runs for real in a scenario, its own or one that the table names."""
    own = root / "molecule" / role.name / "molecule.yml"
    if role.name not in COVERED_BY:
        assert own.is_file()
    elif own.is_file():
        pytest.fail(f"{role.name} has a scenario: take it out of COVERED_BY")


def test_page(role: Path, root: Path) -> None:
    """A role has a page in the documentation."""
    assert (root / "docs" / "roles" / f"{role.name}.md").is_file()


def test_scenarios_of_the_sandbox(root: Path) -> None:
    """What the sandbox can simulate is what there is a file for."""
    role = root / "roles" / "sandbox"
    files = {path.stem for path in (role / "files" / "scenarios").glob("*.yml")}
    choices = specification(role)["sandbox_scenario"]["choices"]
    assert choices == ["", *sorted(files)]
