# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links as nvidia-smi prints them, over recordings, and the growth of their error counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import nvlink

FIXTURES = Path(__file__).parents[2] / "fixtures"


def cases(tool: str) -> list[str]:
    """The recordings of a tool."""
    return sorted(path.name for path in (FIXTURES / tool).iterdir() if path.is_dir())


@pytest.mark.parametrize("case", cases("nvlink_errors"))
def test_error_counters(case: str) -> None:
    """Counters by GPU, link and name; traffic and corrections by codeword are not among them."""
    folder = FIXTURES / "nvlink_errors" / case
    expected = json.loads((folder / "expected.json").read_text())
    assert nvlink.parse_errors((folder / "errors.txt").read_text()) == expected


@pytest.mark.parametrize("case", cases("topo_m"))
def test_topology(case: str) -> None:
    """The path between each two GPUs, with a coloured head and with network cards beside them."""
    folder = FIXTURES / "topo_m" / case
    found = nvlink.parse_topology((folder / "topo_m.txt").read_text())
    expected = json.loads((folder / "expected.json").read_text())
    assert sorted([*pair, path] for pair, path in found.items()) == expected


@pytest.mark.parametrize("text", ["", "No devices were found\n", "GPU0\n"])
def test_no_topology(text: str) -> None:
    """What is no matrix has no paths."""
    assert nvlink.parse_topology(text) == {}


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        ({}, {"x": {"0": {"crc_errors": 0}}}, []),
        ({}, {"x": {"0": {"crc_errors": 2}}}, [("0", "crc_errors", 0, 2)]),
        ({"x": {"0": {"crc_errors": 2}}}, {"x": {"0": {"crc_errors": 2}}}, []),
        ({"x": {"0": {"crc_errors": 5}}}, {"x": {"0": {"crc_errors": 2}}}, []),
        (
            {"x": {"9": {"a": 1}, "10": {"a": 1}}},
            {"x": {"10": {"a": 3}, "9": {"a": 2}}},
            [("9", "a", 1, 2), ("10", "a", 1, 3)],
        ),
    ],
)
def test_growth(
    before: nvlink.Counters, now: nvlink.Counters, grown: list[tuple[str, str, int, int]]
) -> None:
    """Only what stands higher than it did, by the number of the link."""
    found = nvlink.growth(before, now)
    assert [(row.link, row.counter, row.before, row.now) for row in found] == grown


@pytest.mark.parametrize(
    ("counter", "fatal"),
    [
        ("replay_errors", False),
        ("crc_errors", False),
        ("recovery_errors", True),
        ("link_recovery_successful_events", False),
        ("link_recovery_failed_events", True),
        ("symbol_errors", False),
        ("effective_errors", True),
    ],
)
def test_fatal_counters(counter: str, *, fatal: bool) -> None:
    """What a link makes good by itself is not fatal."""
    assert nvlink.is_fatal(counter) is fatal


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", True),
        ("GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n", True),
        ("NVML: Unable to retrieve NVLink information as all links are inActive\n", True),
        ("GPU 0: X (UUID: GPU-1)\n\t Link 0: Unknown Error\n", False),
        ("Invalid combination of input arguments.\n", False),
        ("GPU 0: GPU is lost\n", False),
    ],
)
def test_is_status(text: str, *, whole: bool) -> None:
    """A complaint in place of a status is seen."""
    assert nvlink.is_status(text) is whole
