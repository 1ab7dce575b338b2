# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says on a simulated machine, held against recordings of real ones."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import hardware, smi
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.scenario import (
    Gpu,
    NvLink,
    Scenario,
    load_fault,
    load_scenario,
    names,
)

FILES = Path(__file__).parents[3] / "roles/sandbox/files"
RECORDINGS = FILES / "recordings"
PASSED = RECORDINGS / "h200_passthrough"
XML = (PASSED / "nvidia-smi_q_x.xml").read_text(encoding="utf-8")
TEXT = (PASSED / "nvidia-smi_q.txt").read_text(encoding="utf-8")
SCENARIOS = names(FILES / "scenarios")
WORDS = {
    "DRIVER": "580.159.04",
    "CUDA": "13.0",
    "PERSISTENCE": "Enabled",
    "TIMESTAMP": "Mon Nov 30 17:06:56 2026",
}


def render(scenario: Scenario, damage: smi.Damage | None = None) -> dict[str, str]:
    """All outputs of a machine named h."""
    return smi.render(scenario, "h", xml=XML, text=TEXT, damage=damage)


def fill(text: str, **words: str) -> str:
    """What the guest's nvidia-smi makes of an output."""
    values = {**WORDS, **words}
    return re.sub(r"@([A-Z_]+)(?::([<>]\d+))?@", lambda m: f"{values[m[1]]:{m[2] or ''}}", text)


def in_two() -> Scenario:
    """The machine of the second recording: two of the recorded GPUs, with their links."""
    one = load_scenario(FILES, "h200_passthrough")
    ids = ("GPU-00000000-aaaa-2222-3333-444444444444", "GPU-00000000-bbbb-2222-3333-444444444444")
    gpus = tuple(Gpu(f"0000:00:0{6 + i}.0", 0, uuid) for i, uuid in enumerate(ids))
    return replace(one, gpus=gpus, nvlink=NvLink(18, "26.562", "NV18"), cpus="0-31")


def test_recorded_machine_is_its_recording() -> None:
    """Where a scenario states the recorded hardware, what is made is the recording."""
    made = render(load_scenario(FILES, "h200_passthrough"))
    assert fill(made["q_x.xml"]) == XML
    assert fill(made["q.txt"]) == TEXT


def test_table_has_the_recorded_form() -> None:
    """The plain table equals the recorded one but for temperatures and draw."""
    recorded = (RECORDINGS / "h200x2_nvswitch_vm/nvidia-smi.txt").read_text(encoding="utf-8")

    def measured(text: str) -> str:
        text = re.sub(r"\d\dC", "00C", text)
        return re.sub(r" *\d+W / ", " 0W / ", text)

    made = fill(render(in_two())["table.txt"], PERSISTENCE="On")
    made = made.replace(WORDS["TIMESTAMP"], "Mon Nov 30 18:54:55 2026")
    assert measured(made) == measured(recorded)


@pytest.mark.parametrize(
    ("option", "file"),
    [
        ("-e", "nvlink_errors.txt"),
        ("-R", "nvlink_remote.txt"),
        ("-c", "nvlink_capabilities.txt"),
    ],
)
def test_subcommands_of_nvlink_equal_the_recorded_ones(option: str, file: str) -> None:
    """To the letter."""
    recorded = (RECORDINGS / "h200x2_nvswitch_vm/nvlink.txt").read_text(encoding="utf-8")
    section = recorded.split(f"## nvidia-smi nvlink {option}\n")[1].split("rc=0\n")[0]
    assert render(in_two())[file] == section


def test_links_switched_off_say_nothing() -> None:
    """A GPU passed through without its links: no output, and success; `topo -m` is the recorded."""
    made = render(load_scenario(FILES, "h200_passthrough"))
    recorded = (PASSED / "nvlink.txt").read_text(encoding="utf-8")
    for option, name in (("--status", "status"), ("-e", "errors"), ("-R", "remote")):
        assert f"## nvidia-smi nvlink {option}\nrc=0\n" in recorded
        assert made[f"nvlink_{name}.txt"] == ""
    assert made["topo_m.txt"] == (PASSED / "topo_m.txt").read_text(encoding="utf-8")


def test_nvlink_5_has_counters_of_its_own() -> None:
    """The names are those of a recorded B300, in the recorded order."""
    folder = FILES.parents[2] / "tests/fixtures/nvlink_errors/b300_595"
    recorded = (folder / "errors.txt").read_text(encoding="utf-8")

    def of_one_link(text: str) -> list[str]:
        return re.findall(r"Link 0: ([^:]+): ", text)[:21]

    made = render(load_scenario(FILES, "b200"), smi.Damage(link_errors=(0, 0)))["nvlink_errors.txt"]
    assert of_one_link(made) == of_one_link(recorded)
    assert re.findall(r"(\w+ Errors): @LINK_ERRORS@", made) == ["Effective Errors", "Symbol Errors"]


def test_counter_of_a_bad_link_is_filled_in_by_the_guest() -> None:
    """Only the one link has it."""
    made = render(in_two(), smi.Damage(link_errors=(1, 3)))["nvlink_errors.txt"]
    assert made.count("@LINK_ERRORS@") == 2
    assert "Link 3: Replay Errors: @LINK_ERRORS@" in made.split("GPU 1: ")[1]


def test_links_and_topology_equal_the_recorded_ones() -> None:
    """`nvlink --status` and `topo -m`, to the letter."""
    made = render(in_two())
    folder = RECORDINGS / "h200x2_nvswitch_vm"
    links = (folder / "nvlink.txt").read_text(encoding="utf-8")
    first = links.split("## nvidia-smi nvlink --status\n")[1].split("rc=0\n")[0]
    assert made["nvlink_status.txt"] == first
    topology = (folder / "topo_m.txt").read_text(encoding="utf-8").rstrip("\n")
    assert made["topo_m.txt"].rstrip("\n") == topology


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_consistent(name: str) -> None:
    """XML, text and list agree with the scenario's file."""
    scenario = load_scenario(FILES, name)
    made = render(scenario)
    states = {"FABRIC_STATE": "Completed", "FABRIC_STATUS": "Success"}
    root = ET.fromstring(fill(made["q_x.xml"], **states))  # noqa: S314 - our own text
    gpus = root.findall("gpu")
    assert root.findtext("attached_gpus") == str(len(scenario.gpus)) == str(len(gpus))
    assert len({gpu.findtext("uuid") for gpu in gpus}) == len(gpus)
    for gpu, wanted in zip(gpus, scenario.gpus, strict=True):
        assert gpu.get("id") == gpu.findtext("pci/pci_bus_id") == smi.bus_id(wanted.address)
        assert gpu.findtext("product_name") == scenario.kind.name
        assert gpu.findtext("fb_memory_usage/total") == f"{scenario.kind.memory_mib} MiB"
        assert gpu.findtext("pci/pci_device_id") == f"{scenario.kind.device}10DE".upper()
        assert gpu.findtext("gsp_firmware_version") == "580.159.04"
        has_fabric = gpu.findtext("fabric/state") == "Completed"
        assert has_fabric == scenario.fabric_reported
    assert made["q.txt"].count("Product Name") == len(gpus)
    assert len(made["list.txt"].splitlines()) == len(gpus)
    shown = made["nvlink_status.txt"].count(" GB/s")
    link = scenario.nvlink
    is_linked = link is not None and link.speed != "inactive"
    assert shown == (link.links * len(gpus) if link and is_linked else 0)
    assert "@" not in fill(made["q.txt"] + made["table.txt"], **states)


def test_damage_hits_one_gpu() -> None:
    """A link, a row remap: one GPU says so, the others do not."""
    scenario = load_scenario(FILES, "8xa100_sxm4_80")
    made = render(scenario, smi.Damage(link_down=(2, 5), values={"row_remap": 1}))
    assert made["nvlink_status.txt"].count("<inactive>") == 1
    gpus = ET.fromstring(fill(made["q_x.xml"])).findall("gpu")  # noqa: S314 - our own text
    pending = [gpu.findtext("remapped_rows/remapped_row_pending") for gpu in gpus]
    assert pending == ["No", "Yes", *["No"] * 6]
    assert gpus[1].findtext("gpu_recovery_action") == "Reset"


def test_a_machine_without_a_scenario_has_no_devices() -> None:
    """It hides what the machine below has."""
    assert hardware.devices(None, "h")["devices"] == []


def test_switches_are_devices() -> None:
    """Eight GPUs and six switches, each with its class."""
    found = hardware.devices(load_scenario(FILES, "8xa100_sxm4_80"), "h")["devices"]
    assert [device["class"] for device in found] == ["030200"] * 8 + ["068000"] * 6


@pytest.mark.parametrize("name", names(FILES / "faults"))
def test_every_fault_does_something(name: str) -> None:
    """A fault's file can be read, and has an effect or a mark that the guest looks for."""
    fault = load_fault(FILES, name)
    effects = (fault.hardware, fault.server, fault.supervisor, fault.on)
    guest = "".join(p.read_text(encoding="utf-8") for p in (FILES / "guest").iterdir())
    assert (
        any(effects)
        or f"faults/{name}" in guest
        or f'is_on("{name}")' in guest
        or f'FAULTS / "{name}"' in guest
    )


def test_unknown_names_list_the_known_ones() -> None:
    """The error helps."""
    with pytest.raises(LlmetalError, match=r"no scenario 'x'.*8xa100_sxm4_80"):
        load_scenario(FILES, "x")
    with pytest.raises(LlmetalError, match=r"no fault 'x'.*link_down"):
        load_fault(FILES, "x")
