# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module python_environment: predictions, results and refusals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import python_environment as subject

if TYPE_CHECKING:
    from pathlib import Path

UV = f"""#!/bin/sh
for last; do :; done
case "$1" in
venv) mkdir -p "$last/bin" && ln -s {sys.executable} "$last/bin/python" ;;
esac
"""


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """An environment of nothing, made by a uv that only makes folders."""
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    defaults = {name: value.get("default") for name, value in subject.ARGUMENTS.items()}
    return {
        **defaults,
        "name": "engine",
        "root": str(tmp_path / "environments"),
        "python": sys.executable,
        "requirements": [],
        "uv": str(uv),
    }


def test_a_prediction_is_kept(params: dict[str, Any], tmp_path: Path) -> None:
    """What check mode says is what the run does."""
    predicted = subject.converge(params, check_mode=True)
    assert predicted["changed"]
    assert not (tmp_path / "environments").exists()
    assert not predicted["proof"]["ok"]
    done = subject.converge(params, check_mode=False)
    for key in ("changed", "before", "after", "diff", "folder", "link"):
        assert done[key] == predicted[key]
    assert done["proof"]["ok"]
    again = subject.converge(params, check_mode=False)
    assert not again["changed"]
    assert again["before"] == again["after"] == done["after"]


def test_another_python_than_locked_is_refused(params: dict[str, Any]) -> None:
    """The wheels of the lock are those of its Python."""
    with pytest.raises(LlmetalError, match=r"the lock says 3\.9\.1"):
        subject.converge({**params, "python_version": "3.9.1"}, check_mode=False)


def test_a_python_to_be_installed_is_trusted_in_a_prediction(params: dict[str, Any]) -> None:
    """An earlier task brings it."""
    missing = {**params, "python": "/no/such/python3.12", "python_version": "3.12.1"}
    assert subject.converge(missing, check_mode=True)["changed"]
    with pytest.raises(LlmetalError, match="does not run"):
        subject.converge(missing, check_mode=False)
