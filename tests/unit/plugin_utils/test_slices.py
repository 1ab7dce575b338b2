# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each role gets its part of the lock, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import slices

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

ROLES = ["base", "nvidia_driver", "nvlink", "python_env", "vllm", "model", "llm_service"]


@pytest.fixture
def lock(a100_plan: Plan) -> dict[str, Any]:
    """The lock of a whole GPU host."""
    assert a100_plan.lock is not None
    return a100_plan.lock


def test_all_roles_in_their_order(lock: dict[str, Any]) -> None:
    """A host with everything has a slice for every role."""
    assert list(slices.cut(lock)) == ROLES


def test_keys(lock: dict[str, Any]) -> None:
    """A slice has the keys that its role documents."""
    keys = {role: sorted(part) for role, part in slices.cut(lock).items()}
    common = ["paths", "scope", "user"]
    assert keys == {
        "base": sorted([*common, "packages"]),
        "nvidia_driver": ["driver", "fabric", "gpus", "kernel", "paths", "scope"],
        "nvlink": ["fabric", "gpus", "nvlink", "paths", "scope"],
        "python_env": sorted([*common, "python"]),
        "vllm": sorted([*common, "engine", "environment"]),
        "model": sorted([*common, "models"]),
        "llm_service": sorted([*common, "instances"]),
    }


def test_instance_knows_its_paths(lock: dict[str, Any]) -> None:
    """The service needs no rule about where things lie."""
    (instance,) = slices.cut(lock)["llm_service"]["instances"]
    assert instance["model_path"] == "/var/lib/llmetal/models/smollm2/" + "ab" * 32
    assert instance["environment_path"] == "/opt/llmetal/environments/vllm-cpu/current"
    assert instance["argv"][:2] == ["serve", instance["model_path"]]


def test_a_services_host_has_little(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A host that serves nothing has only the base; a role with a receipt may clean up."""
    done = bench.plan({})
    assert done.lock is not None
    assert list(slices.cut(done.lock)) == ["base"]
    managed = slices.cut(done.lock, frozenset({"llm_service"}))
    assert managed["llm_service"]["instances"] == []


def test_versions_and_endpoints(lock: dict[str, Any]) -> None:
    """What the report says of a host."""
    assert slices.versions(lock) == {
        "system": "Debian GNU/Linux 12 (bookworm)",
        "kernel": "6.1.0-41-amd64",
        "driver": "580.178.04 (open)",
        "fabric manager": "580.178.04-1",
        "python": "3.11.2",
        "vllm": "0.32.0 on cpu",
        "torch": "2.13.0",
        "model smollm2": "abababababab",
    }
    assert slices.endpoints(lock) == [
        {"name": "chat", "model": "smollm2", "engine": "vllm", "url": "http://127.0.0.1:8000"}
    ]


def test_ipv6_endpoint(lock: dict[str, Any]) -> None:
    """An IPv6 address stands in brackets."""
    lock["instances"][0]["host"] = "::1"
    assert slices.endpoints(lock)[0]["url"] == "http://[::1]:8000"
