# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused before anything of the machine is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import hosts, ledger
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.guest import Bind, Wish
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import Settings

FILES = Path(__file__).parents[3] / "roles/sandbox/files"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A sandbox with one host in its ledger, asked by root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made = Settings(files=FILES, state=tmp_path / "state", cache=tmp_path / "cache")
    entry = {"address": "10.213.0.5", "os": "debian12", "scenario": "rtx_4090"}
    ledger.save(made.ledger, ledger.Ledger(hosts={"a": entry}))
    return made


def wish(**changes: Any) -> Wish:  # noqa: ANN401 - the fields of a wish
    """A host that fits."""
    return Wish(**{"name": "b", "os": "debian12", "address": "10.213.0.6", **changes})


def test_a_fitting_host_would_be_made(settings: Settings) -> None:
    """Check mode says so and makes nothing."""
    outcome = hosts.start(settings, wish(), faults=["nouveau"], check=True)
    assert outcome.changed
    assert outcome.before == {"state": "absent"}
    assert outcome.after["faults"] == ["nouveau"]
    assert not settings.host("b").folder.exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"address": "10.213.0.5"}, "sandbox host a has it"),
        ({"address": "10.213.0.1"}, "is the machine"),
        ({"address": "10.213.0.255"}, "cannot have the address"),
        ({"address": "192.0.2.7"}, "the sandbox's subnet is"),
        ({"address": "10.213"}, "is not an address"),
        ({"scenario": "8xh400"}, "no scenario '8xh400'"),
        ({"binds": (Bind("/no/such/folder", "/srv"),)}, "a folder that does not exist"),
    ],
)
def test_what_does_not_fit(settings: Settings, changes: dict[str, Any], says: str) -> None:
    """Each refusal says what and why."""
    with pytest.raises(LlmetalError, match=says):
        hosts.start(settings, wish(**changes), check=True)


def test_only_root(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user is told so, and what works without root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LlmetalError, match=r"needs root.*inventory/local"):
        hosts.start(settings, wish())


def test_a_folder_of_somebody_else(settings: Settings, tmp_path: Path) -> None:
    """Nothing in a folder that is not a sandbox's is made, stopped or removed."""
    foreign = tmp_path / "foreign"
    (foreign / "hosts/b").mkdir(parents=True)
    other = Settings(files=FILES, state=foreign)
    says = "the sandbox did not make it"
    with pytest.raises(LlmetalError, match=says):
        hosts.start(other, wish(), check=True)
    with pytest.raises(LlmetalError, match=says):
        hosts.stop(other, "b")
    with pytest.raises(LlmetalError, match=says):
        hosts.remove(other, "b")
    assert (foreign / "hosts/b").is_dir()
    assert settings.ledger.exists()


def test_an_unfinished_host_is_listed(settings: Settings) -> None:
    """A host that a killed run began shows as what it is."""
    assert [(host["name"], host["state"]) for host in hosts.everyone(settings)] == [
        ("a", "unfinished")
    ]


def test_removing_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    """No sandbox, no change."""
    nothing = Settings(files=FILES, state=tmp_path / "none")
    assert not hosts.remove(nothing, "a").changed
    assert not hosts.stop(nothing, "a").changed
    assert hosts.everyone(nothing) == []
