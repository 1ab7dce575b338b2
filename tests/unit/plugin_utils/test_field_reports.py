# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every report from the field is a rule, or says why it is none; each rule fires on its report."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import facts as facts_
from ansible_collections.llmetal.inference.plugins.plugin_utils import plan_checks
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    Compat,
    load_compat,
    load_data,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import (
    Context,
    Engine,
    Instance,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "survey"
HEALTHY = json.loads((FIXTURES / "h200x2_debian12" / "facts.json").read_text())
REPORTS: dict[str, dict[str, Any]] = load_data("field_reports.yml")["reports"]
OWN = set(load_data("rules/host.yml"))
KERNEL = HEALTHY["kernel"]["running"]
OLD_KEY = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
UNREAD = {
    "drv-003": "its cause was inferred from a log",
    "drv-026": "its cause was inferred",
    "dl-005": "its cause was inferred from a log",
}

CHAT = Instance("chat", gpus=(0, 1), port=8000, start_timeout=600)
VLLM = Engine("vllm", "0.33.0", cuda_major=13, python="/usr/bin/python3.11")
SERVE = {"instances": (CHAT,), "engines": (VLLM,), "paths": {"root": "/opt/llmetal"}}
DRIVER = {
    "wants_driver": True,
    "driver_source": "cuda_repo",
    "driver_release": "580.178.04",
    "driver_modules": "open",
}
BOXED = {**SERVE, "container": True, "instances": (Instance("chat", gpus=(0,), port=8000),)}
MISMATCH = {
    "gpu.driver.loaded": "520.56.06",
    "gpu.driver.user_space": "525.85.12",
    "gpu.driver.on_disk": "520.56.06",
}
NOTHING_LOADED = {
    "gpu.driver.loaded": None,
    "gpu.driver.on_disk": None,
    "gpu.driver.user_space": "460.73.01",
}
LISTED = {
    "types": ["deb"],
    "uris": ["https://nvidia.github.io/libnvidia-container/stable/deb/amd64"],
    "suites": ["/"],
    "components": [],
}
CUDA_LIST = {
    "file": "/etc/apt/sources.list.d/cuda.list",
    "types": ["deb"],
    "uris": ["https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2004/x86_64"],
    "suites": ["/"],
    "components": [],
    "signed_by": None,
    "fingerprints": None,
}
LISTENER = {
    "address": "0.0.0.0",  # noqa: S104 - an address that was recorded
    "port": 8000,
    "uid": 1000,
    "process": {"pid": 99, "program": "/usr/bin/python3 app.py", "unit": None, "folder": "/srv"},
}
OTHER = {"pid": 4242, "program": "VLLM::EngineCore", "unit": None, "folder": "/home/a"}


def xid(number: int) -> list[dict[str, Any]]:
    """A kernel log with one Xid."""
    return [{"pci_address": "0000:00:06.0", "xid": number, "count": 2, "last": "NVRM: Xid"}]


# A report, a rule, what the survey sees there ("a.b": value, by index in lists), what is planned.
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("bld-003", "toolkit-missing", {"toolkits.found": [], "toolkits.nvcc": None},
     {"engines": (Engine("sglang", cuda_major=13),)}),
    ("bld-004", "nvcc-too-old",
     {"toolkits.nvcc": {"path": "/usr/bin/nvcc", "version": "11.5.119"}}, SERVE),
    ("bld-009", "python-headers", {"python.0.headers": False}, SERVE),
    ("bld-010", "c-compiler",
     {"toolkits.compilers": {"cc": None, "gcc": None, "clang": None}}, SERVE),
    ("ctr-001", "docker-gpu-runtime", {"container_toolkit.programs": []}, BOXED),
    ("ctr-001", "docker-gpu-runtime", {"docker.daemon.runtimes": ["runc"]}, BOXED),
    ("ctr-001", "daemon-json",
     {"docker.daemon_json": {"exists": True, "valid": False, "error": "Expecting value"}}, BOXED),
    ("ctr-002", "docker-snap", {"docker.kind": "snap", "docker.path": "/snap/bin/docker"}, BOXED),
    ("ctr-003", "docker-cgroup", {"container_toolkit.cdi": []}, BOXED),
    ("ctr-005", "driver-libraries-missing", {"libraries.libnvidia-ml": []}, BOXED),
    ("ctr-005", "docker-context", {"docker.context": "desktop-linux"}, BOXED),
    ("ctr-005", "docker-context", {"docker.daemon.kernel": "6.10.14-linuxkit"}, BOXED),
    ("ctr-007", "cdi-stale",
     {"container_toolkit.cdi.0.missing": 1,
      "container_toolkit.cdi.0.missing_first": ["/usr/lib/libnvidia-egl-wayland.so.1.1.13"]},
     BOXED),
    ("ctr-007", "cdi-stale", {"container_toolkit.cdi.0.version": "570.133.07"}, BOXED),
    ("cuda-002", "cuda-majors", {"toolkits.settings": []},
     {"engines": (Engine("vllm", cuda_major=13,
                         requirements=("torch==2.11.0", "nvidia-cuda-runtime-cu12==12.6.77")),)}),
    ("cuda-006", "ld-library-path",
     {"toolkits.settings": [{"file": "/etc/profile.d/cuda.sh", "name": "LD_LIBRARY_PATH",
                             "value": "/usr/local/cuda-12.1/lib64:"}]},
     {"engines": (Engine("vllm", requirements=("nvidia-cuda-runtime-cu12==12.4.127",)),)}),
    ("cuda-008", "cuda-majors", {},
     {"engines": (Engine("sglang", requirements=("sgl-kernel==0.4.4+cu124",
                                                 "torch==2.11.0+cu130")),)}),
    ("dl-005", "download-memory", {"limits.memory_limit_bytes": 2 << 30}, {"downloads": True}),
    ("drv-001", "headers-broken", {"kernel.headers.complete": False}, DRIVER),
    ("drv-002", "headers-broken",
     {"kernel.headers.build": False, "kernel.headers.complete": False}, DRIVER),
    ("drv-003", "dkms-kernel-pair", {"kernel.running": "6.8.12-1-pve"},
     {**DRIVER, "driver_release": "455.38", "driver_modules": "proprietary"}),
    ("drv-004", "kernel-module-mismatch", MISMATCH, SERVE),
    ("drv-004", "driver-libraries-twice",
     {"libraries.libnvidia-ml": ["520.56.06", "525.85.12"]}, SERVE),
    ("drv-005", "unattended-upgrades", {"held": []}, SERVE),
    ("drv-006", "operator-driver", {"platform.operator_driver": True}, DRIVER),
    ("drv-006", "unattended-upgrades", {"held": [], "platform.kubelet": True}, SERVE),
    ("drv-007", "run-file-driver", {"modules.installer": "/usr/bin/nvidia-uninstall"}, DRIVER),
    ("drv-007", "kernel-no-module", {**NOTHING_LOADED, "modules.kernels": []}, SERVE),
    ("drv-010", "apt-key-old", {"apt.sources": [CUDA_LIST], "apt.trusted": [OLD_KEY]}, DRIVER),
    ("drv-011", "source-conflict",
     {"apt.sources": [
         {**LISTED, "file": "/etc/apt/sources.list.d/nvidia-docker.list", "signed_by": None},
         {**LISTED, "file": "/etc/apt/sources.list.d/libnvidia-container.list",
          "signed_by": "/usr/share/keyrings/nvidia.gpg"}]}, {}),
    ("drv-012", "apt-proxy", {"apt.proxy": ["http://cache.example:3142"]},
     {**DRIVER, "source_uri": "http://mirror.example/cuda"}),
    ("drv-013", "apt-busy",
     {"apt.locked_by": [{"path": "/var/lib/dpkg/lock", "pid": 812, "program": "apt-get"}]}, {}),
    ("drv-013", "apt-busy", {"apt.cloud_init": "running"}, {}),
    ("drv-013", "apt-busy", {"services": {"apt-daily.service": {"active": "activating"}}}, {}),
    ("drv-016", "held-packages", {}, {"driver_packages": {"libcuda1": "580.178.04-1"}}),
    ("drv-021", "nouveau-returns", {"modules.kept_out.nouveau": []}, SERVE),
    ("drv-021", "nouveau-bound", {"gpu.gpus.0.kernel_driver": "nouveau"}, DRIVER),
    ("drv-022", "nouveau-bound", {"gpu.gpus.0.kernel_driver": "nova_core"}, DRIVER),
    ("drv-022", "nouveau-holds-gpu", {"gpu.gpus.0.kernel_driver": "nouveau"}, SERVE),
    ("drv-025", "kernel-no-module",
     {**NOTHING_LOADED, "modules.kernels": ["3.13.0-115-generic"], "modules.dkms": [],
      "modules.installer": "/usr/bin/nvidia-uninstall"}, SERVE),
    ("drv-026", "dkms-kernel-pair",
     {"kernel.running": "6.1.0-18-cloud-amd64",
      "packages": {"linux-image-6.1.0-18-cloud-amd64": "6.1.76-1"}},
     {**DRIVER, "driver_release": "525.125.06", "driver_modules": "proprietary"}),
    ("drv-032", "dkms-kernel-pair", {"kernel.running": "6.8.0-1021-azure"},
     {**DRIVER, "driver_release": "535.161.08", "driver_modules": "proprietary"}),
    ("drv-034", "headers-broken", {"kernel.headers.complete": False}, DRIVER),
    ("fab-006", "fabric-not-completed",
     {"gpu.gpus.1.fabric": {"state": "In Progress", "status": None}}, SERVE),
    ("fab-007", "gpu-lost", {"gpu.gpus.1.source": "pci"}, SERVE),
    ("fab-007", "gpu-count", {"gpu.gpus.1.source": "pci"}, {}),
    ("ml-002", "gpu-memory-used",
     {"gpu_health.0.memory_used_mib": 120000, "gpu_health.0.processes": [OTHER]}, SERVE),
    ("ml-009", "shm-small", {"limits.shm_bytes": 64 << 20, "limits.infiniband": []},
     {**BOXED, **SERVE}),
    ("ml-015", "iommu-acs",
     {"gpu.gpus.0.nvlink_state": "none", "gpu_health.0.acs": True}, SERVE),
    ("ml-015", "iommu-acs",
     {"gpu.gpus.0.nvlink_state": "none", "iommu.types": ["DMA-FQ"]}, SERVE),
    ("mn-006", "memlock", {"limits.memlock_hard_bytes": 8388608}, {**SERVE, "scope": "user"}),
    ("mn-006", "memlock", {}, {**BOXED, **SERVE}),
    ("obs-001", "mig-on", {"gpu.gpus.0.mig.current": True}, SERVE),
    ("obs-002", "gpu-sick", {"gpu_health.0.sick": ["power_draw"]}, {}),
    ("obs-006", "tmp-not-local", {"limits.tmp_file_system": "nfs4"}, SERVE),
    ("srv-001", "start-timeout", {},
     {"instances": (Instance("chat", load_seconds=300, start_timeout=90),)}),
    ("srv-002", "path-read-only", {"disks.1.read_only": True}, SERVE),
    ("srv-003", "port-in-use", {"ports": [LISTENER]}, SERVE),
    ("srv-004", "port-twice", {}, {"instances": (CHAT, Instance("other", port=8000))}),
    ("xid-001", "row-remap-pending", {"gpu.gpus.0.row_remap.pending": True}, {}),
    ("xid-001", "row-remap-pending", {"gpu_health.1.retirement_pending": True}, {}),
    ("xid-001", "gpu-memory-faults", {"gpu.gpus.0.row_remap.failure": True}, {}),
    ("xid-001", "gpu-memory-faults", {"gpu.gpus.0.ecc.volatile_uncorrected": 3}, {}),
    ("xid-001", "xid-history", {"kernel_log.xids": xid(94)}, {}),
    ("xid-003", "xid-history", {"kernel_log.xids": xid(79)}, {}),
    ("xid-003", "pcie-degraded", {"gpu_health.0.link.width": 4}, {}),
    ("xid-003", "pcie-degraded", {"gpu_health.0.aer_nonfatal": 7}, {}),
]  # fmt: skip


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The healthy host, but for some facts."""
    facts: dict[str, Any] = copy.deepcopy(HEALTHY)
    for path, value in changes.items():
        *keys, last = path.split(".")
        inner: Any = facts
        for key in keys:
            inner = inner[int(key) if key.isdigit() else key]
        inner[last] = value
    return facts


def look(facts: dict[str, Any], planned: dict[str, Any], compat: Compat) -> Findings:
    """What stands against a plan."""
    findings = Findings("gpu-1", compat)
    plan_checks.check(Context(facts_.parse(facts), **planned), findings)
    return findings


def found(findings: Findings) -> set[str]:
    """The rules under which something was found."""
    return {finding.rule for finding in (*findings.refusals, *findings.warnings)}


@pytest.mark.parametrize(
    ("report", "rule", "seen", "planned"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{n}") for n, case in enumerate(CASES)],
)
def test_report(
    report: str, rule: str, seen: dict[str, Any], planned: dict[str, Any], compat: Compat
) -> None:
    """A host as in the report breaks the rule, and no other one."""
    row = REPORTS[report]
    assert rule in {row["rule"], *row.get("also", [])}
    findings = look(changed(seen), planned, compat)
    assert found(findings) == {rule}
    (finding,) = (*findings.refusals, *findings.warnings)
    assert finding.fact
    assert finding.fix
    assert report not in UNREAD or not findings.refusals


PLANS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "serve": SERVE,
    "driver": {**DRIVER, **SERVE},
    "containers": BOXED,
    "user": {**SERVE, "scope": "user"},
    "downloads": {**SERVE, "downloads": True, "model_bytes": 1 << 40},
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_healthy_host_breaks_no_rule(plan: str, compat: Compat) -> None:
    """Whatever is planned."""
    findings = look(HEALTHY, PLANS[plan], compat)
    assert found(findings) == set(), [f.fact for f in findings.refusals + findings.warnings]


def test_every_own_rule_has_a_case() -> None:
    """A rule of the host that no case breaks would be one that nobody has seen work."""
    assert OWN - {case[1] for case in CASES} == {"gpu-other-driver"}


@pytest.mark.parametrize("report", REPORTS)
def test_every_report_has_an_answer(report: str) -> None:
    """A rule, or the reason why there is none; and where it was read."""
    row = REPORTS[report]
    assert ("rule" in row) != ("not_a_rule" in row)
    assert row["kind"]
    assert row["evidence"]
    assert row["where"] == load_compat().sources[report]["where"]
    assert {row.get("rule"), *row.get("also", [])} - {None} <= set(load_compat().rules)


def test_every_own_report_of_the_data_is_one_of_the_cases() -> None:
    """A report that names a rule of the host is shown by a case."""
    shown = {case[0] for case in CASES}
    named = {name for name, row in REPORTS.items() if {row.get("rule")} & OWN}
    assert named <= shown


def test_an_inferred_cause_only_warns(compat: Compat) -> None:
    """Its evidence is unverified, so a rule of its own cannot refuse."""
    for report in UNREAD:
        assert compat.sources[report]["evidence"] == "unverified"
