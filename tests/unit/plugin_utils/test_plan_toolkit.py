# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit of a host: which one, how the driver serves it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    candidates,
    facts,
    plan_driver,
    plan_toolkit,
    planner,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings

MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}
A100, V100, H100, B200, B300, RTX_4090 = "20b2", "1db5", "2330", "2901", "3182", "2684"


def planned(  # noqa: PLR0913, PLR0917 - see decide
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpu: str,
    cuda: dict[str, Any],
    driver: str | None,
    system: str = "ubuntu2404",
    offered: dict[str, list[str]] | None = None,
    **variables: Any,  # noqa: ANN401 - any variable
) -> tuple[plan_toolkit.ToolkitPlan, Findings]:
    """The plan, from a package source unless the inventory says otherwise, and its findings."""
    findings = Findings("gpu-1", bench.compat)
    seen = facts.parse(bench.facts((gpu,) if gpu else (), os__key=system))
    request = bench.request(
        cuda={"repository": MIRROR, "runfile_mirror": "/srv/cuda", **cuda}, **variables
    )
    answers = None
    if offered is not None:
        rows = {name: [{"version": one} for one in versions] for name, versions in offered.items()}
        answers = {"packages": rows}
    plan = plan_toolkit.decide(
        request,
        seen,
        plan_driver.known_gpus(seen, bench.compat),
        candidates.parse(answers),
        compat=bench.compat,
        findings=findings,
        driver=driver,
        paths=planner.paths_of(request, seen),
    )
    return plan, findings


def decide(
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpu: str,
    cuda: dict[str, Any],
    driver: str | None,
    system: str = "ubuntu2404",
    **variables: Any,  # noqa: ANN401 - any variable
) -> tuple[dict[str, Any] | None, list[str], list[str]]:
    """The toolkit, and the rules that refuse and warn."""
    plan, findings = planned(bench, gpu, cuda, driver, system, **variables)
    refused = [finding.rule for finding in findings.refusals]
    return plan.toolkit, refused, [finding.rule for finding in findings.warnings]


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
        (H100, "11.7", "580.95.05", "ubuntu2204", "cuda-gpu-new"),
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


@pytest.mark.parametrize(
    ("version", "system", "rule"),
    [
        ("13.0", "ubuntu2004", "os-cuda13-focal"),
        ("12.8", "debian13", "os-debian13-cuda12"),
        ("13.1", "ubuntu2604", "os-resolute-old"),
    ],
)
def test_repository_of_another_system(bench: Any, version: str, system: str, rule: str) -> None:  # noqa: ANN401 - see conftest.py
    """Packages that NVIDIA has not for the system are refused where packages are asked for."""
    asked = {"version": version, "provider": "apt"}
    _found, refused, _warned = decide(bench, A100, asked, "580.95.05", system)
    assert refused == [rule]


NOWHERE: dict[str, Any] = {"repository": None, "runfile_mirror": None}


@pytest.mark.parametrize(
    ("cuda", "variables", "source", "refused", "warned"),
    [
        ({"version": "13.0"}, {}, "apt", [], []),
        ({"version": "13.0", **NOWHERE}, {}, "wheels", [], []),
        ({"version": "13.0", "provider": "wheels"}, {}, "wheels", [], []),
        ({"version": "12.9", "provider": "wheels"}, {}, "wheels", [], ["toolkit-no-nvcc"]),
        ({"version": "12.9", "repository": None}, {}, "runfile", [], []),
        ({"version": "12.9", **NOWHERE}, {}, None, ["toolkit-source"], []),
        ({"version": "13.0", "provider": "apt", **NOWHERE}, {}, None, ["toolkit-source"], []),
        ({"version": "12.8", "provider": "wheels"}, {}, None, ["toolkit-source"], []),
        ({"version": "13.5", "provider": "runfile"}, {}, None, ["toolkit-runfile"], []),
        (
            {"version": "13.0", "provider": "runfile", **NOWHERE},
            {},
            None,
            ["toolkit-runfile"],
            [],
        ),
        ({"version": "13.0"}, {"scope": "user"}, "wheels", [], []),
        ({"version": "13.0", "provider": "apt"}, {"scope": "user"}, None, ["toolkit-user"], []),
    ],
)
def test_provider(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    cuda: dict[str, Any],
    variables: dict[str, Any],
    source: str | None,
    refused: list[str],
    warned: list[str],
) -> None:
    """Packages, else wheels with nvcc, else a runfile; the ways are named where there is none."""
    asked = {key: value for key, value in {**cuda}.items() if value is not None}
    empty = {key for key, value in cuda.items() if value is None}
    findings = Findings("gpu-1", bench.compat)
    request = bench.request(
        cuda={
            **{
                key: value
                for key, value in {"repository": MIRROR, "runfile_mirror": "/srv/cuda"}.items()
                if key not in empty
            },
            **asked,
        },
        **({"root": "/home/admin/llmetal", **variables} if variables else {}),
    )
    seen = facts.parse(bench.facts((A100,)))
    plan = plan_toolkit.decide(
        request,
        seen,
        plan_driver.known_gpus(seen, bench.compat),
        candidates.parse({"packages": {"cuda-toolkit-13-0": [{"version": "13.0.3-1"}]}}),
        compat=bench.compat,
        findings=findings,
        driver="620.10.01",
        paths=planner.paths_of(request, seen),
    )
    assert [one.rule for one in findings.refusals] == refused
    assert [one.rule for one in findings.warnings] == warned
    assert (plan.toolkit or {}).get("source") == source


def test_exact_versions(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The package in the version that the source has; nothing is unresolved then."""
    offered = {"cuda-toolkit-13-0": ["13.0.2-1", "13.0.1-1"]}
    plan, findings = planned(bench, A100, {"version": "13.0"}, "580.95.05", offered=offered)
    assert plan.toolkit is not None
    assert plan.toolkit["packages"] == [{"name": "cuda-toolkit-13-0", "version": "13.0.2-1"}]
    assert (plan.toolkit["version"], plan.unresolved) == ("13.0.2", [])
    assert plan.toolkit["architectures"] == ["sm_80"]
    assert plan.toolkit["repository"]["fingerprint"] == MIRROR["fingerprint"]
    exact = {"version": "13.0.3", "provider": "apt"}
    _plan, findings = planned(bench, A100, exact, "580.95.05", offered=offered)
    assert [one.rule for one in findings.refusals] == ["toolkit-not-offered"]
    plan, _findings = planned(bench, A100, {"version": "13.0"}, "580.95.05")
    assert plan.unresolved == ["toolkit.packages.cuda-toolkit-13-0"]


def test_side_by_side(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Further releases beside the default one, a line only once; services use the first."""
    asked = {"version": "13.0", "also": ["12.9"], "provider": "wheels"}
    plan, _findings = planned(bench, A100, asked, "580.95.05")
    assert [(row["prefix"], row["default"]) for row in plan.all] == [
        ("/usr/local/cuda-13.0", True),
        ("/usr/local/cuda-12.9", False),
    ]
    assert plan.room == 1_770_000_000 + 2_460_000_000
    row: dict[str, Any] = {
        "device": "gpu",
        "environment": "vllm",
        "env": {"CUDA_HOME": "/mine"},
    }
    plan_toolkit.set_environment(plan, [row], {"environments": "/opt/e"})
    assert row["env"]["CUDA_HOME"] == "/mine"
    assert row["env"]["PATH"].startswith("/opt/e/vllm/current/bin:/usr/local/cuda-13.0/bin:/usr")
    twice = {"version": "13.0", "also": ["13.0.2"], "provider": "apt"}
    _plan, findings = planned(bench, A100, twice, "580.95.05")
    assert [one.rule for one in findings.refusals] == ["toolkit-twice"]


def test_host_compiler(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The nvcc of CUDA 12.4 takes g++ up to 13, Debian 13 has 14."""
    asked = {"version": "12.4.1", "provider": "runfile"}
    _plan, findings = planned(bench, A100, asked, "580.95.05", "debian13")
    assert [one.rule for one in findings.refusals] == ["cuda-host-compiler"]
    assert findings.refusals[0].fix == "take CUDA 12.8 or newer"


def test_room(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A disk that is too small is refused before anything is downloaded."""
    plan, findings = planned(bench, A100, {"version": "13.0", "provider": "wheels"}, "580.95.05")
    small = bench.facts((A100,), disks=[{"path": "/", "size_bytes": 9, "free_bytes": 10**9}])
    plan_toolkit.check_room(plan, facts.parse(small), "/opt/llmetal", findings)
    assert [one.rule for one in findings.refusals] == ["disk-room"]


def test_room_of_runfiles(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A runfile lies there, is unpacked and installed; what a receipt names is there already."""
    asked = {"version": "12.4.1", "provider": "runfile"}
    plan, _findings = planned(bench, A100, asked, "580.95.05")
    assert plan.toolkit is not None
    assert plan.room == 3 * (plan.toolkit["runfile_bytes"] or 0)
    wheels, _ = planned(bench, A100, {"version": "13.0", "provider": "wheels"}, "580.95.05")
    bare = facts.parse(bench.facts((A100,)))
    assert plan_toolkit.needs(wheels, bare, "/opt/llmetal") == {
        "/opt/llmetal/toolkits": 1_770_000_000
    }
    ready = facts.parse(bench.facts((A100,), receipts={"cuda_toolkit": {"valid": True}}))
    assert plan_toolkit.needs(wheels, ready, "/opt/llmetal") == {}


def test_question(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The resolve stage is asked for packages only where they come from a source."""
    for provider, names in (("apt", {"cuda-toolkit-13-0"}), ("wheels", set())):
        request = bench.request(
            cuda={"version": "13.0", "repository": MIRROR, "provider": provider}
        )
        question = planner.question(request, bench.facts((A100,)), bench.compat)
        assert {name for name in question.packages if "cuda" in name} == names
        assert question.toolkits is bool(names)
