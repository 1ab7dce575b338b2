# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the planner to the proof: what is planned of each simulated machine is found there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import gpu, health, pci
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.driver_state import DriverState
from ansible_collections.llmetal.inference.plugins.module_utils.finding import Answer, Wanted
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import smi
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.scenario import (
    Scenario,
    load_scenario,
    names,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import facts, plan_nvlink, xids

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.finding import Seen

FILES = Path(__file__).parents[3] / "roles/sandbox/files"
PASSED = FILES / "recordings/h200_passthrough"
XML = re.sub(
    r"<supported_clocks>.*?</supported_clocks>",
    "",
    (PASSED / "nvidia-smi_q_x.xml").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)
TEXT = (PASSED / "nvidia-smi_q.txt").read_text(encoding="utf-8")
SCENARIOS = names(FILES / "scenarios")
VIRTUAL = {"h200_passthrough": "kvm", "h200x2_nvswitch_vm": "kvm"}
RELEASE = "580.159.04"
WORDS = {
    "DRIVER": RELEASE,
    "CUDA": "13.0",
    "PERSISTENCE": "Enabled",
    "TIMESTAMP": "Mon Nov 30 17:06:56 2026",
    "FABRIC_STATE": "Completed",
    "FABRIC_STATUS": "Success",
    "LINK_ERRORS": "0",
}


def told(outputs: dict[str, str], file: str, *words: str) -> CommandResult:
    """What the machine's nvidia-smi says."""
    text = re.sub(r"@([A-Z_]+)(?::[<>]\d+)?@", lambda m: WORDS[m[1]], outputs[file])
    return CommandResult(("nvidia-smi", *words), 0, text, "")


def evidence_of(scenario: Scenario, outputs: dict[str, str]) -> gpu.Evidence:
    """What is seen on a machine: its bus, its driver and the answers of its nvidia-smi."""
    kind, switches = scenario.kind, scenario.switches
    bus = [
        pci.PciDevice(one.address, "10de", kind.device, kind.subsystem, kind.pci_class, "nvidia")
        for one in scenario.gpus
    ]
    if switches:
        bus += [
            pci.PciDevice(
                address,
                switches.vendor,
                switches.device,
                "",
                switches.pci_class,
                manages_switch=switches.vendor != pci.NVIDIA,
            )
            for address in switches.addresses
        ]
    return gpu.Evidence(
        pci=bus,
        driver=DriverState(RELEASE, "open", RELEASE, RELEASE),
        boot_id="boot",
        smi_path="/usr/bin/nvidia-smi",
        query=told(outputs, "q_x.xml", "-q", "-x"),
        nvlink=told(outputs, "nvlink_status.txt", "nvlink", "--status"),
    )


def look(name: str, damage: smi.Damage | None = None) -> Seen:
    """A simulated machine, seen by gpu_health."""
    scenario = load_scenario(FILES, name)
    outputs = smi.render(scenario, "h", xml=XML, text=TEXT, damage=damage)
    return health.assemble(
        evidence_of(scenario, outputs),
        table=xids.table(),
        errors=Answer(told(outputs, "nvlink_errors.txt").stdout),
        topology=Answer(told(outputs, "topo_m.txt").stdout),
        log={"source": "dmesg", "whole": True, "xids": []},
    )


def wanted_of(bench: Any, name: str, seen: Seen) -> Wanted:  # noqa: ANN401 - see conftest.py
    """What the planner expects of the machine that the survey saw."""
    raw = bench.facts(gpu=seen.info, platform__virtualization=VIRTUAL.get(name))
    planned = plan_nvlink.decide(bench.request(), facts.parse(raw), bench.compat)
    gpus = [one["pci_address"] for one in seen.gpus]
    expected = {"version": RELEASE, "modules": "open", "gpus": gpus, "xids": True}
    return Wanted.of({**expected, "nvlink": planned})


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_whole_machine_is_as_planned(name: str, bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Every simulated machine is healthy by what is planned of it."""
    seen = look(name)
    result = health.judge(seen, wanted_of(bench, name, seen))
    assert (result["failures"], result["cautions"]) == ([], [])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "h200_passthrough"])
def test_one_link_down_is_found(name: str, bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Wherever a machine has links, one that is down is named with its GPU."""
    whole = look(name)
    if not any(one["nvlink"] for one in whole.gpus):
        assert wanted_of(bench, name, whole).nvlink is None
        return
    hurt = look(name, smi.Damage(link_down=(1, 3)))
    result = health.judge(hurt, wanted_of(bench, name, whole))
    rows = [row for row in result["failures"] if row["check"] == "nvlink"]
    assert [(row["gpu"], row["what"]) for row in rows] == [
        (whole.gpus[1]["pci_address"], "link 3 is down")
    ]
