# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs between two locks, said by names."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils.lock_diff import Change, changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

A, B = "a" * 64, "b" * 64


def texts(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The changes as people read them."""
    return [change.as_text() for change in changes(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": "1"}}, {"a": {"b": "2"}}, ["a.b: 1 -> 2"]),
        ({"a": True}, {"a": False}, ["a: yes -> no"]),
        ({"a": 1}, {}, ["a: 1 -> nothing"]),
        ({"host": {"request_sha256": A, "why": ["x"]}}, {"host": {"request_sha256": B}}, []),
        ({"driver": None}, {"driver": {"version": "580.1", "branch": "580"}},
         ["driver: nothing -> 580.1"]),
        ({"python": None}, {"python": {"uv": {}}}, ["python: nothing -> set"]),
        (
            {"p": [{"name": "gcc", "version": "1"}, {"name": "old", "version": "3"}]},
            {"p": [{"name": "new", "version": "2"}, {"name": "gcc", "version": "4"}]},
            ["p.gcc.version: 1 -> 4", "p.old: 3 -> nothing", "p.new: nothing -> 2"],
        ),
        ({"p": [{"name": "a"}, {"name": "b"}]}, {"p": [{"name": "b"}, {"name": "a"}]}, []),
        (
            {"r": [{"name": "torch", "version": "1", "sha256": [A]}]},
            {"r": [{"name": "torch", "version": "2", "sha256": [B]}]},
            ["r.torch.version: 1 -> 2"],
        ),
        (
            {"r": [{"name": "torch", "version": "1", "sha256": [A]}]},
            {"r": [{"name": "torch", "version": "1", "sha256": [A, B]}]},
            ["r.torch.sha256: 1 hash -> 2 hashes"],
        ),
        ({"sha256": A}, {"sha256": B}, ["sha256: aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        (
            {"e": [{"name": "vllm", "device": "cpu", "version": "1"},
                   {"name": "vllm", "device": "gpu", "version": "2"}]},
            {"e": [{"name": "vllm", "device": "gpu", "version": "3"},
                   {"name": "vllm", "device": "cpu", "version": "1"}]},
            ["e.vllm (gpu).version: 2 -> 3"],
        ),
        ({"e": [{"x": 1}]}, {"e": [{"x": 2}]}, ["e.0.x: 1 -> 2"]),
        (
            {"argv": ["vllm", "serve", "--port", "8000", "--tp", "4", "--eager"]},
            {"argv": ["vllm", "serve", "--port", "8000", "--tp", "8"]},
            ["argv: --tp 4, --eager -> --tp 8"],
        ),
        ({"gpus": [0, 1]}, {"gpus": [0, 1, 2]}, ["gpus: nothing -> 2"]),
        ({"gpus": [0, 1]}, {"gpus": [1, 0]}, ["gpus: 0, 1 -> 1, 0"]),
        ({"gpus": []}, {"gpus": None}, []),
        (
            {"instances": []},
            {"instances": [{"name": "chat", "port": 8000}]},
            ["instances.chat: nothing -> name chat, port 8000"],
        ),
    ],
)  # fmt: skip
def test_changes(before: dict[str, Any], after: dict[str, Any], expected: list[str]) -> None:
    """Each difference once, in the order of the lock, and nothing that follows from another."""
    assert texts(before, after) == expected


def test_files_of_a_model() -> None:
    """They are counted, and those that differ are named; not by their hashes."""

    def model(revision: str, count: int) -> dict[str, Any]:
        files = [{"path": f"{n}.bin", "size": 10, "sha256": revision * 64} for n in range(count)]
        return {"models": [{"name": "m", "revision": revision, "files": files}]}

    differ = "5 differ: 0.bin, 1.bin, 2.bin and 2 more"
    assert texts(model("a", 5), model("b", 4)) == [
        "models.m.revision: a -> b",
        f"models.m.files: 5 files, 50 bytes -> 4 files, 40 bytes; {differ}",
    ]


def test_whole_lock(a100_plan: Plan) -> None:
    """A lock of the planner differs from itself in nothing, and from another by readable paths."""
    lock = a100_plan.lock
    assert lock is not None
    other = copy.deepcopy(lock)
    assert changes(lock, other) == ()
    other["driver"]["version"] = "595.91.07"
    other["driver"]["packages"][0]["version"] = "595.91.07-1"
    other["instances"][0]["port"] = 8100
    other["host"]["gpus"].pop()
    found = changes(lock, other)
    package = lock["driver"]["packages"][0]["name"]
    pci = lock["host"]["gpus"][-1]["pci"]
    assert [change.path for change in found] == [
        f"host.gpus.{pci}",
        "driver.version",
        f"driver.packages.{package}.version",
        "instances.chat.port",
    ]
    json.dumps([change.as_dict() for change in found])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lock: lock.update(host=None),
        lambda lock: lock.update(engines=None, extra=[1, {"a": 2}]),
        lambda lock: lock["models"].append("text"),
    ],
)
def test_odd_locks_are_no_crash(a100_plan: Plan, spoil: Callable[[dict[str, Any]], object]) -> None:
    """A lock of another release may have any form below its keys."""
    assert a100_plan.lock is not None
    odd = copy.deepcopy(a100_plan.lock)
    spoil(odd)
    assert changes(a100_plan.lock, odd)
    assert changes(odd, a100_plan.lock)


def test_change_in_json() -> None:
    """A change has three keys."""
    assert Change("a", None, 1).as_dict() == {"path": "a", "before": None, "after": 1}
