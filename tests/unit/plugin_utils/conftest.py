# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's facts, request and candidates, as survey, inventory and resolve give them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import request as request_
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, load_compat
from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan, plan_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.lock import Lock

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"
MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}
CUDA_REPO = {"source": "cuda_repo", "mirror": MIRROR}
CPU_CHAT = {"name": "chat", "engine": "vllm", "model": "smollm2", "device": "cpu", "context": 2048}
SMOLLM2 = {"name": "smollm2", "source": {"type": "folder", "path": "/srv/models/smollm2"}}
RELEASES = ("595.91.07-1", "580.178.04-1", "580.159.04-1", "570.211.01-1")
KERNEL = "6.1.0-41-amd64"


def make_facts(gpus: tuple[str, ...] = (), switches: int = 0, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any fact
    """The survey of a Debian 12 host without a driver.

    Args:
        gpus: the PCI device id of each GPU.
        switches: how many NVSwitches it has.
        changes: facts that differ, by key; `kernel__running` stands for one inside `kernel`.
    """
    facts: dict[str, Any] = {
        "schema": 1,
        "os": {"id": "debian", "key": "debian12", "pretty": "Debian GNU/Linux 12 (bookworm)"},
        "arch": "x86_64",
        "kernel": {
            "running": KERNEL,
            "headers": {
                "package": f"linux-headers-{KERNEL}",
                "installed": False,
                "version": None,
            },
            "compiler": None,
            "secure_boot": "disabled",
        },
        "memory_bytes": 64 << 30,
        "cpu_flags": ["avx2", "avx512f"],
        "disks": [{"path": "/", "size_bytes": 500 << 30, "free_bytes": 400 << 30}],
        "packages": {},
        "broken": [],
        "apt": {"sources": []},
        "gpu": {
            "gpus": [
                {
                    "index": None,
                    "pci_address": f"0000:{number:02x}:00.0",
                    "device_id": device,
                    "name": device,
                }
                for number, device in enumerate(gpus, start=1)
            ],
            "switches": [
                {"pci_address": f"0000:c{number}:00.0", "device_id": "1af1"}
                for number in range(switches)
            ],
            "driver": {"loaded": None},
        },
        "python": [{"path": "/usr/bin/python3.11", "version": "3.11.2"}],
        "receipts": {},
        "services": {},
        "platform": {
            "wsl": False,
            "dgx": False,
            "jetson": False,
            "virtualization": None,
            "systemd": True,
            "systemd_user": False,
        },
        "user": {"name": "admin", "uid": 1000, "home": "/home/admin"},
    }
    for name, value in changes.items():
        *path, last = name.split("__")
        inner = facts
        for part in path:
            inner = inner[part]
        inner[last] = value
    return facts


def make_request(*groups: str, **variables: Any) -> request_.HostRequest:  # noqa: ANN401 - any variable
    """What an inventory asks of host `gpu-1`; variables without their `llmetal_` in front."""
    named = {f"llmetal_{name}": value for name, value in variables.items()}
    return request_.from_variables("gpu-1", groups or ("gpu",), named, lambda _name: KEY)


def make_candidates(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any answer
    """What a package source with four releases answers, and a model folder."""
    driver = [
        "nvidia-kernel-open-dkms",
        "nvidia-kernel-dkms",
        "libcuda1",
        "libnvidia-ml1",
        "nvidia-driver-cuda",
        "nvidia-persistenced",
        "nvidia-fabricmanager",
        "nvlsm",
        "libnvsdm",
    ]
    packages = {name: list(RELEASES) for name in driver}
    packages |= {
        "nvidia-driver-pinning-580.178.04": ["580.178.04-1"],
        f"linux-headers-{KERNEL}": ["6.1.158-1"],
        "gcc": ["4:12.2.0-3"],
        "libibumad3": ["44.0-2"],
        "infiniband-diags": ["44.0-2"],
    }
    packages |= changes.pop("packages", {})
    answer = {
        "packages": {
            name: [{"version": version, "origin": "mirror"} for version in versions]
            for name, versions in packages.items()
        },
        "models": {
            "smollm2": {
                "revision": "ab" * 32,
                "files": [
                    {"path": "config.json", "size": 700, "sha256": "cd" * 32},
                    {"path": "tokenizer.json", "size": 900, "sha256": "ef" * 32},
                ],
                "architectures": ["LlamaForCausalLM"],
                "config": {
                    "num_hidden_layers": 30,
                    "num_attention_heads": 9,
                    "num_key_value_heads": 3,
                    "hidden_size": 576,
                    "max_position_embeddings": 8192,
                },
            }
        },
    }
    return copy.deepcopy({**answer, **changes})


class Bench:
    """Makes what a plan is made from, and plans."""

    facts = staticmethod(make_facts)
    request = staticmethod(make_request)
    candidates = staticmethod(make_candidates)

    def __init__(self, compat: Compat) -> None:
        """Plan with this compatibility data."""
        self.compat = compat

    def plan(
        self,
        variables: Mapping[str, Any],
        *,
        candidates: Mapping[str, Any] | None = None,
        existing: Lock | None = None,
        **facts: Any,  # noqa: ANN401 - any fact
    ) -> Plan:
        """Plan a host whose inventory, facts and candidates are given in part."""
        answers = make_candidates() if candidates is None else candidates
        request = make_request(**variables)
        return plan_host(request, make_facts(**facts), answers, self.compat, existing)


@pytest.fixture(scope="session")
def compat() -> Compat:
    """The compatibility data."""
    return load_compat()


@pytest.fixture(scope="session")
def bench(compat: Compat) -> Bench:
    """Makes facts, requests, candidates and plans."""
    return Bench(compat)


@pytest.fixture
def a100_plan(bench: Bench) -> Plan:
    """Eight A100 behind NVSwitches, and an engine on the CPU, as in the sandbox."""
    asked = {"driver": CUDA_REPO, "models": [SMOLLM2], "instances": [CPU_CHAT]}
    return bench.plan(asked, gpus=("20b2",) * 8, switches=6)
