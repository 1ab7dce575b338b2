# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""run_lock: who may take it when, and what its file survives."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import run_lock
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.run_lock import (
    Claim,
    HeldError,
    Lock,
    Owner,
    acquire,
    decide,
    read,
    release,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import run_identity

if TYPE_CHECKING:
    from pathlib import Path

OWNER = Owner(controller="c1", host="desk", user="ada", pid=41, started="boot ns 1")
MINE = Claim("mine", OWNER, lease=100)
OTHER = Claim("other", OWNER, lease=100)


@pytest.mark.parametrize(
    ("lock", "claim", "decision"),
    [
        (None, MINE, "free"),
        (Lock("mine", OWNER, 0, 50), MINE, "ours"),
        (Lock("other", OWNER, 0, 50), MINE, "held"),
        (Lock("other", OWNER, 0, 10), MINE, "taken_over"),
        (Lock("other", OWNER, 0, 50), Claim("mine", OWNER, 1, frozenset({"other"})), "taken_over"),
    ],
)
def test_decisions(lock: Lock | None, claim: Claim, decision: str) -> None:
    """Free, ours, a dead run's, or held; it is 10 o'clock."""
    assert decide(lock, claim, now=10) == decision


def test_life(tmp_path: Path) -> None:
    """Taken, renewed, refused to others, given back."""
    folder = str(tmp_path / "run")
    assert acquire(folder, MINE, wait=0, check_mode=False)["decision"] == "free"
    first = read(folder)
    assert first is not None
    assert acquire(folder, MINE, wait=0, check_mode=False)["decision"] == "ours"
    second = read(folder)
    assert second is not None
    assert second["since"] == first["since"]
    assert second["until"] >= first["until"]
    with pytest.raises(HeldError, match=r"ada@desk.*run mine holds.*until.*delete") as refused:
        acquire(folder, OTHER, wait=0.1, check_mode=False)
    assert refused.value.lock.run_id == "mine"
    assert release(folder, "other", check_mode=False)["decision"] == "not_ours"
    assert release(folder, "mine", check_mode=False)["decision"] == "released"
    assert release(folder, "mine", check_mode=False)["decision"] == "free"
    assert read(folder) is None
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == []


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    """It refuses all the same."""
    folder = str(tmp_path / "run")
    assert acquire(folder, MINE, wait=0, check_mode=True)["decision"] == "free"
    assert not (tmp_path / "run").exists()
    acquire(folder, OTHER, wait=0, check_mode=False)
    with pytest.raises(HeldError):
        acquire(folder, MINE, wait=0, check_mode=True)
    assert release(folder, "other", check_mode=True)["decision"] == "released"
    assert read(folder) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": "x"}', '{"run_id": "x", "owner": 1}'])
def test_a_file_that_is_no_lock(text: str, tmp_path: Path) -> None:
    """It keeps nobody off."""
    (tmp_path / run_lock.FILE).write_text(text)
    assert read(str(tmp_path)) is None
    assert acquire(str(tmp_path), MINE, wait=0, check_mode=False)["decision"] == "free"


def test_only_one_gets_it(tmp_path: Path) -> None:
    """Of many at once one has it, and the others are told."""

    def claim(number: int) -> str:
        try:
            one = Claim(f"run{number}", OWNER, 100)
            return str(acquire(str(tmp_path), one, wait=0, check_mode=False)["decision"])
        except HeldError:
            return "held"

    with ThreadPoolExecutor(8) as pool:
        found = sorted(pool.map(claim, range(24)))
    assert found == ["free", *["held"] * 23]


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    """A file in the place of the folder is said."""
    (tmp_path / "run").touch()
    with pytest.raises(LlmetalError, match="cannot be written"):
        acquire(str(tmp_path / "run"), MINE, wait=0, check_mode=False)


def owner(**change: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """The owner that this process's parent is, with a change."""
    return {**run_identity.this_run().owner(), **change}


def test_identity() -> None:
    """All workers of a run have one identity: that of their parent."""
    run = run_identity.this_run()
    assert run.pid == os.getppid()
    assert run.run_id == run_identity.this_run().run_id
    assert str(run.pid) in run.run_id
    assert "machine-id" not in json.dumps(run.owner())


def test_dead_or_alive() -> None:
    """A run is dead only where that is sure."""
    assert not run_identity.is_dead(owner())
    child = subprocess.Popen(["sleep", "60"])
    started = run_identity.started(child.pid)
    assert not run_identity.is_dead(owner(pid=child.pid, started=started))
    child.kill()
    child.wait()
    assert run_identity.is_dead(owner(pid=child.pid, started=started))
    assert not run_identity.is_dead(owner(controller="another"))
    boot, namespace, ticks = str(owner()["started"]).split(" ")
    assert run_identity.is_dead(owner(started=f"{boot} {namespace} 1"))
    assert run_identity.is_dead(owner(started=f"earlier {namespace} {ticks}"))
    assert not run_identity.is_dead(owner(started=f"{boot} pid:[1] {ticks}"))
    assert not run_identity.is_dead(owner(started="nonsense"))
