# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A recorded run of Ansible becomes our own events, counts, failures and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmetal import progress
from llmetal.progress import Progress

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "ansible_events"
CASES = sorted(path.parent for path in FIXTURES.glob("*/events.jsonl"))


def replay(path: Path) -> tuple[Progress, list[dict[str, Any]]]:
    """The state and the events after a recording; its line numbers are the seconds."""
    state = Progress()
    lines = (path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = []
    for number, line in enumerate(lines):
        events += state.take(json.loads(line), float(number))
    events += state.end(float(len(lines)))
    return state, [event.as_json() for event in events]


def raw(event: str, stdout: str = "", **data: object) -> dict[str, Any]:
    """An event as ansible-runner hands it over."""
    return {"event": event, "stdout": stdout, "event_data": data}


def failed(host: str, **result: object) -> Progress:
    """A run whose only task failed on a host."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Plan | Make the locks"), 0.0)
    state.take(raw("playbook_on_task_start", name="Plan"), 0.0)
    state.take(raw("runner_on_failed", host=host, res=result), 1.0)
    return state


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_runs(case: Path) -> None:
    """A recording gives the expected events, counts, failures and exit status."""
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    state, events = replay(case)
    assert events == expected["events"]
    assert {host: vars(count) for host, count in state.hosts.items()} == expected["hosts"]
    assert [failure.host for failure in state.failures] == expected["failures"]
    assert state.exit_code(4) == expected["exit_code"]


def test_no_log_stays_secret() -> None:
    """A censored result has no message, and its failure says that it is hidden."""
    state = failed("a", censored="the output has been hidden")
    assert state.failures[0].what == "its result is hidden (no_log)"
    assert state.failures[0].why == ""


def test_failure_keeps_the_parts_of_our_own_error() -> None:
    """What, where, why and fix of a module's error arrive as they were raised."""
    parts = {"what": "no such GPU", "where": "gpu1", "why": "index 9", "fix": "name 0 to 7"}
    state = failed("gpu1", msg="one line", **parts)
    failure = state.failures[0]
    assert {name: getattr(failure, name) for name in parts} == parts


def test_a_host_that_cannot_be_written_is_told_from_one_that_does_not_answer() -> None:
    """Ansible calls both unreachable; what to do differs."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Survey | Look"), 0.0)
    state.take(raw("playbook_on_task_start", name="Survey"), 0.0)
    result = {"msg": "Failed to create temporary directory. In some cases, ..."}
    state.take(raw("runner_on_unreachable", host="gpu1", res=result), 1.0)
    (failure,) = state.failures
    assert (failure.status, failure.what) == ("unreachable", "the host cannot be written")
    assert "make room on its disk" in failure.fix


def test_failure_of_a_command_names_it_and_its_last_words() -> None:
    """A command that failed is named with its status and what it printed."""
    state = failed("a", msg="non-zero return code", cmd=["dpkg", "-i"], rc=2, stderr="no space")
    assert state.failures[0].what == "`dpkg -i` ended with status 2"
    assert state.failures[0].why == "no space"


@pytest.mark.parametrize(
    ("rc", "code", "expected"),
    [(0, None, 0), (2, 2, 2), (2, 3, 3), (2, None, 4), (4, None, 4)],
    ids=["done", "inventory", "refused", "failed", "unreachable"],
)
def test_exit_codes(rc: int, code: int | None, expected: int) -> None:
    """A task says by its result that the inventory is wrong or that it refuses."""
    extra = {} if code is None else {progress.EXIT_CODE_KEY: code}
    assert failed("localhost", msg="no", **extra).exit_code(rc) == expected


def test_exit_code_of_a_run_that_never_began() -> None:
    """Without a single play it is the inventory or the arguments."""
    assert Progress().exit_code(1) == progress.EXIT_USAGE


def test_exit_code_of_a_signal() -> None:
    """A run that was interrupted ends with the shell's status for it."""
    assert failed("a", msg="no").exit_code(254, 2) == 130


def test_interrupted_stage_is_not_ok() -> None:
    """The stage that an interrupt ends did not end well."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Converge | Change"), 0.0)
    state.end(3.0, interrupted=True)
    assert [(s.name, s.ok, s.seconds) for s in state.stages] == [("Converge", False, 3.0)]


def test_plays_of_one_stage_are_one_stage() -> None:
    """Several plays of one stage are shown and counted as one."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Converge | GPU hosts"), 0.0)
    state.take(raw("playbook_on_play_start", name="Converge | Gateways"), 4.0)
    state.take(raw("playbook_on_play_start", name="Prove | Ask the hosts"), 5.0)
    state.end(7.0)
    assert [(s.name, s.seconds) for s in state.stages] == [("Converge", 5.0), ("Prove", 2.0)]


def test_proofs_are_collected_from_loops_too() -> None:
    """A proof in a result, or in an item of one, is kept."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Prove | Ask"), 0.0)
    state.take(raw("playbook_on_task_start", name="Ask"), 0.0)
    item = {"proof": {"name": "chat", "ok": True, "tokens": 7}}
    state.take(raw("runner_on_ok", host="a", res={"results": [item, {}]}), 1.0)
    assert [(p.host, p.name, p.ok, p.detail) for p in state.proofs] == [
        ("a", "chat", True, {"tokens": 7})
    ]


def test_notes_are_said_once_and_without_colours() -> None:
    """A warning that Ansible repeats is one note."""
    state = Progress()
    line = raw("verbose", "\x1b[1;35m[WARNING]: no inventory\x1b[0m\r\n")
    notes = [*state.take(line, 0.0), *state.take(line, 1.0)]
    assert [note.as_json() for note in notes] == [
        {"event": "note", "elapsed": 0.0, "level": "warning", "text": "no inventory"}
    ]


def test_success_without_a_result_is_not_done() -> None:
    """Where tags or a pattern left every task out, the run says so."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Validate | Check"), 0.0)
    state.end(1.0, rc=0)
    assert state.exit_code(0) == progress.EXIT_USAGE
    assert [failure.what for failure in state.failures] == ["no task ran on any host"]
    assert not state.stages[0].ok


def test_what_ansible_refuses_is_explained_by_its_notes() -> None:
    """An inventory that Ansible cannot read fails the open stage, with Ansible's words."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Validate | Check"), 0.0)
    state.take(raw("verbose", "[ERROR]: no vault secrets found"), 0.5)
    state.take(raw("verbose", "Origin: all.yml:3"), 0.5)
    state.end(1.0, rc=4)
    assert state.exit_code(4) == progress.EXIT_USAGE
    (failure,) = state.failures
    assert (failure.stage, failure.host, failure.status) == ("Validate", "", "invalid")
    assert (failure.what, failure.why) == ("no vault secrets found", "Origin: all.yml:3")
    assert not state.stages[0].ok


def test_a_crash_of_ansible_is_no_usage_error() -> None:
    """A status that ansible-playbook does not choose itself is a failure."""
    state = Progress()
    state.take(raw("playbook_on_play_start", name="Validate | Check"), 0.0)
    assert state.exit_code(250) == progress.EXIT_FAILED
