# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module llm_probe: when it gives a service up, and what it returns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llmetal.inference.plugins.module_utils.probe import Answer, ProbeError
from ansible_collections.llmetal.inference.plugins.module_utils.service import Manager, UnitState
from ansible_collections.llmetal.inference.plugins.module_utils.supervisor import (
    ProcessState,
    Supervisor,
)
from ansible_collections.llmetal.inference.plugins.modules import llm_probe as subject

UNIT = {"name": "llmetal-chat.service", "manager": "systemd", "scope": "system"}
PROCESS = {"name": "llmetal-chat", "manager": "supervisor", "run_dir": "/r", "log_dir": "/l"}


@pytest.mark.parametrize(
    ("state", "how"),
    [
        (UnitState("loaded", "active", "running"), ""),
        (UnitState("loaded", "activating", "auto-restart", restarts=6), ""),
        (UnitState("loaded", "active", "running", restarts=7), "started again 2 times"),
        (UnitState("loaded", "failed", result="oom-kill", exit_status=9), "oom-kill"),
        (UnitState("loaded", "inactive", condition_failed=True), "condition is not met"),
        (UnitState("loaded", "inactive"), "stopped"),
        (UnitState(), "no such unit"),
        (None, "no such unit"),
    ],
)
def test_when_a_unit_is_given_up(
    monkeypatch: pytest.MonkeyPatch, state: UnitState | None, how: str
) -> None:
    """Five restarts of an earlier day do not count."""
    lines = ["INFO fine", "ValueError: too small", "bye"]
    monkeypatch.setattr(Manager, "log_tail", lambda *_arguments: lines)
    monkeypatch.setattr(Manager, "state_of", lambda *_arguments: UnitState(restarts=5))
    watch = subject.Watch(UNIT)
    monkeypatch.setattr(Manager, "state_of", lambda *_arguments: state)
    error = watch.give_up()
    if not how:
        assert error is None
        return
    assert error is not None
    assert how in error.why
    assert "ValueError: too small" in error.why
    assert watch.log == lines


@pytest.mark.parametrize(
    ("state", "failed"),
    [("STARTING", False), ("RUNNING", False), ("BACKOFF", False), ("FATAL", True)],
)
def test_when_a_process_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    failed: bool,  # noqa: FBT001 - a table
) -> None:
    """Supervisord has the word."""
    monkeypatch.setattr(Supervisor, "info", lambda *_arguments: ProcessState(state))
    assert (subject.Watch(PROCESS).give_up() is not None) == failed


def test_without_a_service_nothing_is_given_up() -> None:
    """A gateway, or a machine elsewhere."""
    watch = subject.Watch(None)
    assert watch.give_up() is None
    assert watch.lines(3) == []


def run(capsys: pytest.CaptureFixture[str], **params: Any) -> dict[str, Any]:  # noqa: ANN401 - module parameters
    """Run the module; its result."""
    with (
        patch_module_args({"url": "http://127.0.0.1:1", "model": "tiny", **params}),
        pytest.raises(SystemExit),
    ):
        subject.main()
    return dict(json.loads(capsys.readouterr().out))


def test_a_proof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything of the answer is in it."""
    answer = Answer("tiny", "Paris.", 3, "stop", 0.5)
    monkeypatch.setattr(subject, "wait_for_answer", lambda *_arguments: answer)
    result = run(capsys, name="chat")
    assert result["proof"] == {
        "name": "chat",
        "ok": True,
        "model": "tiny",
        "answer": "Paris.",
        "completion_tokens": 3,
        "seconds": 0.5,
        "tokens_per_second": 6.0,
        "finish_reason": "stop",
    }


def test_no_proof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails with the parts of the error; in check mode it is a result."""

    def fail(*_arguments: object) -> Answer:
        raise ProbeError(what="the endpoint does not answer", fix="start it")

    monkeypatch.setattr(subject, "wait_for_answer", fail)
    result = run(capsys)
    assert result["failed"]
    assert result["fix"] == "start it"
    assert not result["proof"]["ok"]
    checked = run(capsys, _ansible_check_mode=True)
    assert not checked.get("failed", False)
    assert checked["proof"] == result["proof"]


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A file is not asked."""
    assert "must begin with http" in run(capsys, url="file:///etc/passwd")["msg"]
