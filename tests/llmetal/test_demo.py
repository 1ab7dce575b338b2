# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo: which parts it has, that it takes away what it made, what it tells."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import cli, demo, stages, system
from llmetal.progress import Progress, Proof, Stage
from llmetal.stages import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmetal.runner import Request

REPORT = Path("reports/20260101T000000Z")


class Ansible:
    """Stands for the runs of the demo: which playbooks ran, and how each is to end."""

    def __init__(self) -> None:
        """Every playbook ends well."""
        self.ran: list[tuple[str, str, dict[str, Any]]] = []
        self.status: dict[str, int] = {}
        self.raises: dict[str, BaseException] = {}

    def run(self, request: Request, *_args: object, **_options: object) -> Run:
        """Keep what was asked for."""
        (playbook,), (inventory,) = request.playbooks, request.inventories
        name = playbook.stem
        variables = json.loads(request.extra_vars[0])
        assert Path(variables.pop("llmetal_lock_dir")).is_dir()
        self.ran.append((name, inventory.name, variables))
        if name in self.raises:
            raise self.raises.pop(name)
        answer = {"model": "smollm2", "answer": "Paris.", "completion_tokens": 3, "seconds": 0.5}
        stages = [Stage("Converge", 0.0, seconds=61.5)] if name == "site" else []
        state = Progress(
            stages=stages, proofs=[Proof(1.0, "gpu1", "answer", ok=True, detail=answer)]
        )
        return Run(self.status.get(name, 0), state, REPORT if name == "site" else None, 1.0)

    @property
    def names(self) -> list[str]:
        """The playbooks that ran."""
        return [name for name, _, _ in self.ran]


@pytest.fixture
def ansible(monkeypatch: pytest.MonkeyPatch) -> Ansible:
    """A demo whose model is there and whose runs are only kept."""
    kept = Ansible()
    monkeypatch.setattr(stages, "run", kept.run)
    monkeypatch.setattr(demo, "_make_model", lambda _demo: None)
    monkeypatch.setattr(system, "sandbox_obstacle", lambda: None)
    return kept


def test_the_whole_way(ansible: Ansible, capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts, site, question, clean up; the answer, the times, the report, what is simulated."""
    assert cli.main(["demo"]) == 0
    assert ansible.names == ["sandbox", "site", "ask", "sandbox"]
    assert ansible.ran[-1] == ("sandbox", "sandbox", {"sandbox_state": "absent"})
    out = capsys.readouterr().out
    assert "smollm2 on gpu1: Paris." in out
    assert f"report: {REPORT}" in out
    assert "Simulated: the GPUs" in out
    assert re.search(r"Converge +61\.5 +ok", out)
    for part in ("Model", "Hosts", "Site", "Question", "Clean up"):
        assert part in out


def test_without_root_it_runs_over_this_machine(
    ansible: Ansible, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says why, and the same site.yml runs over inventory/local."""
    monkeypatch.setattr(system, "sandbox_obstacle", lambda: "this user is not root")
    assert cli.main(["demo"]) == 0
    assert [(name, where) for name, where, _ in ansible.ran] == [
        ("site", "local"),
        ("ask", "local"),
        ("stop", "local"),
    ]
    assert "No sandbox, because this user is not root" in capsys.readouterr().out


def test_keep_leaves_it_up(ansible: Ansible, capsys: pytest.CaptureFixture[str]) -> None:
    """With --keep nothing is taken away, and the way to do it is named."""
    assert cli.main(["demo", "--keep"]) == 0
    assert ansible.names == ["sandbox", "site", "ask"]
    assert "./llmetal sandbox down" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "ran"),
    [
        ("sandbox", ["sandbox", "sandbox"]),
        ("site", ["sandbox", "site", "sandbox"]),
        ("ask", ["sandbox", "site", "ask", "sandbox"]),
    ],
)
def test_a_failure_is_cleaned_up_too(ansible: Ansible, part: str, ran: list[str]) -> None:
    """Whatever fails, what was made is taken away, and the status is that of the failure."""
    ansible.status[part] = 4
    assert cli.main(["demo"]) == 4
    assert ansible.names == ran


@pytest.mark.parametrize("part", ["site", "ask"])
def test_an_interrupt_is_cleaned_up_too(ansible: Ansible, part: str) -> None:
    """Ctrl-C ends the demo with its status, after it has taken away what it made."""
    ansible.raises[part] = KeyboardInterrupt()
    assert cli.main(["demo"]) == 130
    assert ansible.names[-1] == "sandbox"


def test_a_clean_up_that_fails_does_not_hide_the_failure(ansible: Ansible) -> None:
    """The first failure gives the status."""
    ansible.status = {"site": 3, "sandbox": 0}
    ansible.raises["ask"] = KeyboardInterrupt()
    assert cli.main(["demo"]) == 3


def test_a_model_that_cannot_be_made(
    ansible: Ansible, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No host is made for a demo that has no model; the error says what to do."""

    def fail(_demo: object) -> None:
        raise LlmetalError(what="no room", where="/srv", fix="make room")

    monkeypatch.setattr(demo, "_make_model", fail)
    assert cli.main(["demo"]) == 4
    assert ansible.names == []
    assert "what to do: make room" in capsys.readouterr().err


def test_json(ansible: Ansible, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine gets one document with the parts and the answers."""
    del ansible
    assert cli.main(["demo", "--json", "--question", "Where?"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document: dict[str, Any] = json.loads(line)
    assert document["event"] == "demo_end"
    assert document["question"] == "Where?"
    assert [step["name"] for step in document["steps"]][-1] == "Clean up"
    assert document["answers"][0]["detail"]["answer"] == "Paris."


def test_obstacles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps a machine from having sandbox hosts is said in a clause."""
    geteuid: Callable[[], int] = lambda: 1000  # noqa: E731 - a stand-in of one line
    monkeypatch.setattr("os.geteuid", geteuid)
    assert system.sandbox_obstacle() == "this user is not root"
