# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver set: what is asked for, and what the package source is called."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    candidates,
    facts,
    plan_driver,
)


@pytest.mark.parametrize(
    ("source", "name"),
    [("cuda_repo", "llmetal-nvidia"), ("debian", "debian12-archive"), ("ppa", None)],
)
def test_source_name(bench: Any, source: str, name: str | None) -> None:  # noqa: ANN401 - see conftest.py
    """A source outside the distribution has a name of ours, which is its file on the host."""
    request = bench.request(driver={"source": source})
    found = plan_driver.source_name(request, "debian12")
    assert found == name or found.startswith("llmetal-")


def test_switches_are_counted(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Only what is a switch: a bridge of a compute tray is none."""
    seen = bench.facts(switches=2)
    seen["gpu"]["switches"].append({"pci_address": "0000:ff:00.0", "device_id": "22b1"})
    assert plan_driver.switches(facts.parse(seen), bench.compat) == 2


def test_closest_companion() -> None:
    """A companion comes in the driver's release, else its branch, else as there is one."""
    found = candidates.Candidates(
        {"a": ("595.1-1", "580.2-1", "580.1-1"), "b": ("595.1-1", "580.2-1"), "c": ("44-1",)}
    )
    assert found.closest("a", "580.1") == "580.1-1"
    assert found.closest("b", "580.1") == "580.2-1"
    assert found.closest("c", "580.1") == "44-1"
    assert found.closest("d", "580.1") is None
