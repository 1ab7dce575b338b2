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
    plan_fabric,
    planner,
)

SERVED = {"name": "chat", "engine": "vllm", "model": "m"}
MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("cuda_repo", "llmetal-nvidia"),
        ("debian", "debian12-archive"),
        ("ppa", "llmetal-graphics-drivers"),
    ],
)
def test_source_name(source: str, name: str) -> None:
    """A source outside the distribution has a name of ours, which is its file on the host."""
    assert plan_driver.source_name(source, "debian12") == name


@pytest.mark.parametrize(
    ("system", "gpus", "switches", "instances", "mirror", "source"),
    [
        ("debian12", ("20b5",), 0, [], False, "debian"),
        ("debian12", ("20b5",), 0, [SERVED], False, "cuda_repo"),
        ("debian13", ("20b2",) * 8, 6, [], False, "cuda_repo"),
        ("debian13", ("2330",), 0, [], False, "debian"),
        ("debian12", ("2335",), 0, [], False, "cuda_repo"),
        ("ubuntu2404", ("20b2",) * 8, 6, [SERVED], False, "ubuntu"),
        ("ubuntu2404", ("20b2",) * 8, 6, [SERVED], True, "cuda_repo"),
        ("ubuntu2404", ("2901",) * 8, 0, [SERVED], False, "cuda_repo"),
    ],
)
def test_auto_source(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    system: str,
    gpus: tuple[str, ...],
    switches: int,
    instances: list[dict[str, Any]],
    mirror: bool,  # noqa: FBT001 - a column of the table
    source: str,
) -> None:
    """The archive where it serves GPUs, engines and switches; else NVIDIA's, or the mirror."""
    asked: dict[str, Any] = {"source": "auto", **({"mirror": MIRROR} if mirror else {})}
    model = {"name": "m", "source": {"type": "folder", "path": "/m"}}
    request = bench.request(driver=asked, instances=instances, models=[model])
    seen = facts.parse(bench.facts(gpus, switches, os__key=system))
    settled, why = plan_driver.settle(request, seen, bench.compat)
    assert settled.driver.source == source
    assert source in why


def test_switches_are_counted(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Only what is a switch: a bridge of a compute tray is none."""
    seen = bench.facts(switches=2)
    seen["gpu"]["switches"].append({"pci_address": "0000:ff:00.0", "device_id": "22b1"})
    assert plan_fabric.switches(facts.parse(seen), bench.compat) == 2


def test_closest_companion() -> None:
    """A companion comes in the driver's release, else its branch, else as there is one."""
    found = candidates.Candidates(
        {"a": ("595.1-1", "580.2-1", "580.1-1"), "b": ("595.1-1", "580.2-1"), "c": ("44-1",)}
    )
    assert found.closest("a", "580.1") == "580.1-1"
    assert found.closest("b", "580.1") == "580.2-1"
    assert found.closest("c", "580.1") == "44-1"
    assert found.closest("d", "580.1") is None


@pytest.mark.parametrize(
    ("system", "source", "release", "components"),
    [
        ("debian12", "debian", "535.309.01", ["contrib", "non-free", "non-free-firmware"]),
        ("ubuntu2404", "ubuntu", "580.159.04", ["restricted", "multiverse"]),
    ],
)
def test_components(
    bench: Any,  # noqa: ANN401 - see conftest.py
    system: str,
    source: str,
    release: str,
    components: list[str],
) -> None:
    """The lock and the question name the components of the archive that the packages are in."""
    seen = bench.facts(gpus=("20b5",), os__key=system)
    request = bench.request(driver={"source": source})
    question = planner.question(request, seen, bench.compat)
    assert list(question.components) == components
    offered = [{"version": f"{release}-1", "origin": "archive"}]
    answers = {"packages": dict.fromkeys(question.packages, offered), "models": {}}
    plan = planner.plan_host(request, seen, answers, bench.compat)
    assert plan.lock is not None, plan.refusals
    named = plan.lock["driver"]["source"]
    assert (named["uri"], named["components"]) == (None, components)
