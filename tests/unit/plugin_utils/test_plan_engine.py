# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of a host: kernels in its wheel, build settings, interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import plan_engine
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    Compat,
    load_interpreters,
)

A100, L40S, RTX_3090 = "20b2", "26b9", "2204"
MODEL = {"name": "smollm2", "source": {"type": "folder", "path": "/srv/models/smollm2"}}
OLD = [{"path": "/usr/bin/python3.10", "version": "3.10.12"}]


def served(**variables: Any) -> dict[str, Any]:  # noqa: ANN401 - any variable
    """Variables of a host that serves on its GPUs."""
    chat = {"name": "chat", "engine": "vllm", "model": "smollm2", **variables.pop("instance", {})}
    return {"models": [MODEL], "instances": [chat], "plan_lock": "compare", **variables}


def rules(findings: tuple[Any, ...]) -> list[str]:
    """Their names."""
    return [finding.rule for finding in findings]


@pytest.mark.parametrize(
    ("engine", "compute", "runs"),
    [
        ("vllm", "7.0", False),
        ("vllm", "7.5", True),
        ("vllm", "8.0", True),
        ("vllm", "8.7", True),
        ("vllm", "8.9", True),
        ("vllm", "9.0", True),
        ("vllm", "10.0", True),
        ("vllm", "10.3", True),
        ("vllm", "11.0", False),
        ("vllm", "12.1", True),
        ("sglang", "7.5", False),
        ("sglang", "8.6", True),
        ("sglang", "10.3", True),
        ("sglang", "12.0", True),
        # Code with an `a` runs on just that one (py-007).
        ("sglang", "12.1", False),
    ],
)
def test_kernels(compat: Compat, engine: str, compute: str, runs: bool) -> None:  # noqa: FBT001 - a column
    """Device code runs on its major from its minor on; PTX on everything later (py-005)."""
    release = compat.release(engine, "gpu", None)
    assert release is not None
    assert plan_engine.has_kernels(release, compute) is runs


def test_ptx(compat: Compat) -> None:
    """PTX is translated for every later GPU."""
    release = compat.release("vllm", "gpu", None)
    assert release is not None
    assert plan_engine.has_kernels(dataclasses.replace(release, ptx=("80",)), "11.0")
    assert not plan_engine.has_kernels(dataclasses.replace(release, ptx=("120",)), "11.0")


@pytest.mark.parametrize(
    ("build", "cpus", "memory_gib", "jobs", "warned"),
    [
        ({}, 64, 512, 64, []),
        ({}, 64, 32, 8, []),
        ({}, 2, 1, 1, []),
        ({}, None, 512, None, []),
        ({"max_jobs": 12}, 64, 512, 12, []),
        ({"nvcc_threads": 4}, 64, 64, 4, []),
        # The build divides one by the other (bld-002).
        ({"nvcc_threads": 8, "max_jobs": 4}, 64, 512, 4, ["max-jobs"]),
    ],
)
def test_build(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    build: dict[str, int],
    cpus: int | None,
    memory_gib: int,
    jobs: int | None,
    warned: list[str],
) -> None:
    """Architectures from the GPUs present, jobs from processors and memory."""
    facts = {"memory_bytes": memory_gib << 30, **({"cpus": cpus} if cpus else {})}
    driver = {"loaded": "580.95.05"}
    gpus = (A100, L40S, RTX_3090)
    plan = bench.plan(served(build=build), gpus=gpus, gpu__driver=driver, **facts)
    (engine,) = plan.lock["engines"]
    assert engine["build"]["arch_list"] == "8.0;8.6;8.9"
    assert engine["build"]["max_jobs"] == jobs
    assert engine["build"]["from"] == "wheel"
    assert [rule for rule in rules(plan.warnings) if rule == "max-jobs"] == warned


def test_interpreter_of_an_installer(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """An old system gets one with its sha256; what a run would install is refused, for now."""
    plan = bench.plan(served(), gpus=(A100,), gpu__driver={"loaded": "580.95.05"}, python=OLD)
    python = plan.lock["python"]["environments"][0]["python"]
    assert python["source"] == "miniconda"
    assert python["installer"] in [
        {"file": row["file"], "sha256": row["sha256"]} for row in load_interpreters()["installers"]
    ]
    assert "plan-only" in rules(plan.warnings)
    site = bench.plan(
        {**served(), "plan_lock": "use"},
        gpus=(A100,),
        gpu__driver={"loaded": "580.95.05"},
        python=OLD,
    )
    assert "python-version" in rules(site.refusals)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"source": "system"}, "python-version"),
        ({"installer": "Miniconda3-py310_23.3.1-0-Linux-x86_64.sh"}, "interpreter-unknown"),
        (
            {"sha256": "32d73e1bc33fda089d7cd9ef4c1be542616bd8e437d1f77afeeaf7afdb019787"},
            "interpreter-sha256",
        ),
    ],
)
def test_wrong_interpreter(bench: Any, asked: dict[str, str], rule: str) -> None:  # noqa: ANN401 - see conftest.py
    """One that does not fit, or whose sum is that of another file, which is then named."""
    plan = bench.plan(
        served(python=asked), gpus=(A100,), gpu__driver={"loaded": "580.95.05"}, python=OLD
    )
    assert rule in rules(plan.refusals)
    if rule == "interpreter-sha256":
        fact = next(f.fact for f in plan.refusals if f.rule == rule)
        assert "which is that of Miniconda3-py310_23.1.0-1-Linux-x86_64.sh" in fact


def test_what_is_planned_only(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """SGLang, containers and source builds: warned of in a look, refused in a run."""
    asked = served(
        instance={"engine": "sglang"},
        cuda={"version": "13.0"},
        runtime="container",
        build={"from": "source"},
    )
    facts = {"gpus": (A100,), "gpu__driver": {"loaded": "580.95.05"}}
    looked = bench.plan(asked, **facts)
    assert rules(looked.warnings).count("plan-only") == 3
    run = bench.plan({**asked, "plan_lock": "use"}, **facts)
    assert rules(run.refusals).count("not-yet") == 3


def test_memory_that_was_seen(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What nvidia-smi shows counts, and not the size on the label."""
    gpus = bench.facts((RTX_3090,))["gpu"]
    gpus |= {"driver": {"loaded": "580.95.05"}}
    by_label = bench.plan(served(), gpu=gpus).lock["instances"][0]["memory"]["gpu_bytes"]
    gpus["gpus"][0]["memory_mib"] = 24576
    seen = bench.plan(served(), gpu=gpus).lock["instances"][0]["memory"]["gpu_bytes"]
    assert by_label < seen < 24576 << 20


@pytest.mark.parametrize(
    ("names", "complete"),
    [
        (["tokenizer.json"], True),
        (["vocab.json", "merges.txt"], True),
        (["qwen.tiktoken"], True),
        (["vocab.json"], False),
        # Settings of a tokenizer are none.
        (["tokenizer_config.json"], False),
    ],
)
def test_tokenizer(bench: Any, names: list[str], complete: bool) -> None:  # noqa: ANN401, FBT001 - see conftest.py; a column
    """A served folder needs a tokenizer (dl-009), whichever files make it."""
    answers = bench.candidates()
    answers["models"]["smollm2"]["files"] = [
        {"path": name, "size": 9, "sha256": "ab" * 32} for name in ["config.json", *names]
    ]
    driver = {"loaded": "580.95.05"}
    plan = bench.plan(served(), candidates=answers, gpus=(A100,), gpu__driver=driver)
    assert ("model-incomplete" not in rules(plan.refusals)) is complete
