# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The survey's result is read strictly where a plan needs it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import facts as facts_


def test_parse(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What a plan needs of a survey."""
    facts = facts_.parse(bench.facts(gpus=("20b2",), switches=6))
    assert facts.os_key == "debian12"
    assert facts.gpus == (facts_.SeenGpu(None, "0000:01:00.0", "20b2", "20b2"),)
    assert len(facts.switches) == 6
    assert not facts.fabric_active


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("arch", None, "arch"),
        ("os__key", 12, "os.key"),
        ("memory_bytes", True, "memory_bytes"),
        ("gpu__gpus", [{}], "gpu.gpus.pci_address"),
        ("disks", [{"path": "/"}], "disks.free_bytes"),
    ],
)
def test_what_is_missing_is_named(bench: Any, path: str, value: object, key: str) -> None:  # noqa: ANN401 - see conftest.py
    """An unreadable fact is named by its key."""
    with pytest.raises(facts_.FactsError) as caught:
        facts_.parse(bench.facts(**{path: value}))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("path", "free"),
    [("/var/lib/llmetal", 2), ("/var/library", 1), ("/var/lib", 2), ("relative", None)],
)
def test_free_at(bench: Any, path: str, free: int | None) -> None:  # noqa: ANN401 - see conftest.py
    """The file system is the one whose mount point is the longest above the path."""
    disks = [{"path": "/", "free_bytes": 1}, {"path": "/var/lib", "free_bytes": 2}]
    assert facts_.parse(bench.facts(disks=disks)).free_at(path) == free


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(None, False), ("none", False), ("kvm", True), ("systemd-nspawn", False), ("docker", False)],
)
def test_is_virtual_machine(bench: Any, kind: str | None, expected: bool) -> None:  # noqa: ANN401, FBT001 - see conftest.py
    """A container shows the metal's devices, a virtual machine those it was given."""
    facts = facts_.parse(bench.facts(platform__virtualization=kind))
    assert facts.is_virtual_machine is expected


@pytest.mark.parametrize(
    ("changes", "unreadable"),
    [
        ({}, ()),
        ({"cpus": 8, "held": [], "ports": []}, ()),
        ({"cpus": "many", "ports": {}}, ("cpus of type str", "ports of type dict")),
        ({"schema": 7}, ("schema 7",)),
    ],
)
def test_what_only_checks_look_at(
    bench: Any,  # noqa: ANN401 - see conftest.py
    changes: dict[str, Any],
    unreadable: tuple[str, ...],
) -> None:
    """Of another form it is named, so that it does not read as fine; missing it is unknown."""
    assert facts_.parse(bench.facts(**changes)).unreadable == unreadable
    warned = [finding.rule for finding in bench.plan({}, **changes).warnings]
    assert ("facts-partial" in warned) == bool(unreadable)


@pytest.mark.parametrize("size", [-1, -(10**12)])
def test_no_memory_below_zero(bench: Any, size: int) -> None:  # noqa: ANN401 - see conftest.py
    """A size below zero is no size."""
    with pytest.raises(facts_.FactsError, match="memory_bytes"):
        facts_.parse(bench.facts(memory_bytes=size))
