# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The branch that `ubuntu-drivers` recommends: taken, refused, or not asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import planner

A100, V100, B200, H200_NVL = "20b2", "1db5", "2901", "233b"
MIRROR = {
    "uri": "http://192.0.2.1/ppa",
    "suite": "noble",
    "components": ["main"],
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}
NOTHING: dict[str, Any] = {
    "path": None,
    "server": None,
    "desktop": None,
    "offered": [],
    "said": None,
}
SAID = {
    **NOTHING,
    "path": "/usr/bin/ubuntu-drivers",
    "server": "nvidia-driver-595-server-open",
    "desktop": "nvidia-driver-580-open",
}
SILENT = {**NOTHING, "path": "/usr/bin/ubuntu-drivers", "said": "E:The package cache is corrupted"}
SERVES = {
    "instances": [{"name": "chat", "engine": "vllm", "model": "smollm2"}],
    "models": [{"name": "smollm2", "source": {"type": "folder", "path": "/srv/models/smollm2"}}],
}


def asked(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of the variable
    """The archive's driver, chosen by `ubuntu-drivers`, but for some values."""
    return {"driver": {"source": "ubuntu", "chooser": "ubuntu_drivers", **changes}}


def packages(*releases: str, end: str = "-server") -> dict[str, list[str]]:
    """What a source has of some releases, each in its branch's packages."""
    found = {}
    for release in releases:
        branch = release[:3]
        for name in (
            f"nvidia-dkms-{branch}{end}-open",
            f"nvidia-dkms-{branch}{end}",
            f"libnvidia-compute-{branch}{end}",
            f"nvidia-utils-{branch}{end}",
            f"nvidia-compute-utils-{branch}{end}",
        ):
            found[name] = [f"{release}-0ubuntu0.24.04.1"]
    return found


def plan(bench: Any, variables: dict[str, Any], **facts: Any) -> Any:  # noqa: ANN401 - see conftest.py
    """The plan of a host on Ubuntu 24.04, where two branches are offered."""
    offered = packages("580.178.04", "595.91.07", "535.309.01")
    offered |= packages("580.178.04", end="")
    facts = {"gpus": (A100,), "os__key": "ubuntu2404", "ubuntu_drivers": SAID, **facts}
    return bench.plan(variables, candidates=bench.candidates(packages=offered), **facts)


@pytest.mark.parametrize(
    ("variables", "branch", "why"),
    [
        (
            asked(),
            "595",
            "branch 595 is what `ubuntu-drivers list --gpgpu --recommended` recommends (nvidia-",
        ),
        (asked(source="auto"), "595", "branch 595 is what `ubuntu-drivers list"),
        (
            asked(source="ppa", mirror=MIRROR),
            "580",
            "branch 580 is what `ubuntu-drivers devices` recommends (nvidia-driver-580-open)",
        ),
        (asked(chooser="data"), "580", "branch 580 is the LTS branch that serves these GPUs"),
        (asked(branch="580"), "580", "branch 580 is asked for in the inventory"),
        (
            asked(version="580.178.04"),
            "580",
            "ubuntu-drivers, which is not asked then, recommends branch 595",
        ),
    ],
)
def test_branch(bench: Any, variables: dict[str, Any], branch: str, why: str) -> None:  # noqa: ANN401 - see conftest.py
    """The recommended one where nothing else is asked, and the lock says so."""
    found = plan(bench, variables)
    assert found.refusals == ()
    assert found.lock["driver"]["branch"] == branch
    assert any(line.startswith(why) for line in found.lock["driver"]["why"])


@pytest.mark.parametrize(
    ("variables", "facts", "rule", "fact", "fix"),
    [
        (
            asked(),
            {"ubuntu_drivers": NOTHING},
            "driver-chooser-missing",
            "ubuntu-drivers is not installed",
            "apt-get install ubuntu-drivers-common on the host, or set llmetal_driver.chooser to",
        ),
        (
            asked(),
            {"ubuntu_drivers": None},
            "driver-chooser-missing",
            "the survey did not ask ubuntu-drivers",
            "survey the host again",
        ),
        (
            asked(),
            {"ubuntu_drivers": SILENT},
            "driver-chooser-silent",
            "recommends nothing, and says: E:The package cache is corrupted",
            "name a branch in llmetal_driver.branch, or set llmetal_driver.chooser to data",
        ),
        (
            asked(),
            {"ubuntu_drivers": {**SAID, "server": "something-else"}},
            "driver-chooser-silent",
            "`ubuntu-drivers list --gpgpu --recommended` recommends nothing",
            "set llmetal_driver.chooser to data",
        ),
        (
            asked(source="cuda_repo", mirror=MIRROR),
            {},
            "driver-chooser-system",
            "the driver comes from source cuda_repo",
            "set llmetal_driver.source to ubuntu or ppa, or set llmetal_driver.chooser to data",
        ),
        (
            asked(source="debian"),
            {"os__key": "debian13"},
            "driver-chooser-system",
            "the host has debian13",
            "set llmetal_driver.chooser to data",
        ),
    ],
)
def test_refusal(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    variables: dict[str, Any],
    facts: dict[str, Any],
    rule: str,
    fact: str,
    fix: str,
) -> None:
    """Where it cannot choose, a plan says why and what to do."""
    found = plan(bench, variables, **facts)
    (refusal,) = [one for one in found.refusals if one.rule == rule]
    assert fact in refusal.fact
    assert fix in refusal.fix
    assert all(refusal.as_dict().values())


@pytest.mark.parametrize(
    ("package", "variables", "facts", "rule"),
    [
        ("nvidia-driver-595-server", {}, {"gpus": (V100,)}, "branch-arch-floor"),
        ("nvidia-driver-535-server", {}, {"gpus": (B200,)}, "gpu-min-driver"),
        ("nvidia-driver-535-server", SERVES, {}, "cuda-driver-hard"),
        ("nvidia-driver-999-server", {}, {}, "branch-unknown"),
        ("nvidia-driver-570-server", {}, {}, "driver-set-incomplete"),
    ],
)
def test_a_branch_that_does_not_fit(
    bench: Any,  # noqa: ANN401 - see conftest.py
    package: str,
    variables: dict[str, Any],
    facts: dict[str, Any],
    rule: str,
) -> None:
    """The data refuses it as any other, and says how to have another branch nevertheless."""
    seen = {**SAID, "server": package}
    found = plan(bench, {**asked(), **variables}, ubuntu_drivers=seen, **facts)
    refusal = next(one for one in found.refusals if one.rule == rule)
    assert "llmetal_driver.branch goes before the chooser" in refusal.fix
    plain = plan(bench, {**asked(branch=package[14:17]), **variables}, **facts)
    assert rule in [one.rule for one in plain.refusals]
    assert not any("chooser" in one.fix for one in plain.refusals)


def test_hardware_that_nobody_has(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What it would recommend is open: the data chooses, and the plan says so."""
    request = replace(bench.request(**asked()), hypothetical=True)
    seen = bench.facts((A100,), os__key="ubuntu2404")
    found = planner.plan_host(request, seen, None, bench.compat)
    assert found.refusals == ()
    assert found.lock is not None
    assert found.lock["driver"]["branch"] == "580"
    why = " ".join(found.lock["driver"]["why"])
    assert "what ubuntu-drivers recommends is known on the host only" in why


def test_nothing_to_choose(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Without a GPU, or without a driver of ours, nobody misses it."""
    for facts in ({"gpus": ()}, {}):
        variables = asked() if facts else asked(source="none")
        assert plan(bench, variables, ubuntu_drivers=None, **facts).refusals == ()
