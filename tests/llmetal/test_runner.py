# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible is run for real, on this machine: its events, its end, its interrupt."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from llmetal import runner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLAY = """
- name: Survey | Look
  hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Act
      ansible.builtin.{module}
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and a configuration without our report."""
    config = tmp_path / "ansible.cfg"
    config.write_text("[defaults]\n", encoding="utf-8")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(config))
    host = {"ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    inventory = json.dumps({"all": {"hosts": {"h1": host}}})
    (tmp_path / "hosts.yml").write_text(inventory, encoding="utf-8")
    return tmp_path


def make(folder: Path, module: str, **options: Any) -> runner.Request:  # noqa: ANN401 - of Request
    """A request to run one task."""
    playbook = folder / "play book.yml"
    playbook.write_text(PLAY.format(module=module), encoding="utf-8")
    return runner.Request((playbook,), (folder / "hosts.yml",), **options)


def test_arguments() -> None:
    """What a request asks for is what ansible-playbook is told."""
    request = runner.Request(
        (), (), limit="gpu1", check=True, diff=True, extra_vars=('{"a": 1}',), verbosity=3
    )
    assert request.arguments() == [
        *("--limit", "gpu1", "--check", "--diff", "--extra-vars", '{"a": 1}', "-vv")
    ]


def test_a_run_hands_its_events_on(environment: Path) -> None:
    """Events arrive in this process, in order, with the variables of the request."""
    seen: list[Mapping[str, Any]] = []
    request = make(environment, 'debug: {msg: "{{ word }}"}', extra_vars=('{"word": "two words"}',))
    outcome = runner.run(request, seen.append)
    assert outcome == runner.Outcome(0)
    names = [event["event"] for event in seen if event["event"] != "verbose"]
    assert names[0] == "playbook_on_start"
    assert names[-1] == "playbook_on_stats"
    (ok,) = [event for event in seen if event["event"] == "runner_on_ok"]
    assert ok["event_data"]["res"]["msg"] == "two words"


def test_a_failed_run_has_the_status_of_ansible(environment: Path) -> None:
    """A failed task ends ansible-playbook with status 2."""
    outcome = runner.run(make(environment, "fail: {msg: no}"), lambda _event: None)
    assert outcome == runner.Outcome(2)


def test_an_interrupt_ends_ansible(environment: Path) -> None:
    """Ctrl-C reaches Ansible, and the run tells which signal it was."""
    pids: list[int] = []

    def interrupt(event: Mapping[str, Any]) -> None:
        if event["event"] == "runner_on_start":
            pids.append(int(event["pid"]))
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    outcome = runner.run(make(environment, "command: sleep 60"), interrupt)
    assert outcome.signal == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) == before
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_paths_are_those_of_the_caller(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative file of variables is looked for in the folder that the command is called in."""
    (environment / "v.yml").write_text("word: found", encoding="utf-8")
    monkeypatch.chdir(environment)
    monkeypatch.setenv("ANSIBLE_CONFIG", "ansible.cfg")
    request = make(environment, 'debug: {msg: "{{ word }}"}', extra_vars=("@v.yml",))
    seen: list[Mapping[str, Any]] = []
    assert runner.run(request, seen.append) == runner.Outcome(0)
    (ok,) = [event for event in seen if event["event"] == "runner_on_ok"]
    assert ok["event_data"]["res"]["msg"] == "found"


def test_a_display_that_fails_ends_ansible(environment: Path) -> None:
    """Ansible is stopped and waited for before the error goes on."""
    pids: list[int] = []

    def fail(event: Mapping[str, Any]) -> None:
        if event["event"] == "runner_on_start":
            pids.append(int(event["pid"]))
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        runner.run(make(environment, "command: sleep 60"), fail)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_listing_is_told_from_running() -> None:
    """A run that is only to list has no results to ask for."""
    assert runner.Request((), (), extra_args=("--list-hosts",)).only_lists()
    assert not runner.Request((), (), extra_args=("--forks", "2")).only_lists()
