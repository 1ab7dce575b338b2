# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: what happened, in data, Markdown and HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import report as report_

BEGAN = 1_795_000_000.0
PLAN = report_.Task("", "Plan all hosts", is_plan=True)
INSTALL = report_.Task("nvidia_driver", "Install the driver set")
PROVE = report_.Task("llm_service", "Ask each instance")
PLANNED = {
    "findings": [
        {
            "host": "gpu-1",
            "rule": "secure-boot",
            "fact": "Secure Boot is enabled",
            "reason": "with Secure Boot the kernel loads only signed modules",
            "fix": "enrol the key",
            "source": "nowhere",
        }
    ],
    "hosts": {
        "gpu-1": {
            "versions": {"driver": "580.159.04 (open)"},
            "endpoints": [
                {"name": "chat", "model": "m", "engine": "vllm", "url": "http://192.0.2.1:8000"}
            ],
            "lock_sha256": "ab" * 32,
            "lock_file": "/site/locks/gpu-1.yml",
        }
    },
}


def begin(*, check: bool = False) -> report_.Report:
    """A report of a run that has planned."""
    report = report_.Report(BEGAN, check=check, inventory=["inventory/lab"])
    report.play("Validate | Check it", BEGAN)
    report.play("Plan | Decide", BEGAN + 2)
    report.result("gpu-1", PLAN, "ok", PLANNED)
    return report


def test_a_good_run() -> None:
    """Stages with seconds, changes, proofs, versions."""
    report = begin()
    report.play("Converge | One", BEGAN + 3)
    report.play("Converge | Two", BEGAN + 9)
    report.result("gpu-1", INSTALL, "changed", {"changed": True})
    report.play("Prove | Ask", BEGAN + 10)
    proof = {"name": "chat", "ok": True, "answer": "Paris | France", "seconds": 0.345}
    report.result("gpu-1", PROVE, "ok", {"results": [{"proof": {**proof, "ok": False}}]})
    report.result("gpu-1", PROVE, "ok", {"results": [{"proof": proof}, {}]})
    report.end(BEGAN + 11.5)
    data = report.as_dict()
    assert data["status"] == "done"
    assert data["seconds"] == 11.5
    assert [(row["name"], row["seconds"]) for row in data["stages"]] == [
        ("Validate", 2.0),
        ("Plan", 1.0),
        ("Converge", 7.0),
        ("Prove", 1.5),
    ]
    host = data["hosts"]["gpu-1"]
    assert (host["ok"], host["changed"]) == (4, 1)
    assert host["changes"] == [
        {"stage": "Converge", "role": "nvidia_driver", "task": "Install the driver set"}
    ]
    assert [(row["name"], row["ok"]) for row in data["proofs"]] == [("chat", True)]
    assert json.loads(report_.as_json(data)) == data
    text = report_.as_markdown(data)
    assert "| gpu-1 | chat | ok |" in text
    assert "Paris \\| France" in text
    assert "driver: 580.159.04 (open)" in text


@pytest.mark.parametrize(
    ("result", "what", "fix"),
    [
        (
            {"what": "the disk is full", "where": "/opt", "why": "0 left", "fix": "free it"},
            "the disk is full",
            "free it",
        ),
        ({"msg": "it broke", "stderr": "a\nb"}, "it broke", "the next run goes on from here"),
        (
            {"msg": "One or more items failed", "results": [{}, {"failed": True, "msg": "two"}]},
            "two",
            "the next run goes on from here",
        ),
        ({"censored": "hidden", "msg": "x"}, "it failed, and its result is hidden", ""),
    ],
)
def test_failure(result: dict[str, Any], what: str, fix: str) -> None:
    """A failure keeps the module's own words, and says what to do."""
    report = begin()
    report.play("Converge | One", BEGAN + 3)
    report.result("gpu-1", INSTALL, "failed", result)
    report.end(BEGAN + 4)
    data = report.as_dict()
    assert data["status"] == "failed"
    assert [row["ok"] for row in data["stages"]] == [True, True, False]
    (failure,) = data["failures"]
    assert (failure["host"], failure["stage"]) == ("gpu-1", "Converge")
    assert what in failure["what"]
    assert fix in failure["fix"]
    assert what in report_.as_markdown(data)


def test_unreachable() -> None:
    """A host that does not answer is a failure with a way out."""
    report = begin()
    report.result("gpu-2", INSTALL, "unreachable", {"msg": "no route"})
    (failure,) = report.as_dict()["failures"]
    assert failure["what"] == "the host does not answer"
    assert failure["why"] == "no route"


@pytest.mark.parametrize(
    ("code", "key", "status"), [(2, "problems", "inventory"), (3, "refusals", "refused")]
)
def test_stopped_before_any_change(code: int, key: str, status: str) -> None:
    """Problems and refusals are no failures: nothing was begun."""
    problem = {
        "file": "hosts.yml",
        "line": 3,
        "key": "llmetal_x",
        "host": "",
        "found": "1",
        "allowed": "2",
        "why": "is wrong",
        "fix": "",
    }
    rows = [problem] if code == 2 else PLANNED["findings"]
    report = begin()
    report.result("gpu-1", PLAN, "failed", {"llmetal_exit_code": code, key: rows})
    report.end(BEGAN + 4)
    data = report.as_dict()
    assert data["status"] == status
    assert data["failures"] == []
    assert data[key] == rows
    for text in (report_.as_markdown(data), report_.as_html(data)):
        assert "hosts.yml:3" in text or "secure-boot" in text


class _Page(HTMLParser):
    """What a page loads, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name == "src"]
        self.loads += [tag for _ in attrs if tag in {"link", "script", "img"}]

    def handle_endtag(self, tag: str) -> None:
        """A tag ends."""
        assert self.open.pop() == tag


def test_html_is_whole_and_alone() -> None:
    """Tags are closed, nothing is loaded, and what hosts say is text."""
    report = begin(check=True)
    report.result("gpu-1", INSTALL, "failed", {"what": "<script>alert(1)</script>"})
    report.result("gpu-1", INSTALL, "changed", {})
    report.end(BEGAN + 4)
    text = report_.as_html(report.as_dict())
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert "&lt;script&gt;" in text
    assert "would change" in text
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize(
    ("title", "stage"),
    [("Prove | Ask", "Prove"), ("Sandbox | Make", None), ("Converge", None), ("", None)],
)
def test_stage_of(title: str, stage: str | None) -> None:
    """Only the plays of a site run belong to a report."""
    assert report_.stage_of(title) == stage


def test_folder_name() -> None:
    """The folder is named after the time in UTC."""
    assert report_.folder_name(begin().as_dict()) == "20261118T110640Z"
