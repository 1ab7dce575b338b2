# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_health over recordings, whole and hurt: what fails, what does not, and what it says."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    finding,
    gpu,
    health,
    health_driver,
    health_gpu,
    health_links,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.finding import Answer, Wanted
from ansible_collections.llmetal.inference.plugins.plugin_utils import xids
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible_collections.llmetal.inference.plugins.module_utils.finding import Seen

    Recorded = Callable[[str], gpu.Evidence]

A, B = "0000:00:06.0", "0000:00:07.0"
UUIDS = {
    A: "GPU-00000000-aaaa-2222-3333-444444444444",
    B: "GPU-00000000-bbbb-2222-3333-444444444444",
}
LINKS = 18
BASELINE = "/etc/llmetal/nvlink.json"
CLOCKS = re.compile(r"<supported_clocks>.*?</supported_clocks>", re.DOTALL)
RESET = "drain_and_reset"


def errors_of(**counts: int) -> str:
    """What `nvidia-smi nvlink -e` prints of two GPUs; the counts are of link 4 of the first."""
    names = {"Replay Errors": "replay", "Recovery Errors": "recovery", "CRC Errors": "crc"}
    lines = []
    for index, uuid in enumerate(UUIDS.values()):
        lines.append(f"GPU {index}: NVIDIA H200 (UUID: {uuid})")
        for link in range(LINKS):
            for name, key in names.items():
                value = counts.get(key, 0) if (index, link) == (0, 4) else 0
                lines.append(f"\t Link {link}: {name}: {value}")
    return "\n".join(lines) + "\n"


def topology_of(path: str = "NV18") -> str:
    """What `nvidia-smi topo -m` prints of two GPUs."""
    return f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{path}\t0-31\nGPU1\t{path}\t X \t0-31\n"


def baseline_of(boot_id: str = "boot", **counts: int) -> str:
    """A baseline file."""
    zero = {"replay_errors": 0, "recovery_errors": 0, "crc_errors": 0}
    gpus = {uuid: {str(n): dict(zero) for n in range(LINKS)} for uuid in UUIDS.values()}
    gpus[UUIDS[A]]["4"].update({f"{name}_errors": value for name, value in counts.items()})
    return json.dumps({"boot_id": boot_id, "gpus": gpus})


def see(evidence: gpu.Evidence, **changes: Any) -> Seen:  # noqa: ANN401 - the fields of Seen
    """What was seen on a host that keeps its driver loaded and has a quiet log."""
    quiet: dict[str, Any] = {
        "errors": Answer(errors_of()),
        "topology": Answer(topology_of()),
        "baseline": Answer(baseline_of()),
        "units": {"nvidia-persistenced.service": {"active": "active", "enabled": "enabled"}},
        "log": {"source": "dmesg", "whole": True, "xids": []},
    }
    return health.assemble(evidence, table=xids.table(), **{**quiet, **changes})


def expect(gpus: tuple[str, ...] = (A, B), **nvlink: Any) -> dict[str, Any]:  # noqa: ANN401 - the parameter
    """The parameter of the module, with everything asked."""
    rows = [{"pci": pci, "links": LINKS, "gbps": 26.562} for pci in gpus]
    links = {"required": True, "fabric_state": True, "topology": "NV18", "gpus": rows, **nvlink}
    return {
        "version": "580.159.04",
        "modules": "open",
        "gpus": list(gpus),
        "persistence": True,
        "xids": True,
        "nvlink": links,
    }


METAL = Wanted.of(expect(), BASELINE)
VIRTUAL = Wanted.of(expect(required=False, fabric_state=False))
PASSED = Wanted.of(expect((A,), required=False, fabric_state=False, topology=None))


def edit(evidence: gpu.Evidence, **texts: tuple[str, str]) -> gpu.Evidence:
    """A host whose answers are changed once: the query's or the links'."""
    changed = {}
    for name, (old, new) in texts.items():
        told = getattr(evidence, name)
        assert old in told.stdout, old
        changed[name] = replace(told, stdout=told.stdout.replace(old, new, 1))
    return replace(evidence, **changed)


def named(result: dict[str, Any], check: str) -> dict[str, Any]:
    """The first failure of a check."""
    found = [row for row in result["failures"] if row["check"] == check]
    assert found, result["failures"]
    first: dict[str, Any] = found[0]
    return first


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("h200_passthrough", PASSED),
        ("h200x2_nvswitch_vm", VIRTUAL),
        ("h200x2_nvswitch_vm", METAL),
    ],
)
def test_real_hosts_are_healthy(name: str, wanted: Wanted, recorded: Recorded) -> None:
    """Zero links where NVLink is off, and a pair that sees no switch and has no fabric manager."""
    result = health.judge(see(recorded(name)), wanted)
    assert (result["failures"], result["cautions"]) == ([], [])
    assert result["healthy"]


def test_what_is_asked() -> None:
    """The checks are named, and those that nobody asks for are not."""
    always = ["bus", "ecc", "kernel_driver", "readable", "reboot", "recovery", "remap", "slowdown"]
    assert health.asked(Wanted()) == [*always, "smi", "versions"]
    more = ["fabric", "link_errors", "modules", "nvlink", "persistence", "present", "topology"]
    assert health.asked(METAL) == sorted([*always, *more, "smi", "versions", "xids"])


GPU_FAULTS = [
    (
        "<dram_uncorrectable>0<",
        "<dram_uncorrectable>3<",
        "ecc",
        "uncorrected memory errors",
        RESET,
    ),
    (
        "<unrepairable_memory>No<",
        "<unrepairable_memory>Yes<",
        "ecc",
        "memory is worn out",
        "replace",
    ),
    ("<channel_repair_pending>No<", "<channel_repair_pending>Yes<", "ecc", "waits for", RESET),
    ("<remapped_row_pending>No<", "<remapped_row_pending>Yes<", "remap", "waits for", RESET),
    (
        "<remapped_row_failure>No<",
        "<remapped_row_failure>Yes<",
        "remap",
        "could not be remapped",
        "replace",
    ),
    ("<pending_retirement>N/A<", "<pending_retirement>Yes<", "remap", "waits for a reset", RESET),
    ("recovery_action>None<", "recovery_action>Reset<", "recovery", "asks for recovery", RESET),
    ("recovery_action>None<", "recovery_action>Reboot<", "recovery", "asks", "reboot"),
    ("<gpu_temp>35 C<", "<gpu_temp>ERR!<", "readable", "errors in place of values", RESET),
    ("<state>Completed<", "<state>In Progress<", "fabric", "not registered", "restart_service"),
    ("<status>Success<", "<status>N/A<", "fabric", "not registered", "restart_service"),
    ("<bandwidth>N/A<", "<bandwidth>Degraded<", "fabric", "fabric of the GPU is not well", RESET),
]


@pytest.mark.parametrize("fault", GPU_FAULTS, ids=lambda fault: fault[1])
def test_a_gpu_that_is_not_sound(fault: tuple[str, ...], recorded: Recorded) -> None:
    """Each fault is named with the GPU and the next step, and it alone."""
    old, new, check, what, action = fault
    seen = see(edit(recorded("h200x2_nvswitch_vm"), query=(old, new)))
    result = health.judge(seen, METAL)
    row = named(result, check)
    assert not result["healthy"]
    assert what in row["what"]
    assert (row["gpu"], row["action"]) == (A, action)
    assert row["why"]
    assert row["fix"]
    assert len(result["failures"]) == 1


def test_the_fabric_manager_is_named(recorded: Recorded) -> None:
    """A fabric that does not come up leads to the manager and its log."""
    unit = {"nvidia-fabricmanager.service": {"active": "failed", "enabled": "enabled"}}
    old = ("<state>Completed<", "<state>In Progress<")
    seen = see(edit(recorded("h200x2_nvswitch_vm"), query=old), units=unit)
    row = named(health.judge(seen, METAL), "fabric")
    assert "In Progress" in row["why"]
    assert "nvidia-fabricmanager.service is failed" in row["why"]
    assert "fabricmanager.log" in row["fix"]


@pytest.mark.parametrize("wanted", [METAL, VIRTUAL])
def test_one_link_down(wanted: Wanted, recorded: Recorded) -> None:
    """One of 18 links is named by GPU and number, required or not."""
    result = health.judge(see(recorded("link_down")), wanted)
    row = named(result, "nvlink")
    assert (row["gpu"], row["what"]) == (A, "link 4 is down")
    assert row["why"] == "17 of 18 links are active"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("\t Link 4: 26.562 GB/s\n", "", "the list of the links is not whole"),
        ("\t Link 4: 26.562 GB/s\n", "\t Link 4: 25 GB/s\n", "link 4 is slow"),
        ("\t Link 17: 26.562 GB/s\n", "", "the GPU has 17 links, not 18"),
        ("\t Link 4: 26.562", "Unable to reach link 4: 26.562", "the links cannot be read"),
    ],
)
def test_links_that_are_not_as_planned(old: str, new: str, what: str, recorded: Recorded) -> None:
    """A link that is slow or not listed, and an answer with a complaint in it."""
    result = health.judge(see(edit(recorded("h200x2_nvswitch_vm"), nvlink=(old, new))), METAL)
    assert what in [row["what"] for row in result["failures"]]


def without_links(evidence: gpu.Evidence, text: str) -> gpu.Evidence:
    """A host with another answer about its links."""
    return replace(evidence, nvlink=CommandResult(("nvidia-smi",), 0, text, ""))


INACTIVE = "".join(
    f"GPU {index}: NVIDIA H200 (UUID: {uuid})\n"
    + "".join(f"\t Link {link}: <inactive>\n" for link in range(LINKS))
    for index, uuid in enumerate(UUIDS.values())
)
SENTENCE = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


@pytest.mark.parametrize(
    "text", ["", INACTIVE, "GPU 0: NVIDIA H200 (UUID: x)\n" + SENTENCE], ids=["", "list", "words"]
)
def test_no_links_at_all(text: str, recorded: Recorded) -> None:
    """Healthy where they are not required, a failure where they are."""
    evidence = without_links(recorded("h200x2_nvswitch_vm"), text)
    assert health.judge(see(evidence), VIRTUAL)["failures"] == []
    row = named(health.judge(see(evidence), METAL), "nvlink")
    assert row["what"] == "the GPU has no active link"
    assert "nvidia-fabricmanager" in row["fix"]


def test_mig_switches_links_off(recorded: Recorded) -> None:
    """Links of a GPU in slices are not judged, and that is said."""
    old = ("<current_mig>Disabled<", "<current_mig>Enabled<")
    result = health.judge(see(edit(recorded("link_down"), query=old)), METAL)
    assert result["healthy"]
    (row,) = result["cautions"]
    assert "MIG is on" in row["why"]
    assert row["gpu"] == A


@pytest.mark.parametrize(
    ("text", "why"), [(topology_of("SYS"), f"SYS to {B}"), ("nonsense", "printed no matrix")]
)
def test_paths(text: str, why: str, recorded: Recorded) -> None:
    """Each pair has the expected class of path."""
    seen = see(recorded("h200x2_nvswitch_vm"), topology=Answer(text))
    assert why in named(health.judge(seen, METAL), "topology")["why"]


@pytest.mark.parametrize(
    ("counts", "fails", "why"),
    [
        ({"replay": 5}, False, "replay errors: 5, 0 in the baseline"),
        ({"crc": 1}, False, "crc errors: 1, 0 in the baseline"),
        ({"recovery": 1}, True, "recovery errors: 1, 0 in the baseline"),
    ],
)
def test_error_counters(
    counts: dict[str, int], *, fails: bool, why: str, recorded: Recorded
) -> None:
    """What a link made good is a caution, what it did not is a failure."""
    seen = see(recorded("h200x2_nvswitch_vm"), errors=Answer(errors_of(**counts)))
    result = health.judge(seen, METAL)
    (row,) = result["failures"] if fails else result["cautions"]
    assert (row["why"], row["gpu"], row["check"]) == (why, A, "link_errors")
    assert result["healthy"] is not fails
    assert result["counters"]["boot_id"] == "boot"
    assert sum(result["counters"]["gpus"][UUIDS[A]]["4"].values()) == sum(counts.values())


@pytest.mark.parametrize(
    ("baseline", "fails", "said"),
    [
        (Answer(baseline_of("another", recovery=9)), False, "of another boot"),
        (Answer('{"boot_id": "boot", "gpus": {}}'), False, "of other GPUs"),
        (Answer(), False, f"{BASELINE} is not there"),
        (Answer("{"), True, "is not what the nvlink role writes"),
        (Answer('{"boot_id": "boot", "gpus": {"x": 1}}'), True, "is not what the nvlink role"),
    ],
)
def test_baselines_that_are_not_compared(
    baseline: Answer, *, fails: bool, said: str, recorded: Recorded
) -> None:
    """Counters start anew at each boot; it is said that nothing was compared."""
    seen = see(
        recorded("h200x2_nvswitch_vm"), baseline=baseline, errors=Answer(errors_of(recovery=3))
    )
    result = health.judge(seen, METAL)
    (row,) = result["failures"] if fails else result["cautions"]
    assert said in row["why"]


def test_counters_that_started_anew(recorded: Recorded) -> None:
    """A driver that was loaded anew counts from zero: that is no growth."""
    baseline = Answer(baseline_of(recovery=3, replay=7))
    assert health.judge(see(recorded("h200x2_nvswitch_vm"), baseline=baseline), METAL)["healthy"]


@pytest.mark.parametrize(
    ("xid", "fails", "what", "action"),
    [
        (79, True, "Xid 79 (fell off the bus)", "power_cycle"),
        (48, True, "Xid 48 (uncorrectable memory error)", RESET),
        (13, False, "Xid 13", "none"),
        (999, False, "Xid 999 (not in the table)", "none"),
        (45, None, "", ""),
    ],
)
def test_xids(xid: int, *, fails: bool | None, what: str, action: str, recorded: Recorded) -> None:
    """Fatal ones fail, those of a program are said, those that follow others are not."""
    row = {"pci_address": A, "xid": xid, "count": 2, "last": "NVRM: Xid"}
    seen = see(recorded("h200x2_nvswitch_vm"), log={"whole": True, "xids": [row]})
    result = health.judge(seen, METAL)
    assert len(result["failures"]) == int(fails is True)
    assert len(result["cautions"]) == int(fails is False)
    for told in result["failures"] + result["cautions"]:
        assert what in told["what"]
        assert (told["gpu"], told["action"]) == (A, action)
        assert "2 times" in told["why"]


@pytest.mark.parametrize(
    ("log", "what"),
    [
        (None, "nobody can say what Xids there were"),
        ({"whole": False, "xids": []}, "the kernel's log has lost its beginning"),
    ],
)
def test_no_log(log: dict[str, Any] | None, what: str, recorded: Recorded) -> None:
    """A log that cannot be read proves nothing, where it is asked for."""
    seen = see(recorded("h200x2_nvswitch_vm"), log=log)
    assert named(health.judge(seen, METAL), "xids")["what"] == what
    assert health.judge(seen, replace(METAL, xids=False))["healthy"]


@pytest.mark.parametrize(
    ("units", "persistence", "healthy"),
    [
        ({}, "Enabled", True),
        ({"nvidia-persistenced.service": {"active": "active"}}, "Disabled", True),
        ({"nvidia-persistenced.service": {"active": "failed"}}, "Disabled", False),
        (None, "Disabled", False),
    ],
)
def test_persistence(
    units: dict[str, Any] | None, persistence: str, *, healthy: bool, recorded: Recorded
) -> None:
    """The daemon or the mode keeps the driver loaded."""
    new = f"<persistence_mode>{persistence}<"
    evidence = edit(recorded("h200_passthrough"), query=("<persistence_mode>Enabled<", new))
    result = health.judge(see(evidence, units=units), PASSED)
    assert result["healthy"] is healthy
    if not healthy:
        assert named(result, "persistence")["action"] == "restart_service"


@pytest.mark.parametrize(
    ("name", "check", "what", "action"),
    [
        ("8xa100_bare", "smi", "nvidia-smi gives no answer", "install"),
        ("8xa100_nouveau", "kernel_driver", "nouveau holds the GPU", "reboot"),
        ("gpu_off_bus", "bus", "a GPU does not answer", "power_cycle"),
        ("gpu_off_bus", "present", "an expected GPU is missing", "power_cycle"),
        ("half_upgraded", "versions", "the driver is not 580.159.04 everywhere", "reboot"),
        ("no_module", "versions", "the driver is not 580.159.04 everywhere", "install"),
        ("not_loaded", "versions", "the driver is not 580.159.04 everywhere", "reboot"),
        ("nonsense", "smi", "nvidia-smi gives no answer", "reboot"),
        ("row_remap_pending", "remap", "the GPU waits for a reset", RESET),
    ],
)
def test_recorded_faults(name: str, check: str, what: str, action: str, recorded: Recorded) -> None:
    """Each recorded fault is named."""
    row = named(health.judge(see(recorded(name)), METAL), check)
    assert (row["what"], row["action"]) == (what, action)


def test_off_the_bus_by_the_log(recorded: Recorded) -> None:
    """With Xid 79 in the log the GPU is off the bus, and only power brings it back."""
    row = {"pci_address": B, "xid": 79, "count": 1, "last": "NVRM: Xid 79"}
    seen = see(recorded("gpu_off_bus"), log={"whole": True, "xids": [row]})
    told = named(health.judge(seen, METAL), "bus")
    assert (told["what"], told["gpu"]) == ("a GPU is off the bus", B)
    assert "Xid 79" in told["why"]
    assert "power-cycle" in told["fix"]


def test_lost_gpu_that_silences_nvidia_smi_is_named(recorded: Recorded) -> None:
    """By the log alone; the others, of which nobody knows anything, are not."""
    lost = CommandResult(("nvidia-smi",), 15, "GPU is lost", "")
    row = {"pci_address": B, "xid": 79, "count": 1, "last": "NVRM: Xid 79"}
    evidence = replace(recorded("h200x2_nvswitch_vm"), query=lost)
    failures = health.judge(see(evidence, log={"whole": True, "xids": [row]}), Wanted.of(expect()))[
        "failures"
    ]
    told = [(one["gpu"], one["action"]) for one in failures if one["check"] == "bus"]
    assert told == [(B, "power_cycle")]


@pytest.mark.parametrize("expected", [{}, expect()])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"query": None, "smi_error": "`nvidia-smi -q -x` did not end within 30 s"}, "30 s"),
        ({"query": CommandResult(("nvidia-smi",), 0, "<a>", "")}, "not XML"),
        ({"query": CommandResult(("nvidia-smi",), 0, "", "")}, "not XML"),
        ({"query": CommandResult(("nvidia-smi",), 15, "GPU is lost", "")}, "15: GPU is lost"),
        ({"query": None, "smi_path": None}, "there is no nvidia-smi"),
    ],
)
def test_never_healthy_without_an_answer(
    change: dict[str, Any], why: str, expected: dict[str, Any], recorded: Recorded
) -> None:
    """A nvidia-smi that hangs, fails or talks nonsense is a failure, whatever is asked."""
    evidence = replace(recorded("h200x2_nvswitch_vm"), **change)
    row = named(health.judge(see(evidence), Wanted.of(expected)), "smi")
    assert why in row["why"]


def test_fewer_gpus_than_it_counts(recorded: Recorded) -> None:
    """An answer that is cut short is not the answer."""
    old = ("<attached_gpus>2<", "<attached_gpus>3<")
    result = health.judge(see(edit(recorded("h200x2_nvswitch_vm"), query=old)), Wanted())
    assert named(result, "smi")["why"] == "it counts 3 GPUs and describes 2"


def test_slowdown_is_a_caution(recorded: Recorded) -> None:
    """A hot GPU works, and somebody should look."""
    old = ("hw_thermal_slowdown>Not Active<", "hw_thermal_slowdown>Active<")
    result = health.judge(see(edit(recorded("h200x2_nvswitch_vm"), query=old)), METAL)
    (row,) = result["cautions"]
    assert result["healthy"]
    assert row["why"] == "hw thermal slowdown is active at 35 degrees"


def test_no_gpu_at_all(recorded: Recorded) -> None:
    """A bus without GPUs is not a healthy one."""
    evidence = replace(recorded("h200x2_nvswitch_vm"), pci=[])
    assert named(health.judge(see(evidence), Wanted()), "bus")["action"] == "power_cycle"


def test_recovery_actions() -> None:
    """The words of each value of the driver lead to the action of the data."""
    for row in load_data("xids.yml")["recovery"]:
        assert health_gpu.recovery_action(row["words"]) == row["action"], row


def test_actions() -> None:
    """Every action of the data is one of those that the module documents."""
    rows = load_data("xids.yml")
    named_ = {row["action"] for row in rows["xids"].values()}
    assert named_ | {row["action"] for row in rows["recovery"]} <= set(finding.ACTIONS)


def test_every_check_says_its_name(recorded: Recorded) -> None:
    """A finding is of a check that is listed as asked."""
    names = set(health.asked(METAL))
    bare = recorded("8xa100_bare")
    for check in health_driver.CHECKS + health_gpu.CHECKS + health_links.CHECKS:
        assert {found.check for found in check(see(bare), METAL)} <= names


Host = tuple[gpu.Evidence, dict[str, Any]]
"""A host, and what else was seen on it."""


def hurt(evidence: gpu.Evidence, fault: str) -> Host:
    """A host that is not healthy, each in its way."""
    query = {f"{check}: {new}": (old, new) for old, new, check, _, _ in GPU_FAULTS}
    links = {"link": "\t Link 4: <inactive>", "slow": "\t Link 4: 12 GB/s"}
    if fault in query:
        return edit(evidence, query=query[fault]), {}
    if fault in links:
        return edit(evidence, nvlink=("\t Link 4: 26.562 GB/s", links[fault])), {}
    if fault == "version":
        return replace(evidence, driver=replace(evidence.driver, on_disk="1.0")), {}
    if fault == "path":
        return evidence, {"topology": Answer(topology_of("SYS"))}
    return evidence, {"errors": Answer(errors_of(recovery=2))}


# What drivers print since when differs for the health of the fabric and for repairs, so that a
# lack of one of them proves nothing; an error in place of a value is gone with the value.
FAULTS = [
    *(
        f"{check}: {new}"
        for _, new, check, _, _ in GPU_FAULTS
        if not any(word in new for word in ("bandwidth", "repair", "ERR!"))
    ),
    "link",
    "slow",
    "version",
    "path",
    "errors",
]


def without_element(text: str, number: int) -> str:
    """The XML without one of its elements."""
    root = ET.fromstring(text)  # noqa: S314 - our own recording
    pairs = [(parent, child) for parent in root.iter() for child in parent]
    parent, child = pairs[number]
    parent.remove(child)
    return ET.tostring(root, encoding="unicode")


def losses(host: Host) -> list[Callable[[], Host]]:
    """Every way to lose one value that could be read: an element, a line, a fact."""
    evidence, rest = host
    query, links = evidence.query, evidence.nvlink
    assert query
    assert links
    elements = sum(len(parent) for parent in ET.fromstring(query.stdout).iter())  # noqa: S314 - our own recording

    def element(number: int) -> Host:
        text = without_element(query.stdout, number)
        return replace(evidence, query=replace(query, stdout=text)), rest

    def line(number: int) -> Host:
        kept = links.stdout.splitlines(keepends=True)
        text = "".join(kept[:number] + kept[number + 1 :])
        return replace(evidence, nvlink=replace(links, stdout=text)), rest

    def beside(name: str, number: int) -> Host:
        whole = rest.get(name) or Answer(errors_of() if name == "errors" else topology_of())
        kept = (whole.text or "").splitlines(keepends=True)
        text = "".join(kept[:number] + kept[number + 1 :])
        return evidence, {**rest, name: Answer(text)}

    def fact(name: str) -> Host:
        lost: dict[str, Any] = {name: None}
        return replace(evidence, driver=replace(evidence.driver, **lost)), rest

    def other(changes: dict[str, Any]) -> Host:
        return evidence, {**rest, **changes}

    gone: list[dict[str, Any]] = [
        {"errors": Answer(why="gone")},
        {"topology": Answer(why="gone")},
        {"units": None},
        {"log": None},
    ]
    return [
        *(partial(element, number) for number in range(elements)),
        *(partial(line, number) for number in range(2 * LINKS + 2)),
        *(partial(beside, "errors", number) for number in range(2 + 6 * LINKS)),
        *(partial(beside, "topology", number) for number in range(3)),
        *(partial(fact, name) for name in ("loaded", "on_disk", "user_space", "flavour")),
        *(partial(other, changes) for changes in gone),
        lambda: (replace(evidence, nvlink=None), rest),
        lambda: (replace(evidence, boot_id=None), rest),
        lambda: (replace(evidence, query=None), rest),
    ]


@pytest.mark.parametrize("fault", FAULTS)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_lost_value_never_heals(fault: str, recorded: Recorded, data: st.DataObject) -> None:
    """Whatever can be read no more: what was not healthy does not become so."""
    host = hurt(pair(recorded), fault)
    assert not health.judge(see(host[0], **host[1]), METAL)["healthy"]
    ways = losses(host)
    evidence, rest = ways[data.draw(st.integers(0, len(ways) - 1))]()
    assert not health.judge(see(evidence, **rest), METAL)["healthy"]


_PAIR: list[gpu.Evidence] = []


def pair(recorded: Recorded) -> gpu.Evidence:
    """Two H200, read once, without the long lists of their clocks."""
    if not _PAIR:
        evidence = recorded("h200x2_nvswitch_vm")
        assert evidence.query
        query = replace(evidence.query, stdout=CLOCKS.sub("", evidence.query.stdout))
        _PAIR.append(replace(evidence, query=query))
    return _PAIR[0]


OLD_A100 = """<nvidia_smi_log><driver_version>470.256.02</driver_version>
<attached_gpus>1</attached_gpus><gpu id="00000000:00:06.0"><uuid>GPU-1</uuid>
<product_name>NVIDIA A100</product_name>
<persistence_mode>Enabled</persistence_mode>
<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
<clocks_throttle_reasons>
<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>
</clocks_throttle_reasons>
<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
<ecc_errors><volatile><sram_correctable>0</sram_correctable>
<sram_uncorrectable>{sram}</sram_uncorrectable><dram_correctable>0</dram_correctable>
<dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
<retired_pages><pending_blacklist>N/A</pending_blacklist>
<pending_retirement>N/A</pending_retirement></retired_pages>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>0</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure></remapped_rows>
<processes></processes></gpu></nvidia_smi_log>"""


@pytest.mark.parametrize(("sram", "healthy"), [("0", True), ("1", False)])
def test_an_older_driver(sram: str, *, healthy: bool, recorded: Recorded) -> None:
    """Names of R470: no recovery action, throttle reasons, one count for SRAM."""
    evidence = recorded("h200_passthrough")
    query = CommandResult(("nvidia-smi",), 0, OLD_A100.format(sram=sram), "")
    driver = replace(
        evidence.driver, loaded="470.256.02", on_disk="470.256.02", user_space="470.256.02"
    )
    result = health.judge(see(replace(evidence, query=query, driver=driver)), Wanted())
    assert [row["check"] for row in result["failures"]] == ([] if healthy else ["ecc"])
    assert [row["check"] for row in result["cautions"]] == ["slowdown"]
