# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What recovery and upgrade decide: locks side by side, packages, facts after a purge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llmetal.inference.plugins.filter import driver_operations as filters
from ansible_collections.llmetal.inference.plugins.module_utils.driver_leftovers import (
    is_driver_package,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import driver_operations as logic

FACTS = Path(__file__).parents[2] / "fixtures" / "survey"
OLD, NEW = "580.159.04", "580.178.04"


def lock(version: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of a lock
    """The parts of a lock that matter here."""
    return {
        "schema": 1,
        "host": {"name": "a", "request_sha256": version},
        "kernel": {"running": "6.1"},
        "driver": {"version": version, "packages": [], "why": [f"{version} was asked for"]},
        "fabric": None,
        "nvlink": None,
        "engines": [],
        "instances": [],
        **more,
    }


def test_only_the_driver_differs() -> None:
    """Then the new lock is what is installed, its request too."""
    assert logic.with_driver_of(lock(OLD), lock(NEW)) == lock(NEW)


def test_more_than_the_driver_differs() -> None:
    """Then the rest stays recorded as it was: nobody has installed the new one."""
    before = lock(OLD, engines=["vllm 1"])
    after = logic.with_driver_of(before, lock(NEW, engines=["vllm 2"], instances=["b"]))
    assert after["driver"]["version"] == NEW
    assert after["engines"] == ["vllm 1"]
    assert after["instances"] == []
    assert after["host"] == before["host"]


def test_same_driver() -> None:
    """Reasons do not count; a lock of before a key was there lacks what the key says."""
    assert logic.same_driver(lock(OLD), lock(OLD, driver={**lock(OLD)["driver"], "why": ["x"]}))
    assert not logic.same_driver(lock(OLD), lock(NEW))
    assert not logic.same_driver(lock(OLD), lock(OLD, nvlink={"required": True}))
    older = {key: value for key, value in lock(OLD).items() if key != "nvlink"}
    assert logic.same_driver(older, lock(OLD))


def test_driver_set() -> None:
    """The driver's packages, those of the fabric and the fabric manager, each once."""
    manager = {"name": "nvidia-fabricmanager", "version": f"{OLD}-1"}
    nscq = {"name": "libnvidia-nscq", "version": f"{OLD}-1"}
    cuda = {"name": "libcuda1", "version": f"{OLD}-1"}
    fabric = {
        "package": manager["name"],
        "version": manager["version"],
        "packages": [nscq, manager],
    }
    cut = {"driver": {"packages": [cuda]}, "fabric": fabric}
    assert logic.driver_set(cut) == [cuda, nscq, manager]
    assert logic.driver_set({**cut, "fabric": None}) == [cuda]


def test_not_offered() -> None:
    """A package in another version, one that is unknown, and none that is there."""
    wanted = [{"name": name, "version": "2"} for name in ("a", "b", "c")]
    offered = {"a": [{"version": "1"}, {"version": "2"}], "b": [{"version": "1"}]}
    assert logic.not_offered(wanted, offered) == ["b=2", "c=2"]


def test_facts_without_a_driver() -> None:
    """What goes is not there any more; what another program needs is, and the facts are copied."""
    facts = {
        "packages": {"libcuda1": "1", "nvidia-container-toolkit": "1", "gcc": "12"},
        "broken": ["nvidia-kernel-dkms", "vim"],
        "held": ["libcuda1"],
        "gpu": {"driver": {"loaded": OLD, "on_disk": OLD, "nouveau": False}, "gpus": [1]},
        "modules": {
            "installer": "/usr/bin/nvidia-uninstall",
            "dkms": ["nvidia/1"],
            "kernels": ["k"],
        },
        "libraries": {"libnvidia-ml": [OLD, NEW]},
    }
    before = json.loads(json.dumps(facts))
    leftovers = {"packages": [{"name": "libcuda1:amd64"}], "runfile": None}
    after = logic.without_driver(facts, leftovers)
    assert facts == before
    assert after["packages"] == {"nvidia-container-toolkit": "1", "gcc": "12"}
    assert after["broken"] == ["vim"]
    assert after["held"] == []
    assert after["gpu"] == {
        "driver": {"loaded": None, "on_disk": None, "nouveau": False},
        "gpus": [1],
    }
    assert after["modules"] == {"installer": None, "dkms": [], "kernels": []}
    assert after["libraries"]["libnvidia-ml"] == []


def test_facts_where_only_modules_are_left() -> None:
    """The driver itself stays as it is."""
    facts = {"packages": {"libcuda1": "1"}, "gpu": {"driver": {"loaded": OLD}}, "modules": {}}
    after = logic.without_driver(facts, {"packages": [], "runfile": None})
    assert after["packages"] == {"libcuda1": "1"}
    assert after["gpu"]["driver"]["loaded"] == OLD


@pytest.mark.parametrize(
    "path", sorted(FACTS.glob("*/facts.json")), ids=lambda path: path.parent.name
)
def test_facts_of_real_hosts(path: Path) -> None:
    """Whatever a survey saw, the driver's own packages can be taken out of it."""
    facts = json.loads(path.read_text())
    names = [name for name in facts["packages"] if is_driver_package(name)]
    rows = [{"name": name, "version": "", "status": "installed"} for name in names]
    after = filters.without_driver(facts, {"packages": rows, "runfile": None})
    assert not any(is_driver_package(name) for name in after["packages"])
    assert after["kernel"] == facts["kernel"]


@pytest.mark.parametrize(
    ("text", "why"), [("{", "cannot be read"), ("a: 1", "is not as a lock has")]
)
def test_installed_lock_that_is_none(text: str, why: str) -> None:
    """The failure names the host's file and what to do."""
    with pytest.raises(AnsibleFilterError, match=why) as caught:
        filters.installed_lock(text, "gpu-1:/etc/llmetal/lock.yml")
    assert "gpu-1:/etc/llmetal/lock.yml" in str(caught.value)
    assert "What to do" in str(caught.value)


def test_filters_have_their_names() -> None:
    """Ansible finds each of them."""
    named = filters.FilterModule().filters()
    assert set(named) == {function.__name__ for function in named.values()}
    assert named["same_driver"](lock(OLD), lock(OLD)) is True
    assert named["with_driver_of"](lock(OLD), lock(NEW)) == lock(NEW)
    assert named["driver_set"]({"driver": {"packages": []}, "fabric": None}) == []
    assert named["not_offered"]([{"name": "a", "version": "1"}], {}) == ["a=1"]
