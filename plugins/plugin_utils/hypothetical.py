# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan hardware that nobody has yet: a question made into a request and facts.

The facts say what the question says, and nothing else: what it leaves open is unknown, never
assumed, and the fields of the lock that depend on it are null and named in `unresolved`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import candidates, planner
from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
    BuildRequest,
    CudaRequest,
    DriverRequest,
    HostRequest,
    InstanceRequest,
    ModelRequest,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import branch_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Finding
    from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata

HOST = "planned"
"""The name of a planned host."""

_GB = 10**9
_INSTANCE = "planned"
_PORT = {"vllm": 8000, "sglang": 30000}
_SWITCH_BOARD = 8
"""GPUs on a board that NVSwitches join."""


@dataclass(frozen=True)
class Hardware:
    """A question about hardware: GPUs and system by their keys in the data."""

    gpus: tuple[str, ...]
    """One key a GPU."""
    os: str
    driver: str | None = None
    """A branch or a release."""
    cuda: str | None = None
    ram_gb: float | None = None
    disk_gb: float | None = None
    engine: str = "vllm"
    engine_version: str | None = None
    model: str | None = None
    """What the model is called; its metadata is handed over beside the question."""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    expert_parallel: bool | None = None
    context: int | None = None
    concurrency: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    engine_only: bool = False
    """Whether the engine is asked about without a model."""


def plan(
    hardware: Hardware,
    model: Metadata | None,
    compat: Compat,
    model_error: LlmetalError | None = None,
) -> planner.Plan:
    """Plan a question.

    Args:
        hardware: the question.
        model: the model's metadata; None where the question names none, or it cannot be read.
        compat: the compatibility data.
        model_error: why the model cannot be read.
    """
    answers: dict[str, Any] = {"models": {}}
    if model_error is not None:
        answers["models"][model_name(hardware)] = candidates.of_error(model_error)
    elif model is not None:
        answers["models"][model_name(hardware)] = candidates.of_metadata(model)
    found = planner.plan_host(request_of(hardware), facts_of(hardware, compat), answers, compat)
    refusals = tuple(_with_words(finding) for finding in found.refusals)
    return replace(found, refusals=refusals)


def _with_words(finding: Finding) -> Finding:
    """A refusal whose fix says how to ask for it."""
    words = " ".join(_word(name, value) for name, value in sorted(finding.relax.items()))
    return replace(finding, fix=f"{finding.fix} [{words}]") if words else finding


def _word(name: str, value: object) -> str:
    """A change of a question as its command line has it."""
    option = f"--{name.replace('_', '-')}"
    if name == "gpus" and isinstance(value, list | tuple):
        kinds = dict.fromkeys(map(str, value))
        return f"{option} " + ",".join(f"{list(value).count(one)}x{one}" for one in kinds)
    if name == "options" and isinstance(value, dict):
        pairs = [f"--engine-option {key}={one}" for key, one in sorted(value.items())]
        return " ".join(pairs) or "without --engine-option"
    if name == "engine_version":
        return "without a release" if value is None else f"=={value}"
    if value is None or value is False:
        return f"without {option}"
    return option if value is True else f"{option} {value}"


def request_of(hardware: Hardware) -> HostRequest:
    """What an inventory with this question would ask of its host."""
    driver = hardware.driver
    instances: tuple[InstanceRequest, ...] = ()
    if hardware.model is not None or hardware.engine_only:
        instances = (
            InstanceRequest(
                name=_INSTANCE,
                engine=hardware.engine,
                model=model_name(hardware),
                engine_version=hardware.engine_version,
                port=_PORT.get(hardware.engine, 8000),
                context=hardware.context,
                concurrency=hardware.concurrency,
                tensor_parallel=hardware.tensor_parallel,
                pipeline_parallel=hardware.pipeline_parallel,
                data_parallel=hardware.data_parallel,
                expert_parallel=hardware.expert_parallel,
                options=dict(hardware.options),
            ),
        )
    models: tuple[ModelRequest, ...] = ()
    if hardware.model is not None:
        models = (ModelRequest(model_name(hardware), "folder", hardware.model),)
    return HostRequest(
        name=HOST,
        groups=("gpu",),
        driver=DriverRequest(
            source="auto",
            branch=branch_of(driver) if driver else None,
            version=driver if driver and "." in driver else None,
        ),
        cuda=CudaRequest(version=hardware.cuda),
        build=BuildRequest(),
        models=models,
        instances=instances,
        hypothetical=True,
        engine_only=hardware.model is None,
    )


def model_name(hardware: Hardware) -> str:
    """What the model is called in the plan: the last part of its folder or repository."""
    last = (hardware.model or "").rstrip("/").rpartition("/")[2].partition("@")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "-", last).strip("-.") or "model"


def facts_of(hardware: Hardware, compat: Compat) -> dict[str, Any]:
    """What a survey of such a host would see, as far as the question says it."""
    system = compat.systems.get(hardware.os, {})
    disks = []
    if hardware.disk_gb is not None:
        room = int(hardware.disk_gb * _GB)
        disks = [{"path": "/", "size_bytes": room, "free_bytes": room}]
    python = system.get("python")
    return {
        "schema": 1,
        "os": {"key": hardware.os, "pretty": f"{hardware.os} ({system.get('codename', '?')})"},
        "arch": _machine(hardware, compat),
        "kernel": {"running": "", "headers": None, "compiler": None, "secure_boot": "unknown"},
        "memory_bytes": int((hardware.ram_gb or 0) * _GB),
        "cpu_flags": ["avx2"],
        "disks": disks,
        "packages": {},
        "gpu": {
            "gpus": [_gpu(index, key, compat) for index, key in enumerate(hardware.gpus)],
            "switches": _switches(hardware, compat),
            "driver": {"loaded": None},
        },
        "python": [{"path": f"/usr/bin/python{python}", "version": python}] if python else [],
        "platform": {"systemd": True, "virtualization": None},
        "user": {"name": "root", "home": "/root"},
    }


def _gpu(index: int, key: str, compat: Compat) -> dict[str, Any]:
    row = compat.gpus[key]
    # Of several ids, that of the board which is listed longest by the open kernel modules.
    ids = [str(one) for one in row["pci_ids"]]
    device = max(ids, key=lambda one: len(compat.devices.get(one, {}).get("open") or {}))
    return {
        "index": index,
        "pci_address": f"0000:{index + 1:02x}:00.0",
        "device_id": device,
        "name": str(row["model"]),
    }


def _switches(hardware: Hardware, compat: Compat) -> list[dict[str, Any]]:
    """The switches of boards with eight GPUs of a kind that switches join."""
    found: list[dict[str, Any]] = []
    for key in dict.fromkeys(hardware.gpus):
        row = compat.gpus[key]
        boards = hardware.gpus.count(key) // _SWITCH_BOARD
        if row["fabric_manager"] != "required_if_nvswitch" or not boards:
            continue
        for device, switch in compat.switches.items():
            if switch.get("joins") == row["arch"]:
                count = boards * int(switch.get("per_board", 1))
                found += [{"device_id": device}] * count
    return [{"pci_address": f"0000:{0xC0 + n:02x}:00.0", **row} for n, row in enumerate(found)]


def _machine(hardware: Hardware, compat: Compat) -> str:
    """The processor's architecture: that of the superchips, or x86_64."""
    arm = any("aarch64" in str(compat.gpus[key].get("host_arch", "")) for key in hardware.gpus)
    return "aarch64" if arm else "x86_64"
