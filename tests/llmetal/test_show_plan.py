# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of plans: what stands in a line, how wide it is, and that no text is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmetal import show_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

LONG = "the host has a very long reason not to get what it was asked for, " * 5
REFUSED: dict[str, Any] = {
    "status": "refused",
    "lock": None,
    "refusals": [{"rule": "r", "fact": "f\x1b[31m", "reason": LONG, "fix": "x\ny", "source": "s"}],
    "warnings": [],
}


def text_of(capsys: pytest.CaptureFixture[str], **plans: Mapping[str, Any]) -> str:
    """What is printed of plans."""
    answer = show_plan.make(as_json=False)
    for host, plan in plans.items():
        answer.take(answer.digest(host, plan))
    answer.end(0, [])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"device": "cpu", "gpus": []}, "cpu"),
        ({"gpus": [0, 1]}, "2 GPU"),
        ({"layout": {"tensor": 8, "pipeline": 2, "data": 1, "expert": False}}, "TP8 x PP2"),
        ({"layout": {"tensor": 1, "pipeline": 1, "data": 4, "expert": True}}, "DP4 x EP"),
        ({"layout": {"tensor": 8, "expert": 8}}, "TP8 x EP8"),
        ({"layout": {"tensor": 1, "pipeline": None}}, "1 GPU"),
        ({}, "-"),
    ],
)
def test_layout(row: dict[str, Any], expected: str) -> None:
    """Only what is split is named."""
    (cells,) = show_plan.instance_rows("h", {"instances": [row]})
    assert cells[3] == expected


def test_missing_keys() -> None:
    """A lock of another release may lack any of them."""
    assert list(show_plan.host_cells("h", {"status": "ok", "lock": {}})) == ["h", "✓", *["-"] * 6]
    odd = {"driver": None, "engines": None, "instances": [{"memory": None, "fp8": None}]}
    assert list(show_plan.host_cells("h", {"status": "ok", "lock": odd}))[4:] == ["-"] * 4
    (cells,) = show_plan.instance_rows("h", odd)
    assert cells[1:] == ["-"] * 9
    assert list(show_plan.reasons(odd)) == []


def test_no_text_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal is printed whole, on lines that are as long as they are; without escapes."""
    out = text_of(capsys, gpu1=REFUSED)
    assert LONG in out
    assert "x y" in out
    assert "\x1b" not in out
    assert "…" not in out


def test_equal_refusals_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """All hosts that it is about are named in front."""
    out = text_of(capsys, a=REFUSED, b=REFUSED, c=REFUSED)
    assert out.count(LONG) == 1
    assert "✗ a, b, c: " in out


def test_wide_tables_are_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow screen has the whole of a long cell, over several lines."""
    name = "-".join(["host"] * 12)
    lock = {"host": {"os": "ubuntu2204", "gpus": [{"name": "A100-SXM4-80GB"}] * 8}}
    plan = {"status": "ok", "lock": lock}
    monkeypatch.setenv("COLUMNS", "90")
    lines = text_of(capsys, **{name: plan}).splitlines()
    table = lines[1 : lines.index("")]
    assert len(table) > 1
    assert all(len(line) <= 90 for line in lines)
    assert "".join(line.split(" ")[0] for line in table) == name
    monkeypatch.setenv("COLUMNS", "200")
    assert name in text_of(capsys, **{name: plan})


def test_colours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets them, unless NO_COLOR is set; a pipe never."""
    assert "\x1b" not in text_of(capsys, a=REFUSED)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[1;31m✗ a: " in text_of(capsys, a=REFUSED)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text_of(capsys, a=REFUSED)


def test_nothing_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """No host at all is no crash, in either form."""
    assert text_of(capsys) == "\n0 planned\n"
    answer = show_plan.make(as_json=True)
    answer.end(4, [{"host": "a", "what": "it is off", "where": "a", "why": "", "fix": "start it"}])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["hosts"] == {}
    assert captured.err == "llmetal: a: it is off: start it\n"
