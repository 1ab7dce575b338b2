# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions about hardware that nobody has: the known cases of public posts, each decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import hypothetical
from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
from ansible_collections.llmetal.inference.plugins.plugin_utils.hypothetical import Hardware

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"
DENSE, FP8, MOE = "qwen3-14b", "qwen3.5-27b-fp8", "qwen3.5-35b-a3b-fp8"


def ask(compat: Compat, gpus: str, system: str, model: str | None = None, **more: Any) -> Plan:  # noqa: ANN401 - any part of a question
    """The plan for `8xh200_sxm` and the like."""
    count, _, key = gpus.partition("x") if gpus[0].isdigit() else ("1", "", gpus)
    metadata = None
    if model is not None:
        config = json.loads((FIXTURES / model / "config.json").read_text("utf-8"))
        metadata = Metadata(model, config, None, (), None, None)
    question = Hardware((key,) * int(count), system, model=model, **more)
    return hypothetical.plan(question, metadata, compat)


def rules(plan: Plan) -> set[str]:
    """The rules that refuse."""
    return {finding.rule for finding in plan.refusals}


def instance(plan: Plan) -> dict[str, Any]:
    """The one instance of a plan."""
    assert plan.lock is not None, plan.refusals
    (one,) = plan.lock["instances"]
    found: dict[str, Any] = one
    return found


def test_whole_lock(compat: Compat) -> None:
    """Eight A100 under Ubuntu 22.04: everything that can be decided is, and the rest is named."""
    plan = ask(compat, "8xa100_sxm4_80", "ubuntu2204", DENSE)
    lock = plan.lock
    assert lock is not None
    assert plan.host == "planned"
    driver = lock["driver"]
    assert (driver["branch"], driver["modules"], driver["version"]) == ("580", "open", None)
    assert driver["source"]["type"] == "ubuntu"
    assert lock["fabric"]["package"] == "nvidia-fabricmanager-580"
    assert lock["fabric"]["switches"] == 6
    python = lock["python"]["environments"][0]["python"]
    assert python["source"] == "miniconda"
    assert python["installer"]["file"].startswith("Miniconda3-py312")
    assert len(python["installer"]["sha256"]) == 64
    assert lock["engines"][0]["build"]["arch_list"] == "8.0"
    assert lock["engines"][0]["torch"] == "2.14.0"
    named = {row["field"] for row in lock["unresolved"]}
    assert {"driver.version", "fabric.version", "kernel.running", "models.qwen3-14b.files"} <= named


def test_27b_in_fp8_on_one_24_gb_card(compat: Compat) -> None:
    """Refused with the number and the ways out; two cards serve it."""
    plan = ask(compat, "rtx_4090", "ubuntu2404", FP8)
    assert rules(plan) == {"memory-weights"}
    (finding,) = plan.refusals
    assert "28.31 GiB of weights" in finding.fact
    for way in ("2 GPUs of this kind as TP 2", "four-bit", "over PCIe", "a model with less than"):
        assert way in finding.fix
    two = instance(ask(compat, "2xrtx_4090", "ubuntu2404", FP8))
    assert two["layout"]["tensor"] == 2
    assert two["memory"]["weights_bytes"] / 2**30 == pytest.approx(14.28, rel=0.01)
    assert two["context"] is not None


def test_moe_blocks_forbid_tp_8(compat: Compat) -> None:
    """512 wide experts in blocks of 128: not over 8, and the fix is one that works (ml-007)."""
    plan = ask(compat, "8xh200_sxm", "ubuntu2404", MOE, tensor_parallel=8)
    assert rules(plan) == {"fp8-block-tp"}
    assert any("512" in f.fact and "64" in f.fact and "128" in f.fact for f in plan.refusals)
    assert all("TP 4 x DP 2 with expert parallel" in f.fix for f in plan.refusals)
    four = ask(
        compat,
        "8xh200_sxm",
        "ubuntu2404",
        MOE,
        tensor_parallel=4,
        data_parallel=2,
        expert_parallel=True,
    )
    assert instance(four)["layout"] == {"tensor": 4, "pipeline": 1, "data": 2, "expert": True}
    argv = " ".join(instance(four)["argv"])
    assert "--tensor-parallel-size 4 --data-parallel-size 2 --enable-expert-parallel" in argv
    free = instance(ask(compat, "8xh200_sxm", "ubuntu2404", MOE))
    assert free["layout"]["expert"]


@pytest.mark.parametrize(
    ("gpus", "system", "model", "more", "found"),
    [
        # FP8 by compute capability and engine (ml-005).
        ("rtx_3090", "ubuntu2404", None, {}, set()),
        ("8xa100_sxm4_80", "debian13", MOE, {"engine": "sglang"}, {"fp8-path"}),
        ("2xa100_sxm4_80", "debian13", FP8, {"engine": "sglang"}, set()),
        (
            "2xt4",
            "ubuntu2404",
            FP8,
            {"engine": "sglang"},
            {"cc-floor", "fp8-path", "memory-weights"},
        ),
        # Heads (ml-012), GPUs, context.
        ("3xh200_sxm", "ubuntu2404", DENSE, {"tensor_parallel": 3}, {"tp-heads"}),
        ("4xh200_sxm", "ubuntu2404", DENSE, {"tensor_parallel": 8}, {"layout-gpus"}),
        ("h200_sxm", "ubuntu2404", DENSE, {"context": 1_000_000}, {"context-model"}),
        (
            "a100_sxm4_40",
            "ubuntu2404",
            DENSE,
            {"context": 40960, "concurrency": 64},
            {"memory-concurrency"},
        ),
        # Drivers, by branch.
        ("h200_sxm", "ubuntu2404", None, {"driver": "535"}, {"gpu-min-driver"}),
        ("v100_pcie", "ubuntu2404", None, {"driver": "595"}, {"branch-arch-floor"}),
        ("h100_pcie", "ubuntu2404", DENSE, {"driver": "550"}, {"cuda-driver-hard"}),
        (
            "rtx_5090",
            "ubuntu2404",
            DENSE,
            {"driver": "550.163.01"},
            {"gpu-min-driver", "cuda-driver-hard", "memory-kv"},
        ),
        ("v100_pcie", "ubuntu2404", DENSE, {}, {"cc-floor", "memory-weights"}),
        # Kernels in the wheel (py-005, py-007).
        ("t4", "ubuntu2404", None, {"engine": "sglang"}, set()),
        ("gb10", "ubuntu2404", DENSE, {}, {"arch"}),
        # Systems.
        ("a100_pcie_80", "ubuntu2004", DENSE, {"engine": "sglang"}, {"glibc-floor"}),
        # Old posts.
        ("h200_sxm", "ubuntu2404", DENSE, {"engine_version": "0.3.3"}, {"engine-release"}),
        ("h200_sxm", "ubuntu2404", DENSE, {"options": {"worker-use-ray": True}}, {"engine-option"}),
        (
            "h200_sxm",
            "ubuntu2404",
            DENSE,
            {"options": {"dtype": "float8"}},
            {"engine-option-value"},
        ),
        ("h200_sxm", "ubuntu2404", DENSE, {"disk_gb": 20}, {"disk-room"}),
        ("a100_sxm4_80", "ubuntu2404", DENSE, {"options": {"kv-cache-dtype": "fp8"}}, {"kv-dtype"}),
    ],
)
def test_decided(  # noqa: PLR0913, PLR0917 - the columns of the table
    compat: Compat,
    gpus: str,
    system: str,
    model: str | None,
    more: dict[str, Any],
    found: set[str],
) -> None:
    """Each trap of public write-ups, refused by its rule, or served."""
    assert rules(ask(compat, gpus, system, model, **more)) == found


def test_nothing_unknown_is_assumed(compat: Compat) -> None:
    """Neither disk nor memory is checked where the question does not say them."""
    small = ask(compat, "h200_sxm", "ubuntu2404", DENSE, disk_gb=1, ram_gb=1)
    assert "disk-room" in rules(small)
    assert {"memory-thin"} <= {finding.rule for finding in small.warnings}
    assert rules(ask(compat, "h200_sxm", "ubuntu2404", DENSE)) == set()


@pytest.mark.parametrize(("gpus", "warned"), [("8xb300", True), ("8xb200", False)])
def test_late_targets(compat: Compat, gpus: str, warned: bool) -> None:  # noqa: FBT001 - a column
    """A GPU that compilers learnt late is warned of (cuda-007)."""
    plan = ask(compat, gpus, "ubuntu2404", DENSE)
    assert ("ptxas-too-old" in {finding.rule for finding in plan.warnings}) is warned


def test_a_model_that_cannot_be_read(compat: Compat) -> None:
    """The answer says which decisions could not be made, and the rest is still planned for."""
    error = LlmetalError(what="the hub does not answer", where="a/b", why="timeout", fix="see it")
    question = Hardware(("h200_sxm",), "ubuntu2404", model="a/b")
    (finding,) = hypothetical.plan(question, None, compat, error).refusals
    assert finding.rule == "model-unread"
    assert "the hub does not answer; timeout" in finding.fact
    assert "could not be decided" in finding.fact
    assert finding.fix == "see it"


@pytest.mark.parametrize(
    ("config", "decision"),
    [
        ({}, "weights"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, "weights"),
        ({"architectures": [3], "hidden_size": -5, "num_attention_heads": "many"}, "weights"),
    ],
)
def test_what_a_config_does_not_say(compat: Compat, config: dict[str, Any], decision: str) -> None:
    """A config.json without what a decision needs: the decision is named, never guessed."""
    model = Metadata("here", config, None, (), None, None)
    plan = hypothetical.plan(Hardware(("h200_sxm",), "ubuntu2404", model="here"), model, compat)
    said = [f.fact for f in (*plan.warnings, *plan.refusals) if f.rule == "model-undecided"]
    assert any(decision in fact for fact in said)


def test_volta_gets_a_driver_and_no_engine(compat: Compat) -> None:
    """The last branch of an old GPU, with the modules that it has."""
    plan = ask(compat, "4xv100_sxm2", "debian13")
    assert plan.lock is not None
    assert plan.lock["driver"]["modules"] == "proprietary"
    assert int(plan.lock["driver"]["branch"]) <= 580


@pytest.mark.parametrize(
    ("gpus", "driver", "modules"),
    [
        ("t4", "535", "proprietary"),
        ("t4", "580", "open"),
        ("a100_sxm4_80", "470", "proprietary"),
        ("rtx_3090", "470", "proprietary"),
        ("h100_pcie", "535", "open"),
    ],
)
def test_modules_that_a_branch_has(compat: Compat, gpus: str, driver: str, modules: str) -> None:
    """Open modules where those of the branch list the GPU, else the proprietary ones that do."""
    lock = ask(compat, gpus, "debian13", driver=driver).lock
    assert lock is not None
    assert lock["driver"]["modules"] == modules


def test_an_engine_without_a_model(compat: Compat) -> None:
    """Whether a release runs on a GPU and a driver can be asked without naming a model."""
    plan = ask(compat, "a100_sxm4_80", "ubuntu2404", engine_only=True)
    assert plan.lock is not None
    assert plan.lock["engines"][0]["version"] == "0.33.0"
    assert (plan.lock["instances"], plan.lock["models"]) == ([], [])
    for more, rule in (
        ({"engine_version": "0.6.0"}, "engine-release"),
        ({"driver": "550"}, "cuda-driver-hard"),
        ({"options": {"worker-use-ray": True}}, "engine-option"),
    ):
        assert rule in rules(ask(compat, "a100_sxm4_80", "ubuntu2404", engine_only=True, **more))
    assert "no-kernel-image" not in rules(ask(compat, "t4", "ubuntu2404", engine_only=True))
    assert "cc-floor" in rules(ask(compat, "v100_pcie", "ubuntu2404", engine_only=True))


@pytest.mark.parametrize(
    ("system", "driver", "warned"),
    [
        ("ubuntu2404", "580.999.99", True),
        ("ubuntu2404", "580.95.05", False),
        ("ubuntu2404", "545", True),
        ("ubuntu2604", "535", True),
        ("debian13", "580", False),
    ],
)
def test_a_driver_that_nobody_has_seen(
    compat: Compat,
    system: str,
    driver: str,
    warned: bool,  # noqa: FBT001 - a column
) -> None:
    """A release newer than any that was seen, or a branch that the archive was not seen with."""
    plan = ask(compat, "a100_pcie_80", system, driver=driver)
    assert ("driver-not-seen" in {finding.rule for finding in plan.warnings}) is warned


def test_switches_that_nobody_named(compat: Compat) -> None:
    """Two SXM boards may or may not sit behind switches: said, not decided."""
    plan = ask(compat, "2xh100_sxm5_80", "ubuntu2404")
    assert "fm-hidden" in {finding.rule for finding in plan.warnings}
    assert plan.lock is not None
    assert plan.lock["host"]["gpus"][0]["pci"] == "not known"
    assert plan.lock["host"]["platform"] == {}


def test_a_fix_is_a_command_line(compat: Compat) -> None:
    """Who reads a refusal can type what it says."""
    (finding,) = ask(compat, "rtx_4090", "ubuntu2404", FP8).refusals
    assert "--gpus 2xrtx_4090 --pipeline-parallel 1 --tensor-parallel 2" in finding.fix
    (arm,) = ask(compat, "gb10", "ubuntu2404").refusals
    assert "in a host of x86_64" in arm.fix
    assert "inventory" not in arm.fix
