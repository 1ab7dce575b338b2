# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds of every plan: GPUs, systems, engines and models of all kinds, and junk for facts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    candidates,
    hypothetical,
    lock,
    planner,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    load_architectures,
    load_compat,
    load_option_table,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
from ansible_collections.llmetal.inference.plugins.plugin_utils.hypothetical import Hardware
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_engine import has_kernels
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    branch_of,
    is_at_least,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

COMPAT = load_compat()
FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"
ROUNDS = 12
"""Fixes in a row: each one mends what stood in the way, and may bring up what stood behind it."""

DENSE = {
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


def config_of(name: str) -> dict[str, Any]:
    """A published config.json."""
    loaded: dict[str, Any] = json.loads((FIXTURES / name / "config.json").read_text("utf-8"))
    return loaded


def metadata(config: dict[str, Any]) -> Metadata:
    """A model of which config.json alone is known."""
    return Metadata("a folder", config, None, (), None, None)


MODELS = {
    "qwen3-14b": config_of("qwen3-14b"),
    "qwen3.5-27b-fp8": config_of("qwen3.5-27b-fp8"),
    "qwen3.5-35b-a3b-fp8": config_of("qwen3.5-35b-a3b-fp8"),
    "tiny": {
        **DENSE,
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "unknown": {"architectures": ["NobodyForCausalLM"], "model_type": "nobody"},
    "empty": {},
}

counts = st.sampled_from([1, 2, 3, 4, 8])
gpu_lists = st.one_of(
    st.tuples(st.sampled_from(sorted(COMPAT.gpus)), counts).map(lambda pair: (pair[0],) * pair[1]),
    st.lists(st.sampled_from(sorted(COMPAT.gpus)), min_size=1, max_size=3).map(tuple),
)
drivers = st.one_of(
    st.none(),
    st.sampled_from(sorted(COMPAT.branches)),
    st.sampled_from(["535.129.03", "580.95.05"]),
)
hardware = st.builds(
    Hardware,
    gpus=gpu_lists,
    os=st.sampled_from(sorted(COMPAT.systems)),
    driver=drivers,
    cuda=st.sampled_from([None, "11.8", "12.4", "12.9.1", "13.0", "13.1", "13.5", "99.9"]),
    ram_gb=st.one_of(st.none(), st.sampled_from([2.0, 64.0, 1024.0])),
    disk_gb=st.one_of(st.none(), st.sampled_from([10.0, 100.0, 4000.0])),
    engine=st.sampled_from(["vllm", "sglang"]),
    engine_version=st.sampled_from([None, None, "0.3.3"]),
    model=st.one_of(st.none(), st.sampled_from(sorted(MODELS))),
    tensor_parallel=st.sampled_from([None, None, 1, 2, 3, 8]),
    pipeline_parallel=st.sampled_from([None, None, None, 2]),
    data_parallel=st.sampled_from([None, None, None, 2]),
    expert_parallel=st.sampled_from([None, None, True, False]),
    context=st.sampled_from([None, None, 4096, 262144, 10_000_000]),
    concurrency=st.sampled_from([None, None, 16, 100_000]),
    options=st.sampled_from(
        [{}, {}, {}, {"dtype": "float8"}, {"worker-use-ray": True}, {"kv-cache-dtype": "fp8"}]
    ),
)


def answer(question: Hardware) -> Plan:
    """The plan of a question."""
    model = None if question.model is None else metadata(MODELS[question.model])
    return hypothetical.plan(question, model, COMPAT)


def relaxed(question: Hardware, plan: Plan) -> Hardware:
    """The question with the fixes of its refusals."""
    for finding in plan.refusals:
        assert finding.relax, f"{finding.rule} has no fix that can be applied: {finding.fact}"
        changes = dict(finding.relax)
        if "gpus" in changes:
            changes["gpus"] = tuple(changes["gpus"])
        return dataclasses.replace(question, **changes)
    return question


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(hardware)
@example(Hardware(("h200_sxm",) * 8, "ubuntu2404", model="qwen3.5-35b-a3b-fp8", tensor_parallel=8))
@example(Hardware(("rtx_4090",), "ubuntu2404", model="qwen3.5-27b-fp8"))
@example(Hardware(("a100_sxm4_80",) * 8, "debian13", engine="sglang", model="qwen3.5-35b-a3b-fp8"))
def test_a_fix_leads_to_a_plan(question: Hardware) -> None:
    """Applying what a refusal says, again and again, ends at a lock, and that is a right one."""
    trail = []
    for _round in range(ROUNDS):
        plan = answer(question)
        if plan.lock is not None:
            check_lock(question, plan)
            return
        trail.append((plan.refusals[0].rule, dict(plan.refusals[0].relax)))
        question = relaxed(question, plan)
    pytest.fail(f"no plan after {ROUNDS} fixes: {trail}")


@settings(max_examples=50, deadline=None)
@given(hardware)
def test_the_same_question_has_the_same_answer(question: Hardware) -> None:
    """A plan is a function of its input."""
    assert answer(question).as_dict() == answer(question).as_dict()


def check_lock(question: Hardware, plan: Plan) -> None:
    """Look at a lock with eyes of our own: what the rules promise is so."""
    found = lock.validate(json.loads(json.dumps(plan.lock)), "test")
    branch = int(found["driver"]["branch"])
    release = question.driver or str(COMPAT.branches[str(branch)].get("latest_seen") or branch)
    for key in question.gpus:
        row = COMPAT.gpus[key]
        assert branch <= int(row.get("max_driver_branch") or branch)
        assert found["driver"]["modules"] != "open" or row["kernel_module"] != "proprietary_only"
        assert found["driver"]["modules"] == "open" or row["kernel_module"] != "open_only"
        if row.get("min_driver") and row.get("min_driver_basis") != "know":
            newest = release if "." in release else f"{release}.999"
            assert is_at_least(newest, str(row["min_driver"]))
        assert not row.get("host_arch")
        if row["fabric_manager"] == "required":
            assert found["fabric"] is not None
    for one in found["instances"]:
        check_instance(question, found, one, branch)


def check_instance(
    question: Hardware, found: dict[str, Any], one: dict[str, Any], branch: int
) -> None:
    """The instance of a lock can run."""
    engine = next(row for row in found["engines"] if row["name"] == one["engine"])
    release = COMPAT.release(engine["name"], engine["device"], engine["version"])
    assert release is not None
    assert branch >= int(branch_of(release.min_driver or "0"))
    computes = [str(COMPAT.gpus[key]["cc"]) for key in question.gpus]
    assert all(has_kernels(release, compute) for compute in computes)
    assert all(is_at_least(compute, release.min_compute or "0") for compute in computes)
    assert set(engine["build"]["arch_list"].split(";")) == set(computes)
    table = load_option_table(release.options)["options"]
    spellings = {
        s for k, row in table.items() for s in (k, *row.get("aliases", ()), *row.get("negated", ()))
    }
    assert {word for word in one["argv"] if word.startswith("--")} <= spellings
    config = MODELS[question.model or "empty"]
    text = config.get("text_config", config)
    layout = one["layout"]
    if config.get("architectures") and "model-impl" not in question.options:
        assert config["architectures"][0] in load_architectures(release.architectures)
    if layout is None or "num_attention_heads" not in text:
        return
    tensor = layout["tensor"]
    assert tensor * layout["pipeline"] * layout["data"] == len(question.gpus)
    assert text["num_attention_heads"] % tensor == 0
    if "quantization_config" in config and text.get("moe_intermediate_size"):
        ranks = tensor * (layout["data"] if one["engine"] == "vllm" else 1)
        assert layout["expert"] or text["moe_intermediate_size"] // ranks % 128 == 0
    memory = one["memory"]
    if memory["kv_tokens"] is not None:
        held = memory["weights_bytes"] + memory["kv_bytes"]
        assert held <= memory["gpu_bytes"]
        assert memory["kv_tokens"] >= (one["context"] or 1)
    if question.context is not None:
        assert (memory["longest_context"] or question.context) >= question.context
    if one["fp8"] is not None:
        assert one["fp8"]["path"] != "impossible"


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["os", "kernel", "gpu", "disks", "packages", "python", "platform"]), junk)
def test_no_fact_makes_it_raise(key: str, value: object) -> None:
    """Facts of any shape give a plan or a refusal that names the fact."""
    question = Hardware(("a100_sxm4_80",), "debian13", model="tiny")
    facts = {**hypothetical.facts_of(question, COMPAT), key: value}
    answers = {"models": {"tiny": candidates.of_metadata(metadata(MODELS["tiny"]))}}
    plan = planner.plan_host(hypothetical.request_of(question), facts, answers, COMPAT)
    assert plan.lock is not None or plan.refusals


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(MODELS["qwen3.5-35b-a3b-fp8"]["text_config"])), junk))
def test_no_config_makes_it_raise(changes: dict[str, Any]) -> None:
    """A config.json of any content gives a plan, or a refusal; what is unknown is named."""
    config = MODELS["qwen3.5-35b-a3b-fp8"]
    config = {**config, "text_config": {**config["text_config"], **changes}}
    question = Hardware(("h200_sxm",), "ubuntu2404", model="tiny")
    plan = hypothetical.plan(question, metadata(config), COMPAT)
    assert plan.lock is not None or plan.refusals
