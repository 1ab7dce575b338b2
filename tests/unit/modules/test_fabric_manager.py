# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module fabric_manager: check mode predicts and never fails; a run refuses before it acts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import fabric
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.service import UnitState
from ansible_collections.llmetal.inference.plugins.modules import fabric_manager as subject

VERSION = "580.159.04-1"
PARAMS: dict[str, Any] = {
    "service": "nvidia-fabricmanager.service",
    "package": "nvidia-fabricmanager",
    "version": VERSION,
    "packages": [],
    "state": "started",
    "timeout": 10,
}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host whose fabric manager is installed and does not run yet."""
    found: dict[str, Any] = {"active": "inactive", "installed": VERSION, "busy": [], "calls": []}

    def see(_wanted: fabric.Wanted, _manager: object) -> fabric.Seen:
        unit = UnitState(load="loaded", active=found["active"])
        packages = {"nvidia-fabricmanager": found["installed"]}
        return fabric.Seen(unit, packages, "580.159.04", None)

    def run_it(_wanted: fabric.Wanted, action: str, _manager: object) -> None:
        found["calls"].append(action)
        found["active"] = "active"

    monkeypatch.setattr(fabric, "see", see)
    monkeypatch.setattr(fabric, "run_it", run_it)
    monkeypatch.setattr(fabric, "computing", lambda: found["busy"])
    return found


def test_started_once(host: dict[str, Any]) -> None:
    """The second run changes nothing."""
    first = subject.converge(PARAMS, check_mode=False)
    assert (first["changed"], first["action"]) == (True, "start")
    assert (first["before"]["active"], first["after"]["active"]) == ("inactive", "active")
    second = subject.converge(PARAMS, check_mode=False)
    assert (second["changed"], second["action"]) == (False, "none")
    assert host["calls"] == ["start"]


def test_check_mode_says_what_is_wrong(host: dict[str, Any]) -> None:
    """On a bare host nothing is there yet, and that is no failure."""
    host["installed"] = None
    predicted = subject.converge(PARAMS, check_mode=True)
    assert predicted["changed"]
    assert predicted["problems"] == [
        f"nvidia-fabricmanager is not installed, the lock has {VERSION}"
    ]
    assert host["calls"] == []
    with pytest.raises(LlmetalError, match="not of the lock's version"):
        subject.converge(PARAMS, check_mode=False)


def test_only_looked(host: dict[str, Any]) -> None:
    """State installed starts nothing."""
    done = subject.converge({**PARAMS, "state": "installed"}, check_mode=False)
    assert not done["changed"]
    assert host["calls"] == []


def test_not_under_programs(host: dict[str, Any]) -> None:
    """A manager that died while programs compute is left to whoever drains the host."""
    host.update(active="failed", busy=[{"pid": 7, "name": "vllm"}])
    with pytest.raises(LlmetalError, match=r"must not start.*7 \(vllm\)"):
        subject.converge(PARAMS, check_mode=False)
    assert host["calls"] == []
