# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit of a host: which one, how the driver serves it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    facts,
    plan_driver,
    plan_toolkit,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings

A100, V100, H100, B200, B300, RTX_4090 = "20b2", "1db5", "2330", "2901", "3182", "2684"


def decide(
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpu: str,
    cuda: dict[str, Any],
    driver: str | None,
    system: str = "ubuntu2404",
    **variables: Any,  # noqa: ANN401 - any variable
) -> tuple[dict[str, Any] | None, list[str], list[str]]:
    """The toolkit, and the rules that refuse and warn."""
    findings = Findings("gpu-1", bench.compat)
    seen = facts.parse(bench.facts((gpu,), os__key=system))
    found = plan_toolkit.decide(
        bench.request(cuda=cuda, **variables),
        seen,
        plan_driver.known_gpus(seen, bench.compat),
        compat=bench.compat,
        findings=findings,
        driver=driver,
    )
    refused = [finding.rule for finding in findings.refusals]
    return found, refused, [finding.rule for finding in findings.warnings]


@pytest.mark.parametrize(
    ("version", "driver", "release", "mode"),
    [
        ("13.0", "580.95.05", "13.0.3", "full"),
        ("13.0.1", "580.95.05", "13.0.1", "full"),
        ("13.1", "580.95.05", "13.1.2", "minor"),
        ("12.8", "525.147.05", "12.8.2", "minor"),
        ("12.8", "570.211.01", "12.8.2", "full"),
        ("12.8", "580.95.05", "12.8.2", "full"),
        ("12.8", None, "12.8.2", None),
    ],
)
def test_release(
    bench: Any,  # noqa: ANN401 - see conftest.py
    version: str,
    driver: str | None,
    release: str,
    mode: str | None,
) -> None:
    """The newest release of what is asked, and how the driver serves it."""
    found, refused, warned = decide(bench, A100, {"version": version}, driver)
    assert refused == []
    assert found is not None
    assert (found["version"], found["compatibility"]) == (release, mode)
    assert found["packages"][0]["name"] == "cuda-toolkit-" + "-".join(release.split(".")[:2])
    assert warned == (["cuda-driver-soft"] if mode == "minor" else [])


@pytest.mark.parametrize(
    ("gpu", "version", "driver", "system", "rule"),
    [
        (A100, "13.0", "570.211.01", "ubuntu2404", "cuda-driver-hard"),
        (A100, "12.8", "470.256.02", "ubuntu2404", "cuda-driver-hard"),
        (V100, "13.0", "580.95.05", "ubuntu2404", "cc-floor"),
        (B200, "12.6", "580.95.05", "ubuntu2404", "cuda-gpu-new"),
        (B300, "12.8", "580.95.05", "ubuntu2404", "cuda-gpu-new"),
        (H100, "11.7", "580.95.05", "ubuntu2404", "cuda-gpu-new"),
        (A100, "13.0", "580.95.05", "ubuntu2004", "os-cuda13-focal"),
        (A100, "12.8", "580.95.05", "debian13", "os-debian13-cuda12"),
        (A100, "13.1", "580.95.05", "ubuntu2604", "os-resolute-old"),
        (A100, "12.7", "580.95.05", "ubuntu2404", "cuda-unknown"),
        (A100, "cuda_13.1.0_525.85.12_linux.run", "580.95.05", "ubuntu2404", "runfile-name"),
        (A100, "cuda_99.run", "580.95.05", "ubuntu2404", "runfile-name"),
    ],
)
def test_refused(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpu: str,
    version: str,
    driver: str,
    system: str,
    rule: str,
) -> None:
    """What cannot work is refused by its rule."""
    _found, refused, _warned = decide(bench, gpu, {"version": version}, driver, system)
    assert refused == [rule]


@pytest.mark.parametrize(
    ("gpu", "driver", "allowed", "mode", "rules"),
    [
        (A100, "535.309.01", True, "forward", []),
        (A100, "535.309.01", False, None, ["cuda-driver-hard"]),
        (A100, "550.163.01", True, None, ["cuda-driver-hard"]),
        (RTX_4090, "535.309.01", True, None, ["cuda-driver-hard"]),
    ],
)
def test_forward_compatibility(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpu: str,
    driver: str,
    allowed: bool,  # noqa: FBT001 - a column of the table
    mode: str | None,
    rules: list[str],
) -> None:
    """On data-centre GPUs and listed branches only, and only where it is asked for (cuda-005)."""
    asked = {"version": "13.0", "forward_compatibility": allowed}
    found, refused, warned = decide(bench, gpu, asked, driver)
    assert refused == rules
    assert found is not None
    assert found["compatibility"] == mode
    assert ("fwd-compat" in warned) == (mode == "forward")
    names = [row["name"] for row in found["packages"]]
    assert ("cuda-compat-13-0" in names) == (mode == "forward")


def test_a_runfile_has_its_sum(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A runfile that exists is taken, with the sum that was published."""
    name = "cuda_12.8.1_570.124.06_linux.run"
    found, refused, _warned = decide(bench, A100, {"version": name}, "580.95.05")
    assert refused == []
    assert found is not None
    assert (found["version"], found["source"], found["runfile"]) == ("12.8.1", "runfile", name)
    assert found["runfile_sha256"].startswith("228f6bcaf5b7")


@pytest.mark.parametrize(
    ("gpu", "engine", "wanted"),
    [(H100, "sglang", True), (H100, "vllm", False), (A100, "sglang", False)],
)
def test_an_engine_that_compiles(bench: Any, gpu: str, engine: str, wanted: bool) -> None:  # noqa: ANN401, FBT001 - see conftest.py; a column
    """SGLang compiles FP8 kernels on Hopper and newer, so the host gets nvcc (bld-003)."""
    instance = {"name": "chat", "engine": engine, "model": "m"}
    model = {"name": "m", "source": {"type": "folder", "path": "/m"}}
    found, _refused, _warned = decide(
        bench, gpu, {}, "580.95.05", instances=[instance], models=[model]
    )
    assert (found is not None) is wanted
