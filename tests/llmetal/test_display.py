# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person, a log and a machine see of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from llmetal.display import JsonDisplay, LiveDisplay, PlainDisplay, make, make_console, outcome
from llmetal.progress import Progress

RECORDING = (
    Path(__file__).resolve().parents[1] / "fixtures" / "ansible_events" / "mixed" / "events.jsonl"
)
RESULT: dict[str, Any] = {"exit_code": 4, "summary": "failed after 44.0 s on a", "check": False}


def play(display: JsonDisplay | PlainDisplay | LiveDisplay) -> Progress:
    """Show a recorded run."""
    state = Progress()
    display.begin("llmetal site -i inventory/lab")
    lines = RECORDING.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        for event in state.take(json.loads(line), float(number)):
            display.show(event, state)
        display.tick(state, float(number))
    for event in state.end(float(len(lines))):
        display.show(event, state)
    display.end(state, RESULT)
    display.close()
    return state


def text_of(kind: type[PlainDisplay | LiveDisplay], *, terminal: bool) -> str:
    """What a display prints of the recorded run."""
    stream = io.StringIO()
    play(kind(Console(file=stream, width=200, force_terminal=terminal, color_system=None), 0))
    return stream.getvalue()


def test_plain_has_a_line_for_each_task_with_its_hosts() -> None:
    """A log says which task ended how on which host, and when."""
    text = text_of(PlainDisplay, terminal=False)
    assert "[   16.0 s]   Run a command: changed a, b; unreachable c (7.0 s)" in text
    assert "[   33.0 s] Survey failed in 32.0 s" in text


def test_failures_say_host_stage_cause_and_what_to_do() -> None:
    """A failure is printed in full; the summary repeats it."""
    text = text_of(PlainDisplay, terminal=False)
    assert text.count("unreachable: c in Survey, Run a command") == 2
    assert "why: Failed to connect to the host via ssh: ssh: connect to host" in text
    assert "what: the driver is too old\n    at least 570 is needed" in text
    assert "what to do: " in text


def test_last_line_is_the_summary() -> None:
    """A person finds how it ended in the last line."""
    assert text_of(PlainDisplay, terminal=False).splitlines()[-1] == RESULT["summary"]


def test_diffs_are_shown() -> None:
    """What a task changes in a file is shown where Ansible hands it over."""
    assert "    +one" in text_of(PlainDisplay, terminal=False)


def test_live_prints_what_is_over_and_draws_what_runs() -> None:
    """A terminal keeps the changes and the stages, and shows the running task."""
    text = text_of(LiveDisplay, terminal=True)
    assert "✗ Survey  32.0 s" in text
    assert "Run a command: changed a, b; unreachable c" in text
    assert "▶ Survey" in text


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A machine reads lines, each a JSON object with the name of its event."""
    play(JsonDisplay())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "run_start"
    assert lines[-1] == {"event": "run_end", **RESULT}
    assert {"stage_start", "stage_end", "task_start", "task_result", "failure"} <= {
        line["event"] for line in lines
    }


def test_long_tasks_say_that_they_still_run() -> None:
    """A log without a line for a minute gets one."""
    stream = io.StringIO()
    display = PlainDisplay(Console(file=stream, width=200), 0)
    state = Progress()
    state.take({"event": "playbook_on_play_start", "event_data": {"name": "Converge | X"}}, 0.0)
    state.take({"event": "playbook_on_task_start", "event_data": {"name": "Install"}}, 0.0)
    state.take({"event": "runner_on_start", "event_data": {"host": "gpu1"}}, 0.0)
    display.tick(state, 59.0)
    display.tick(state, 61.0)
    display.tick(state, 62.0)
    assert stream.getvalue() == ("[   61.0 s]   still running: Install on gpu1 (1 min 01 s)\n")


def test_many_hosts_are_counted() -> None:
    """A line names a few hosts and counts many."""
    assert outcome({"b": "ok", "a": "changed"}) == "ok b; changed a"
    assert outcome({f"gpu{n}": "ok" for n in range(9)}) == "ok 9 hosts"


def test_without_a_terminal_the_display_is_plain() -> None:
    """Standard output that is no terminal gets lines; --json gets JSON."""
    assert isinstance(make(as_json=False, verbosity=0), PlainDisplay)
    assert isinstance(make(as_json=True, verbosity=0), JsonDisplay)


def test_failure_of_ansible_itself_has_its_cause() -> None:
    """Without a failed task, what Ansible said is the cause."""
    stream = io.StringIO()
    state = Progress()
    display = PlainDisplay(Console(file=stream, width=200), 0)
    state.take({"event": "verbose", "stdout": "[ERROR]: no such file"}, 0.0)
    for event in state.end(1.0, rc=1):
        display.show(event, state)
    assert stream.getvalue() == "invalid: before the first stage\n  what: no such file\n"


def test_closed_pipe_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is gone is an error for the command line, not for rich."""

    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        make_console().print("x")


@pytest.mark.parametrize(("encoding", "text"), [("ascii", "\\u2717"), ("utf-8", "✗")])
def test_json_keeps_every_character(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str
) -> None:
    """A stream that cannot have them gets them escaped."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    monkeypatch.setattr("sys.stdout", stream)
    JsonDisplay().begin("✗")
    assert text in raw.getvalue().decode("utf-8")
    assert json.loads(raw.getvalue())["title"] == "✗"
