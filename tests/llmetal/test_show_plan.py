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


def lock_of(path: str, **memory: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """The lock of a question with a model."""
    return {
        "host": {"name": "planned", "os": "ubuntu2204", "gpus": [{"name": "A100-SXM4-80GB"}] * 8},
        "models": [{"name": "model", "source": {"path": path}}],
        "instances": [
            {
                "name": "planned",
                "model": "model",
                "layout": {"tensor": 8, "pipeline": 2, "data": 1, "expert": True},
                "memory": {"weights_bytes": 10**11, "kv_tokens": 1_234_567, **memory},
                "context": 131_072,
                "fp8": {"path": "weight_only"},
            }
        ],
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/srv/models/Qwen3-32B", "Qwen3-32B"),
        ("./models/Qwen3-32B/", "Qwen3-32B"),
        ("Qwen/Qwen3-32B", "Qwen3-32B"),
        ("Qwen/Qwen3-32B@refs/pr/1", "Qwen3-32B"),
        ("Qwen3-32B", "Qwen3-32B"),
        ("", "-"),
    ],
)
def test_model_by_its_last_name(path: str, name: str) -> None:
    """A folder or repository is called by its last part."""
    (cells,) = show_plan.instance_rows("planned", lock_of(path))
    assert cells[2] == name


@pytest.mark.parametrize("name", ["m", "Qwen3-32B", "Qwen3-235B-A22B-Instruct-2507-FP8"])
@pytest.mark.parametrize("width", ["80", "100", "140"])
def test_words_are_not_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, width: str
) -> None:
    """The model, the kernels and the numbers stand unbroken on a screen of 80 columns, too."""
    monkeypatch.setenv("COLUMNS", width)
    plan = {"status": "ok", "lock": lock_of(f"Qwen/{name}", longest_context=40_960)}
    out = text_of(capsys, planned=plan)
    table = out[: out.index("KV tokens: in each replica")]
    for word in (name, "weight_only", "1 234 567", "131 072", "40 960", "100.0 GB", "ubuntu2204"):
        assert word in table
    assert all(len(line) <= int(width) for line in table.splitlines())


def test_columns_that_say_nothing_new(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left out where there is no room, and only there."""
    plan = {"status": "ok", "lock": lock_of("Qwen/Qwen3-235B-A22B")}
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.split() for line in text_of(capsys, planned=plan).splitlines()]
    (head,) = (line for line in lines if "layout" in line)
    assert "host" not in head
    assert "longest" not in head
    monkeypatch.setenv("COLUMNS", "140")
    lines = [line.split() for line in text_of(capsys, planned=plan).splitlines()]
    (head,) = (line for line in lines if "layout" in line)
    assert head[:3] == ["host", "instance", "model"]
    assert "longest" in head


def test_findings_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on below where they began, with every word; in a pipe each is one line."""
    monkeypatch.setenv("COLUMNS", "60")
    piped = text_of(capsys, gpu1=REFUSED)
    assert LONG in piped
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = text_of(capsys, gpu1=REFUSED)
    assert shown.split() == piped.split()
    assert max(map(len, shown.splitlines())) <= 60
    long = {**REFUSED, "refusals": [{**REFUSED["refusals"][0], "fix": "word " * 30}]}
    assert "\n  what to do: word word" in text_of(capsys, gpu1=long)
    assert f"\n{' ' * 14}word word" in text_of(capsys, gpu1=long)


def test_facts_of_one_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """What a rule finds several times is listed below it; the rest is said once."""
    row = REFUSED["refusals"][0]
    several = {**REFUSED, "refusals": [{**row, "fact": fact} for fact in ("one", "two")]}
    out = text_of(capsys, a=several, b=several)
    assert out.count("[r]") == out.count("what to do:") == 1
    assert f"  found:      one\n{' ' * 14}two\n  what to do: " in out
    other = {**REFUSED, "refusals": [row, {**row, "fix": "another way"}]}
    assert text_of(capsys, a=other).count("[r]") == 2


def test_json_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """People get lines, machines one line; with the same content."""

    def document(*hosts: str, explain: str | None) -> str:
        answer = show_plan.make(as_json=True, explain=explain)
        for host in hosts:
            answer.take(answer.digest(host, REFUSED))
        answer.end(3, [{"host": "z", "what": "it is off"}])
        return capsys.readouterr().out

    for hosts, explain in (((), None), (("a",), "a"), (("a", "b"), None)):
        monkeypatch.undo()
        line = document(*hosts, explain=explain)
        assert line.count("\n") == 1
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        lines = document(*hosts, explain=explain)
        assert json.loads(lines) == json.loads(line)
        if hosts:
            assert lines == json.dumps(json.loads(line), indent=2) + "\n"


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


def test_unresolved_fields_by_thing() -> None:
    """Several of one thing are counted, under its whole name."""
    names = [
        "models.q-3.5.files",
        "models.q-3.5.revision",
        "driver.packages.a-1.2",
        "driver.version",
    ]
    found = list(show_plan.fields_of([{"field": name} for name in names]))
    assert found == ["models.q-3.5 (2)", "driver.packages.a-1.2", "driver.version"]
