# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a host beyond the reports: its own services, unknown facts, nonsense."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    checks_driver,
    plan_checks,
    requirements,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import facts as facts_
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import (
    Context,
    Engine,
    Instance,
)
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat

HEALTHY = json.loads(
    (Path(__file__).parents[2] / "fixtures/survey/h200x2_debian12/facts.json").read_text()
)
CHAT = Instance("chat", gpus=(0, 1), port=8000, load_seconds=60, start_timeout=600)
PATHS = {"cache": "/var/cache/llmetal", "environments": "/opt/llmetal/environments"}
SERVE: dict[str, Any] = {
    "instances": (CHAT,),
    "engines": (Engine("vllm", cuda_major=13, python="/usr/bin/python3.11"),),
    "paths": PATHS,
}
EVERYTHING: dict[str, Any] = {
    **SERVE,
    "container": True,
    "downloads": True,
    "driver_release": "525.60.13",
    "driver_modules": "proprietary",
    "driver_packages": {"libcuda1": "525.60.13-1"},
    "source_uri": "http://mirror.example/cuda",
}


def found(facts: dict[str, Any], compat: Compat, **planned: Any) -> list[str]:  # noqa: ANN401 - any plan
    """The rules under which something was found."""
    findings = Findings("gpu-1", compat)
    plan_checks.check(Context(facts_.parse(facts), **planned), findings)
    return [finding.rule for finding in (*findings.refusals, *findings.warnings)]


def listening(address: str, process: dict[str, Any] | None) -> dict[str, Any]:
    """The healthy host with a listener on port 8000."""
    row = {"address": address, "port": 8000, "uid": 998, "process": process}
    return {**copy.deepcopy(HEALTHY), "ports": [row]}


def process(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - any value
    """A process as the survey describes it."""
    return {"pid": 9, "program": "python3", "unit": None, "folder": "/", **values}


@pytest.mark.parametrize(
    "own",
    [
        {"unit": "llmetal-chat.service"},
        {"folder": "/var/cache/llmetal/engines/chat"},
        {"program": "/opt/llmetal/environments/vllm/bin/python"},
    ],
)
def test_an_own_instance_is_no_stranger(compat: Compat, own: dict[str, Any]) -> None:
    """It holds its port and its GPUs because an earlier run started it."""
    holder = process(**own)
    facts = listening("127.0.0.1", holder)
    for health in facts["gpu_health"]:
        health.update(memory_used_mib=130000, processes=[holder])
    assert found(facts, compat, **SERVE) == []


def test_an_owner_that_cannot_be_read(compat: Compat) -> None:
    """Without root it may be our own service, where that runs."""
    facts = listening("127.0.0.1", None)
    assert found(facts, compat, **SERVE) == ["port-in-use"]
    facts["services"]["llmetal-chat.service"] = {"active": "active", "enabled": "enabled"}
    assert found(facts, compat, **SERVE) == []


@pytest.mark.parametrize(
    ("wanted", "taken", "excluded"),
    [
        ("127.0.0.1", "0.0.0.0", True),  # noqa: S104 - the address of any interface
        ("0.0.0.0", "127.0.0.1", True),  # noqa: S104 - likewise
        ("127.0.0.1", "::", True),
        ("::", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "192.0.2.7", False),
        ("0.0.0.0", "::1", False),  # noqa: S104 - likewise
        ("gpu-1.example", "127.0.0.1", False),
    ],
)
def test_ports_by_address(compat: Compat, wanted: str, taken: str, excluded: bool) -> None:  # noqa: FBT001 - a column
    """Two sockets can have one port on two addresses."""
    facts = listening(taken, process())
    one = Instance("chat", host=wanted, port=8000)
    assert found(facts, compat, instances=(one,)) == (["port-in-use"] if excluded else [])


def test_packages_that_llmetal_holds(compat: Compat) -> None:
    """A hold of the driver role is lifted by the driver role."""
    facts = copy.deepcopy(HEALTHY)
    planned = {"wants_driver": True, "driver_packages": {"libcuda1": "580.178.04-1"}}
    assert found(facts, compat, **planned) == ["held-packages"]
    facts["receipts"] = {"nvidia_driver": {"packages": {"libcuda1": "580.159.04-1"}}}
    assert found(facts, compat, **planned) == []


def test_a_source_that_is_declared_already(compat: Compat) -> None:
    """With the same key it serves as well; with none or another one apt refuses."""
    facts = copy.deepcopy(HEALTHY)
    entry = facts["apt"]["sources"][-1]
    entry["file"] = "/etc/apt/sources.list.d/cuda.list"
    planned: dict[str, Any] = {
        "wants_driver": True,
        "source_uri": "http://mirror.example/cuda/",
        "source_suite": "./",
        "source_fingerprint": entry["fingerprints"][0],
    }
    assert found(facts, compat, **planned) == []
    entry.update(signed_by=None, fingerprints=None)
    assert found(facts, compat, **planned) == ["source-conflict"]
    entry["file"] = "/etc/apt/sources.list.d/llmetal-nvidia.sources"
    assert found(facts, compat, **planned) == []


def test_a_gpu_of_a_virtual_machine(compat: Compat) -> None:
    """A GPU that is passed on computes nothing here; one that nobody uses is no matter."""
    facts = copy.deepcopy(HEALTHY)
    facts["gpu"]["gpus"][1].update(kernel_driver="vfio-pci", source="pci")
    assert found(facts, compat, **SERVE) == ["gpu-other-driver"]
    assert found(facts, compat, instances=(Instance("chat", gpus=(0,)),)) == []


def test_what_a_driver_run_mends_is_no_refusal(compat: Compat) -> None:
    """Module and libraries of two versions, and no module, are what such a run is for."""
    facts = copy.deepcopy(HEALTHY)
    facts["gpu"]["driver"]["user_space"] = "580.178.04"
    facts["gpu"]["gpus"][0]["fabric"] = {"state": "Not Started", "status": None}
    assert found(facts, compat, **SERVE) == ["kernel-module-mismatch", "fabric-not-completed"]
    assert found(facts, compat, wants_driver=True, **SERVE) == []


def test_memory_that_leaves_room(compat: Compat) -> None:
    """A stranger on a GPU is one too many only where an engine's part does not fit."""
    facts = copy.deepcopy(HEALTHY)
    facts["gpu_health"][0].update(memory_used_mib=40000, processes=[process()])
    assert found(facts, compat, instances=(CHAT,)) == ["gpu-memory-used"]
    small = Instance("chat", gpus=(0,), memory_fraction=0.5)
    assert found(facts, compat, instances=(small,)) == []


@pytest.mark.parametrize(
    ("running", "package", "version"),
    [
        ("6.1.0-18-amd64", "6.1.76-1", "6.1.76"),
        ("6.8.0-1021-azure", "6.8.0-1021.25", "6.8.0"),
        ("6.8.12-1-pve", None, "6.8.12"),
    ],
)
def test_kernel_version(running: str, package: str | None, version: str) -> None:
    """The kernel's own version, not the name of its interface."""
    packages = {f"linux-image-{running}": package} if package else {}
    assert checks_driver.kernel_version(running, packages) == version


def test_open_modules_avoid_a_pair(compat: Compat) -> None:
    """Exports to GPL modules only do not matter to the open modules."""
    facts = copy.deepcopy(HEALTHY)
    facts["kernel"]["running"] = "6.8.0-31-generic"
    planned = {"wants_driver": True, "driver_release": "535.161.08"}
    closed = found(facts, compat, driver_modules="proprietary", **planned)
    assert closed == ["dkms-kernel-pair"]
    assert found(facts, compat, driver_modules="open", **planned) == []


def test_python_headers_that_the_run_brings(compat: Compat) -> None:
    """The distribution's package brings those of its own Python, not of another one."""
    facts = copy.deepcopy(HEALTHY)
    facts["python"] = [
        {"path": f"{folder}/python3.11", "version": "3.11.2", "headers": False}
        for folder in ("/usr/bin", "/usr/local/bin")
    ]
    brought = ("gcc", "python3-dev")
    ours = {"engines": (Engine("vllm", python="/usr/bin/python3.11"),)}
    other = {"engines": (Engine("vllm", python="/usr/local/bin/python3.11"),)}
    assert found(facts, compat, **ours) == ["python-headers"]
    assert found(facts, compat, packages=brought, **ours) == []
    assert found(facts, compat, packages=brought, **other) == ["python-headers"]


def test_the_locked_environments_are_of_one_cuda(compat: Compat) -> None:
    """What llmetal installs itself breaks no rule about CUDA majors."""
    seen = 0
    for name in compat.engines:
        for release in compat.releases(name):
            if release.device != "gpu" or not release.requirements:
                continue
            rows = requirements.for_python(release.requirements, "3.12.3", "x86_64")
            needs = tuple(f"{row.name}=={row.version}" for row in rows)
            engine = Engine(name, cuda_major=release.cuda_major, requirements=needs)
            assert found(HEALTHY, compat, engines=(engine,)) == []
            seen += 1
    assert seen or not any(r.device == "gpu" for n in compat.engines for r in compat.releases(n))


@pytest.mark.parametrize("wants_driver", [False, True])
def test_an_old_survey_is_unknown_not_fine_or_wrong(
    bench: Any,  # noqa: ANN401 - see conftest.py
    compat: Compat,
    wants_driver: bool,  # noqa: FBT001 - a column
) -> None:
    """A recording without the new facts, and a survey that could read nothing, say nothing."""
    facts = bench.facts(gpus=("2335", "2335"))
    planned = {**EVERYTHING, "driver_release": None, "wants_driver": wants_driver}
    assert found(facts, compat, **planned) == []
    facts |= dict.fromkeys(set(HEALTHY) - set(facts))
    assert found(facts, compat, **planned) == []


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NEEDED = {
    "os", "arch", "kernel", "memory_bytes", "disks", "packages", "gpu", "python", "platform",
    "user",
}  # fmt: skip
PLACES = [
    (key, inner)
    for key, value in HEALTHY.items()
    if key not in {"broken", "cpu_flags", "receipts", "services", "ubuntu_drivers"}
    for inner in (value if isinstance(value, dict) else [None])
    if key not in NEEDED
]


@settings(max_examples=150, deadline=None)
@given(place=st.sampled_from(PLACES), junk=JUNK)
def test_no_fact_makes_a_check_raise(
    compat: Compat, place: tuple[str, str | None], junk: object
) -> None:
    """Whatever stands where a fact should be."""
    facts = copy.deepcopy(HEALTHY)
    key, inner = place
    if inner is None:
        facts[key] = junk
    else:
        facts[key][inner] = junk
    found(facts, compat, **EVERYTHING)
    found(facts, compat, wants_driver=True, **EVERYTHING)


OLD_KEY = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
NVIDIA = "https://developer.download.nvidia.com/compute"


def declared(file: str, path: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """A declaration of a repository of NVIDIA's, as the survey saw it."""
    entry = {
        "file": f"/etc/apt/sources.list.d/{file}",
        "types": ["deb"],
        "uris": [f"{NVIDIA}/{path}/repos/ubuntu2004/x86_64"],
        "suites": ["/"],
        "components": [],
        "signed_by": None,
        "fingerprints": None,
    }
    return {**entry, **changes}


def said(facts: dict[str, Any], compat: Compat, rule: str) -> str:
    """What is found under a rule on a host that gets a driver."""
    findings = Findings("gpu-1", compat)
    driver = Context(facts_.parse(facts), driver_packages={"libcuda1": "1"}, source_uri="http://m")
    plan_checks.check(driver, findings)
    (one,) = [f for f in (*findings.refusals, *findings.warnings) if f.rule == rule]
    return f"{one.fact} | {one.fix}"


def test_old_declarations_and_their_key_are_named(compat: Compat) -> None:
    """All files that are checked with NVIDIA's key of before 2022, and where that lies."""
    facts = copy.deepcopy(HEALTHY)
    old = [declared("cuda.list", "cuda"), declared("nvidia-ml.list", "machine-learning")]
    facts["apt"]["sources"], facts["apt"]["trusted"] = old, [OLD_KEY]
    text = said(facts, compat, "apt-key-old")
    for words in ("cuda.list and ", "nvidia-ml.list", "7FA2AF80", "trusted.gpg.d", "delete"):
        assert words in text
    own = declared("cuda.list", "cuda", signed_by="/usr/share/k.gpg", fingerprints=[OLD_KEY])
    facts["apt"]["sources"], facts["apt"]["trusted"] = [own], []
    text = said(facts, compat, "apt-key-old")
    assert "cuda.list" in text
    assert "trusted.gpg" not in text


def test_two_keys_that_stand_in_declarations(compat: Compat) -> None:
    """Keys that stand in the files are told apart by their fingerprints."""
    facts = copy.deepcopy(HEALTHY)
    keys = [{"signed_by": "(embedded)", "fingerprints": [letter * 40]} for letter in "AB"]
    one = declared("a.sources", "cuda", **keys[0])
    facts["apt"]["sources"] = [one, declared("b.sources", "cuda", **keys[1])]
    text = said(facts, compat, "source-conflict")
    assert "a.sources and " in text
    assert "b.sources" in text
    facts["apt"]["sources"][1]["fingerprints"] = keys[0]["fingerprints"]
    assert "source-conflict" not in found(facts, compat, source_uri="http://m")
