# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module service_unit: predictions where there is no systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import service_unit as subject

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A unit on a host without systemd."""
    monkeypatch.setenv("PATH", str(tmp_path))
    defaults = {name: value.get("default") for name, value in subject.ARGUMENTS.items()}
    return {
        **defaults,
        "name": "llmetal-chat.service",
        "content": "[Service]\nExecStart=/bin/true\n",
        "unit_dir": str(tmp_path / "units"),
    }


def test_a_prediction_needs_no_systemd(params: dict[str, Any], tmp_path: Path) -> None:
    """It shows the whole file and every step."""
    predicted = subject.converge(params, check_mode=True)
    assert predicted["changed"]
    assert predicted["steps"] == ["write", "reload", "enable", "start"]
    assert predicted["diff"]["after"] == params["content"]
    assert predicted["before"]["sha256"] is None
    assert not (tmp_path / "units").exists()


def test_a_run_needs_one(params: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is written without it."""
    with pytest.raises(LlmetalError, match="no systemd system manager answers"):
        subject.converge(params, check_mode=False)
    assert not (tmp_path / "units").exists()


def test_removing_what_never_was(params: dict[str, Any]) -> None:
    """Needs nothing."""
    gone = {**params, "state": "absent", "content": ""}
    assert not subject.converge(gone, check_mode=False)["changed"]


def test_links_are_part_of_the_unit(params: dict[str, Any], tmp_path: Path) -> None:
    """A link that leads elsewhere makes another file."""
    link = tmp_path / "current"
    texts = []
    for target in ("one", "two"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        seen = subject.converge({**params, "restart_on_links": [str(link)]}, check_mode=True)
        texts.append(seen["diff"]["after"])
    assert texts[0] != texts[1]
