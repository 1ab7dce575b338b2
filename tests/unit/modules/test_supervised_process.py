# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module supervised_process: predictions where nothing runs yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import supervised_process as subject

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """A process on a host that has no supervisord."""
    defaults = {name: value.get("default") for name, value in subject.ARGUMENTS.items()}
    return {
        **defaults,
        "name": "chat",
        "argv": ["/bin/true"],
        "supervisord": str(tmp_path / "supervisord"),
        "config_dir": str(tmp_path / "config"),
        "run_dir": str(tmp_path / "run"),
        "log_dir": str(tmp_path / "log"),
    }


def test_a_prediction_needs_no_supervisord(params: dict[str, Any], tmp_path: Path) -> None:
    """And makes nothing."""
    predicted = subject.converge(params, check_mode=True)
    assert predicted["changed"]
    assert predicted["main_pid"] == 0
    assert "[program:chat]" in predicted["diff"]["after"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_needs_one(params: dict[str, Any]) -> None:
    """Its path is named."""
    with pytest.raises(LlmetalError, match="supervisord does not start"):
        subject.converge(params, check_mode=False)


def test_removing_what_never_was(params: dict[str, Any]) -> None:
    """Needs nothing."""
    gone = {**params, "state": "absent", "argv": []}
    assert not subject.converge(gone, check_mode=False)["changed"]
