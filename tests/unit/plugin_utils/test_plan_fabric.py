# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's packages by source and branch, and always in the driver's version."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import planner

A100, H200, B200 = "20b2", "2335", "2901"
MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}


def driver(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of the variable
    """A driver from NVIDIA's repository, but for some values."""
    return {"driver": {"source": "cuda_repo", "mirror": MIRROR, **changes}}


def offered(*names: str, version: str = "570.211.01-1") -> dict[str, list[str]]:
    """Packages in one version each."""
    return {name: [version] for name in names}


@pytest.mark.parametrize(
    ("source", "branch", "manager", "extras"),
    [
        ("cuda_repo", "570", "nvidia-fabricmanager-570", "libnvidia-nscq-570"),
        ("cuda_repo", "575", "nvidia-fabricmanager-575", "libnvidia-nscq-575"),
        ("cuda_repo", "580", "nvidia-fabricmanager", "libnvidia-nscq"),
        ("cuda_repo", "595", "nvidia-fabricmanager", "libnvidia-nscq"),
        ("ubuntu", "580", "nvidia-fabricmanager-580", "libnvidia-nscq-580"),
    ],
)
def test_names(
    bench: Any,  # noqa: ANN401 - see conftest.py
    source: str,
    branch: str,
    manager: str,
    extras: str,
) -> None:
    """NVIDIA's repository has branches in the names up to 575, Ubuntu's archive always."""
    found = bench.compat.fabric_set(source, branch)
    assert found.package == manager
    assert found.service == "nvidia-fabricmanager.service"
    assert found.nvswitch.optional == (extras,)
    assert found.nvswitch.same == ()


def test_nvlink5_names(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What B200 needs besides; Ubuntu's archive has nothing of it."""
    found = bench.compat.fabric_set("cuda_repo", "570").nvlink5
    assert found.same == ("libnvsdm-570",)
    assert "nvlsm" in found.own
    assert bench.compat.fabric_set("ubuntu", "580").nvlink5 is None


@pytest.mark.parametrize("source", ["debian", "ppa"])
def test_sources_without_a_manager(bench: Any, source: str) -> None:  # noqa: ANN401 - see conftest.py
    """Neither ships one."""
    assert bench.compat.fabric_set(source, "580") is None


def test_older_branch(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A branch of the repository's older names is planned whole."""
    packages = offered("nvidia-fabricmanager-570", "libnvidia-nscq-570")
    plan = bench.plan(
        driver(branch="570"),
        candidates=bench.candidates(packages=packages),
        gpus=(A100,) * 8,
        switches=6,
    )
    assert plan.lock["fabric"] == {
        "package": "nvidia-fabricmanager-570",
        "version": "570.211.01-1",
        "service": "nvidia-fabricmanager.service",
        "switches": 6,
        "packages": [{"name": "libnvidia-nscq-570", "version": "570.211.01-1"}],
        "services": ["nvidia-fabricmanager.service"],
    }


def test_optional_ones_are_of_the_version_too(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """An nscq of another version is left out, never taken."""
    asked = {"gpus": (A100,) * 8, "switches": 6}
    other = bench.candidates(packages=offered("libnvidia-nscq", version="580.95.05-1"))
    assert bench.plan(driver(), candidates=other, **asked).lock["fabric"]["packages"] == []
    same = bench.candidates(packages=offered("libnvidia-nscq", version="580.178.04-1"))
    (nscq,) = bench.plan(driver(), candidates=same, **asked).lock["fabric"]["packages"]
    assert nscq == {"name": "libnvidia-nscq", "version": "580.178.04-1"}


def test_the_release_is_one_that_all_have(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """On B200 libnvsdm is of the driver's version; nvlsm has versions of its own."""
    packages = {**offered("libnvsdm", version="580.159.04-1"), "nvlsm": ["2025.10.11-1"]}
    plan = bench.plan(
        driver(), candidates=bench.candidates(packages=packages), gpus=(B200,) * 8, switches=0
    )
    assert plan.lock["driver"]["version"] == "580.159.04"
    versions = {row["name"]: row["version"] for row in plan.lock["fabric"]["packages"]}
    assert (versions["libnvsdm"], versions["nvlsm"]) == ("580.159.04-1", "2025.10.11-1")


@pytest.mark.parametrize("missing", ["nvlsm", "libnvsdm", "infiniband-diags"])
def test_nvlink5_is_whole_or_refused(bench: Any, missing: str) -> None:  # noqa: ANN401 - see conftest.py
    """A stack that lacks a part is no stack."""
    answers = bench.candidates(packages={missing: []})
    plan = bench.plan(driver(), candidates=answers, gpus=(B200,) * 8)
    assert [finding.rule for finding in plan.refusals] == ["driver-set-incomplete"]
    assert missing in plan.refusals[0].fact


def test_unresolved_fields(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What nobody asked for is null and named."""
    looked = bench.plan(
        {**driver(), "plan_lock": "compare"}, candidates={}, gpus=(B200,) * 8, switches=0
    )
    fields = {row["field"] for row in lock_.validate(looked.lock, "here")["unresolved"]}
    assert {"fabric.version", "fabric.packages.nvlsm", "fabric.packages.libnvsdm"} <= fields
    assert looked.lock["fabric"]["packages"][0] == {"name": "libnvsdm", "version": None}


def test_switches_that_are_not_there(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Eight modules on metal without a switch are worth a word."""
    plan = bench.plan(driver(), gpus=(H200,) * 8)
    (warning,) = plan.warnings
    assert warning.rule == "fm-hidden"
    assert "on metal, no switch on the PCI bus" in warning.fact
    assert plan.lock["nvlink"]["required"] is True


def test_the_stage_asks_for_all_of_it(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The question has the fabric's packages, the optional ones too."""
    facts = bench.facts((A100,) * 8, 6)
    question = planner.question(bench.request(**driver()), facts, bench.compat)
    assert {"nvidia-fabricmanager", "libnvidia-nscq", "nvidia-kernel-open-dkms"} <= set(
        question.packages
    )


def test_a_lock_of_two_versions(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A lock that somebody edited is refused before it is installed."""
    asked = {"gpus": (A100,) * 8, "switches": 6}
    lock = copy.deepcopy(bench.plan(driver(), **asked).lock)
    lock["fabric"]["version"] = "580.159.04-1"
    plan = bench.plan(driver(), existing=lock, **asked)
    assert [finding.rule for finding in plan.refusals] == ["fm-version"]
    assert "580.159.04-1, driver 580.178.04" in plan.refusals[0].fact
