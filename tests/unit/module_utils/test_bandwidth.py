# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bandwidth between GPUs: what programs print, what is too little, and when nothing is measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import bandwidth
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

FIXTURES = Path(__file__).parents[2] / "fixtures"
H200X8 = bandwidth.Expected(8, 18, 26.562, "NV18", 0.65)
ACTIVE: dict[str, Any] = {
    "source": "driver",
    "nvlink": [{"link": 0, "state": "active", "gbps": 26.562}],
    "mig": {},
    "processes": [],
}


def cases(tool: str) -> list[Path]:
    """The recorded cases of a tool."""
    return sorted((FIXTURES / tool).iterdir())


@pytest.mark.parametrize("case", cases("nvbandwidth"), ids=lambda path: path.name)
def test_pairs(case: Path) -> None:
    """Every pair of a matrix; none where there is no second GPU."""
    expected = json.loads((case / "expected.json").read_text())
    found = bandwidth.parse_pairs((case / "output.txt").read_text())
    assert len(found) == expected["pairs"]
    assert min(found.values(), default=None) == expected["slowest"]
    if expected["first"]:
        row, column, value = expected["first"]
        assert found[row, column] == value


@pytest.mark.parametrize("case", cases("all_reduce_perf"), ids=lambda path: path.name)
def test_all_reduce(case: Path) -> None:
    """The best bus bandwidth, old columns or new, and wrong sums."""
    expected = json.loads((case / "expected.json").read_text())
    best, is_wrong = bandwidth.parse_all_reduce((case / "output.txt").read_text())
    assert (best, is_wrong) == (expected["best"], expected["wrong"])


def test_noise_is_no_result() -> None:
    """A program that fails leaves nothing to read."""
    noise = "CUDA_ERROR_SYSTEM_NOT_READY 802\n0 1\n"
    assert bandwidth.parse_pairs(noise) == {}
    assert bandwidth.parse_all_reduce(noise) == (None, False)


@pytest.mark.parametrize(
    ("gpus", "links", "topology", "pair", "collective"),
    [
        (8, 18, "NV18", 310.8, 310.8),
        (4, 18, "NV6", 103.6, 310.8),
        (2, 18, None, 310.8, 310.8),
        (4, 18, None, None, None),
        (1, 18, None, None, None),
    ],
)
def test_floor(
    gpus: int, links: int, topology: str | None, pair: float | None, collective: float | None
) -> None:
    """Between two GPUs the links that join them count; over all of them, all."""
    found = bandwidth.Expected(gpus, links, 26.562, topology, 0.65)
    assert found.pair_gbps == (None if pair is None else pytest.approx(pair, abs=0.1))
    assert found.collective_gbps == (
        None if collective is None else pytest.approx(collective, abs=0.1)
    )


def test_slow_pairs_are_named() -> None:
    """By their numbers and addresses, with what they do."""
    names = ["0000:19:00.0", "0000:3b:00.0"]
    found = bandwidth.judge_pairs({(0, 1): 391.0, (1, 0): 41.5}, 310.8, names)
    assert found.failures == ("GPU 1 (0000:3b:00.0) and GPU 0 (0000:19:00.0): 41.5 GB/s",)
    assert found.slowest_gbps == 41.5
    assert bandwidth.judge_pairs({(0, 1): 391.0}, 310.8).failures == ()


def test_all_gpus_together() -> None:
    """Too slow is one failure, wrong sums another."""
    assert bandwidth.judge_all_reduce(470, 310.8, is_wrong=False).failures == ()
    slow = bandwidth.judge_all_reduce(41.5, 310.8, is_wrong=True)
    assert slow.failures == (
        "all GPUs together: 41.5 GB/s",
        "the sums that the GPUs computed are wrong",
    )
    assert slow.as_dict()["failures"] == list(slow.failures)


@pytest.mark.parametrize(
    ("expected", "gpu", "why"),
    [
        (bandwidth.Expected(1, 18, 26.562, None, 0.65), ACTIVE, "there is one GPU"),
        (bandwidth.Expected(3, 18, 26.562, None, 0.65), ACTIVE, "is not known"),
        (H200X8, {**ACTIVE, "nvlink": []}, "not all links are active"),
        (
            H200X8,
            {**ACTIVE, "nvlink": [{"link": 0, "state": "inactive", "gbps": None}]},
            "not all links are active",
        ),
        (H200X8, {**ACTIVE, "mig": {"current": True}}, "MIG is on"),
        (H200X8, {**ACTIVE, "processes": [{"pid": 4711}]}, "programs use the GPUs (process 4711)"),
        (H200X8, {**ACTIVE, "source": "pci"}, "not all GPUs answer"),
        (H200X8, ACTIVE, "neither nvbandwidth nor all_reduce_perf"),
    ],
)
def test_nothing_is_measured(
    expected: bandwidth.Expected, gpu: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """Where a number would say nothing, or would disturb somebody."""
    others = [ACTIVE] * (expected.gpus - 1)
    assert why in bandwidth.why_not(expected, [*others, gpu], str(tmp_path))


def test_nothing_is_measured_of_gpus_that_are_not_listed(tmp_path: Path) -> None:
    """Whether one that nvidia-smi leaves out is in use, nobody knows."""
    for gpus in ([], [ACTIVE] * 7):
        assert "not all GPUs answer" in bandwidth.why_not(H200X8, gpus, str(tmp_path))


OF = bandwidth.Of("boot", "580.159.04", ("0000:19:00.0",), H200X8)
GOOD = bandwidth.Measured("nvbandwidth", 310.8, 391.0)


def test_a_kept_result() -> None:
    """It comes back; not after a boot, with another driver, of other GPUs, or a bad one."""
    text = bandwidth.render(GOOD, OF)
    assert bandwidth.kept(text, OF) == GOOD
    for change in ({"boot_id": "b2"}, {"driver": "595.91.07"}, {"gpus": ()}, {"boot_id": None}):
        assert bandwidth.kept(text, replace(OF, **change)) is None
    unknown = replace(OF, boot_id=None)
    assert bandwidth.kept(bandwidth.render(GOOD, unknown), unknown) is None
    assert bandwidth.kept(bandwidth.render(replace(GOOD, failures=("slow",)), OF), OF) is None


@pytest.mark.parametrize(
    "text", [None, "", "{", "5", "[]", "{}", '{"measured": 5}', "[" * 100_000, '{"measured": {}}']
)
def test_no_kept_result(text: str | None) -> None:
    """What is no result is as good as none."""
    assert bandwidth.kept(text, OF) is None


def program(folder: Path, name: str, text: str, status: int = 0) -> str:
    """A program that prints something."""
    file = folder / name
    file.write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\nexit {status}\n")
    file.chmod(0o755)
    return bandwidth.search_path(str(folder))


def test_measure(tmp_path: Path) -> None:
    """The program that tells pairs apart is preferred; either one is read."""
    text = (FIXTURES / "all_reduce_perf/h100x8/output.txt").read_text()
    path = program(tmp_path, "all_reduce_perf", text)
    assert bandwidth.why_not(H200X8, [ACTIVE] * 8, path) == ""
    assert bandwidth.measure(H200X8, [], path, 10).slowest_gbps == 473.54
    program(tmp_path, "nvbandwidth", (FIXTURES / "nvbandwidth/h200x2/output.txt").read_text())
    found = bandwidth.measure(H200X8, [], path, 10)
    assert (found.tool, found.failures) == ("nvbandwidth", ())


@pytest.mark.parametrize("name", ["nvbandwidth", "all_reduce_perf"])
def test_a_program_that_fails(name: str, tmp_path: Path) -> None:
    """Its own words, and what to run."""
    path = program(tmp_path, name, "CUDA error 802: system not yet initialized", 1)
    with pytest.raises(LlmetalError, match=f"{name} measured nothing.*CUDA error 802"):
        bandwidth.measure(H200X8, [], path, 10)
