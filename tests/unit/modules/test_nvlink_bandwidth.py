# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module nvlink_bandwidth: measured by a program of the host, or skipped with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import gpu
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import nvlink_bandwidth as subject

OUTPUT = Path(__file__).parents[2] / "fixtures/nvbandwidth/h200x2/output.txt"
ADDRESSES = ["0000:19:00.0", "0000:3b:00.0"]


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two H200 with all links, and an nvbandwidth."""
    file = tmp_path / "nvbandwidth"
    file.write_text(f"#!/bin/sh\ncat {OUTPUT}\n")
    file.chmod(0o755)
    links = [{"link": number, "state": "active", "gbps": 26.562} for number in range(18)]
    gpus = [
        {
            "pci_address": address,
            "source": "driver",
            "nvlink": links,
            "mig": {"current": False},
            "processes": [],
        }
        for address in ADDRESSES
    ]
    report = {"gpus": gpus, "boot_id": "b1", "driver": {"loaded": "580.159.04"}}
    monkeypatch.setattr(gpu, "gather", lambda: None)
    monkeypatch.setattr(gpu, "report", lambda _evidence: report)
    rows = [{"pci": address, "links": 18, "gbps": 26.562} for address in ADDRESSES]
    return {
        "nvlink": {"topology": "NV18", "gpus": rows},
        "fraction": 0.65,
        "record": None,
        "path": str(tmp_path),
        "timeout": 10,
    }


def test_fast_enough(params: dict[str, Any]) -> None:
    """What was measured, and what was expected."""
    assert subject.look(params, check_mode=False) == {
        "changed": False,
        "measured": True,
        "kept": False,
        "reason": "",
        "tool": "nvbandwidth",
        "floor_gbps": 310.8,
        "slowest_gbps": 392.85,
        "failures": [],
    }


def test_too_slow(params: dict[str, Any]) -> None:
    """A pair below the floor is named."""
    found = subject.look({**params, "fraction": 0.9}, check_mode=False)
    assert "GPU 0 (0000:19:00.0) and GPU 1 (0000:3b:00.0): 393.2 GB/s" in found["failures"]


def test_skipped(params: dict[str, Any]) -> None:
    """In check mode, and where no program is."""
    assert "check mode" in subject.look(params, check_mode=True)["reason"]
    nowhere = {**params, "path": ""}
    assert "nvbandwidth" in subject.look(nowhere, check_mode=False)["reason"]


def test_once_a_boot(params: dict[str, Any], tmp_path: Path) -> None:
    """A good result is kept, and the GPUs are left alone; a bad one is measured again."""
    asked = {**params, "record": str(tmp_path / "kept.json")}
    slow = subject.look({**asked, "fraction": 0.9}, check_mode=False)
    assert (slow["changed"], slow["kept"], bool(slow["failures"])) == (False, False, True)
    first = subject.look(asked, check_mode=False)
    assert (first["changed"], first["kept"]) == (True, False)
    (tmp_path / "nvbandwidth").write_text("#!/bin/sh\nexit 1\n")
    second = subject.look(asked, check_mode=False)
    assert second == {**first, "changed": False, "kept": True}
    with pytest.raises(LlmetalError, match="measured nothing"):
        subject.look({**asked, "fraction": 0.5}, check_mode=False)


def test_a_result_that_cannot_be_kept(params: dict[str, Any], tmp_path: Path) -> None:
    """A folder that is not there."""
    with pytest.raises(LlmetalError, match="cannot be kept"):
        subject.look({**params, "record": str(tmp_path / "gone/kept.json")}, check_mode=False)
