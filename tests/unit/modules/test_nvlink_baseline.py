# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module nvlink_baseline: written once a boot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import nvlink_baseline as subject

if TYPE_CHECKING:
    from pathlib import Path


def counters(boot: str = "b1", gpu: str = "GPU-1", errors: int = 0) -> dict[str, Any]:
    """Counters of one GPU."""
    return {"boot_id": boot, "gpus": {gpu: {"0": {"replay": errors}}}}


def test_once_a_boot(tmp_path: Path) -> None:
    """Errors do not replace it, another boot or GPU does."""
    path = tmp_path / "baseline.json"

    def keep(now: dict[str, Any]) -> dict[str, Any]:
        return subject.converge({"path": str(path), "counters": now}, check_mode=False)

    assert keep(counters())["replaced"] == "there is none that could be read"
    second = keep(counters(errors=9))
    assert (second["changed"], second["replaced"]) == (False, "")
    assert json.loads(path.read_text())["gpus"]["GPU-1"]["0"]["replay"] == 0
    assert keep(counters("b2"))["replaced"] == "it is of another boot"
    assert keep(counters("b2", "GPU-2"))["replaced"] == "it is of other GPUs"
    path.write_text("{")
    assert keep(counters("b2", "GPU-2"))["changed"]


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    """It says what it would write."""
    path = tmp_path / "baseline.json"
    done = subject.converge({"path": str(path), "counters": counters()}, check_mode=True)
    assert done["changed"]
    assert "GPU-1" in done["diff"]["after"]
    assert not path.exists()


def test_failures(tmp_path: Path) -> None:
    """Something else than counters, and a folder that is not there."""
    with pytest.raises(LlmetalError, match=r"no counters of links.*keys x"):
        subject.converge({"path": str(tmp_path / "a"), "counters": {"x": 1}}, check_mode=False)
    gone = {"path": str(tmp_path / "gone/a"), "counters": counters()}
    with pytest.raises(LlmetalError, match="cannot be kept"):
        subject.converge(gone, check_mode=False)
