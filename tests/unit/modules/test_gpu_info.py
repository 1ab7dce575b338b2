# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_info over recordings: each folder of tests/fixtures/gpu_info is a host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_state,
    gpu,
    kernel_log,
    pci,
    processes,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.nvidia_smi import parse_query
from ansible_collections.llmetal.inference.plugins.module_utils.nvlink import parse_nvlink

if TYPE_CHECKING:
    from collections.abc import Callable

    Recorded = Callable[[str], gpu.Evidence]

FIXTURES = Path(__file__).parents[2] / "fixtures" / "gpu_info"
CASES = sorted(path.name for path in FIXTURES.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_recordings(name: str, recorded: Recorded) -> None:
    """Each recorded host gives the result that stands beside it."""
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    assert gpu.report(recorded(name)) == expected


@pytest.mark.parametrize("name", ["h200_passthrough", "h200x2_nvswitch_vm"])
def test_real_hosts_are_healthy(name: str, recorded: Recorded) -> None:
    """A GPU passed through without NVLink is healthy, and so is a pair that sees no switch."""
    found = gpu.report(recorded(name))
    assert found["problems"] == []
    assert not found["reboot_required"]
    proof = gpu.prove(found, {"version": "580.159.04", "modules": "open", "gpus": []})
    assert proof["ok"], proof


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("8xa100_bare", []),
        ("no_module", []),
        ("not_loaded", ["the driver 580.159.04 is installed and not loaded"]),
        ("half_upgraded", ["the driver 580.159.04 is loaded and 580.178.04 is installed"]),
    ],
)
def test_reboot_is_asked_of_the_state(name: str, reasons: list[str], recorded: Recorded) -> None:
    """A reboot is needed only where it helps."""
    assert gpu.report(recorded(name))["reboot_reasons"] == reasons


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("link_down", "GPU 0000:00:06.0 has NVLinks down"),
        ("gpu_off_bus", "a GPU is off the bus"),
        ("row_remap_pending", "GPU 0000:00:06.0 waits for a reset"),
        ("no_module", "the driver has no module for this kernel"),
        ("nonsense", "the output of nvidia-smi declares XML entities"),
    ],
)
def test_problems(name: str, what: str, recorded: Recorded) -> None:
    """What is wrong is named, with a cause and a way out."""
    problems = {problem["what"]: problem for problem in gpu.report(recorded(name))["problems"]}
    assert what in problems
    assert problems[what]["why"]
    assert problems[what]["fix"]


@pytest.mark.parametrize(
    ("name", "expected", "why"),
    [
        ("8xa100_bare", {}, "there is no nvidia-smi"),
        ("not_loaded", {"version": "580.159.04"}, "loaded is none, not 580.159.04"),
        ("half_upgraded", {"version": "580.178.04"}, "loaded is 580.159.04, not 580.178.04"),
        ("gpu_off_bus", {}, "no answer from the GPU 0000:00:07.0"),
        ("h200_passthrough", {"modules": "proprietary"}, "are open, not proprietary"),
        ("h200_passthrough", {"gpus": ["0000:00:07.0"]}, "no answer from the GPU 0000:00:07.0"),
    ],
)
def test_proof_fails_closed(
    name: str, expected: dict[str, Any], why: str, recorded: Recorded
) -> None:
    """What is not as expected, or cannot be read, is no proof."""
    proof = gpu.prove(gpu.report(recorded(name)), expected)
    assert not proof["ok"]
    assert any(why in reason for reason in proof["why"]), proof


def test_switches_of_blackwell(tmp_path: Path, make_bus: Callable[[Path, str], None]) -> None:
    """A ConnectX-7 counts as a switch only where its vital product data says so."""
    line = "0000:{}:00.0 0x15b3 0x1021 0x020700 0x15b3:0x0041 driver= numa=0\n"
    make_bus(tmp_path, line.format("01") + line.format("02"))
    (tmp_path / "0000:01:00.0" / "vpd").write_bytes(b"\x82\x10\x00VA\x08SMDL=SW_MNG\x78")
    (tmp_path / "0000:02:00.0" / "vpd").write_bytes(b"\x82\x10\x00ordinary\x78")
    (only,) = pci.scan(tmp_path)
    assert only.is_switch
    assert only.address == "0000:01:00.0"


def test_no_bus() -> None:
    """A host without a PCI bus has no GPUs, and that is no error."""
    assert pci.scan("/nonexistent") == []


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0001:3b:00.0", "0001:3b:00.0"),
        ("3B:00.0", "0000:3b:00.0"),
        ("nonsense", "nonsense"),
    ],
)
def test_addresses(text: str, normal: str) -> None:
    """One form for addresses, whoever writes them."""
    assert pci.normal_address(text) == normal


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", None),
        ("GPU 0: X (UUID: GPU-1)\n", "none"),
        ("GPU 0: X (UUID: GPU-1)\n\t Link 0: 25 GB/s\n", "active"),
        ("GPU 0: X (UUID: GPU-1)\n\t Link 0: <inactive>\n", "inactive"),
        ("GPU 0: X (UUID: GPU-1)\n\t Link 0: <inactive>\n\t Link 1: 25 GB/s\n", "partial"),
        (
            "GPU 0: X (UUID: GPU-1)\nNVML: Unable to retrieve NVLink: all links are inactive\n",
            "inactive",
        ),
    ],
)
def test_nvlink_states(text: str, state: str | None) -> None:
    """All links in one word."""
    found = parse_nvlink(text)
    assert (found[0].state if found else None) == state


def test_old_drivers() -> None:
    """Names of older drivers are read too, and what is missing is null."""
    report = parse_query(
        "<nvidia_smi_log><driver_version>470.1.1</driver_version><gpu id='00000000:01:00.0'>"
        "<power_readings><power_draw>30.5 W</power_draw></power_readings>"
        "<ecc_errors><volatile><single_bit><total>2</total></single_bit></volatile></ecc_errors>"
        "</gpu></nvidia_smi_log>"
    )
    (found,) = report.gpus
    assert found.power_w == 30.5
    assert found.ecc["volatile_corrected"] == 2
    assert found.name is None
    assert report.cuda_version is None


def test_not_xml() -> None:
    """Output that is cut off says so."""
    with pytest.raises(LlmetalError, match="is not XML"):
        parse_query("<nvidia_smi_log><gpu>")


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("580.159.04-1", "580.159.04"),
        ("1:580.159.04-0ubuntu0.24.04.1", "580.159.04"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("1.0", None),
    ],
)
def test_upstream_version(version: str, upstream: str | None) -> None:
    """The driver release in a package's version."""
    assert driver_state.upstream_version(version) == upstream


def test_proprietary_module() -> None:
    """The two flavours are told apart."""
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Fri Jan  2 2026\n"
    assert driver_state.parse_proc_version(line) == ("535.309.01", "proprietary")


@pytest.mark.parametrize("name", ["nvidia.ko", "nvidia.ko.xz", "nvidia.ko.gz"])
def test_module_on_disk(name: str, tmp_path: Path) -> None:
    """Without modinfo the module's own text says its version, compressed or not."""
    import gzip  # noqa: PLC0415 - for this one test
    import lzma  # noqa: PLC0415 - likewise

    content = b"\x7fELF\0license=Dual MIT/GPL\0version=580.159.04\0srcversion=AB\0"
    packed = {".xz": lzma.compress(content), ".gz": gzip.compress(content)}
    folder = tmp_path / "lib/modules/6.1.0/updates/dkms"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(packed.get(Path(name).suffix, content))
    assert driver_state.version_on_disk(tmp_path, "6.1.0") == "580.159.04"
    assert driver_state.version_on_disk(tmp_path, "6.2.0") is None


def test_user_space(tmp_path: Path) -> None:
    """The file that the loader takes counts before what a package claims."""
    packages = {"libnvidia-ml1": "570.1.1-1", "gcc": "4:12"}
    assert driver_state.user_space_version(tmp_path, packages) == "570.1.1"
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.580.159.04").touch()
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.159.04")
    assert driver_state.user_space_version(tmp_path, packages) == "580.159.04"


def test_a_host_with_nothing(tmp_path: Path) -> None:
    """Gathering on an empty file system reports, and does not fail."""
    found = gpu.report(gpu.gather(root=str(tmp_path)))
    assert found["gpus"] == []
    assert found["problems"] == []
    assert not found["reboot_required"]


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"disk_flavour": "open"}, []),
        ({"disk_flavour": "proprietary"}, ["the open modules are loaded and the proprietary ones"]),
        ({"on_disk": "2.0"}, ["the driver 1.0 is loaded and 2.0 is installed"]),
        ({"newest_kernel": "6.2", "newest_on_disk": "1.0"}, []),
        ({"newest_kernel": "6.2"}, []),
        ({"loaded": None, "newest_kernel": "6.2"}, []),
        (
            {"loaded": None, "on_disk": None, "newest_kernel": "6.2", "newest_on_disk": "1.0"},
            ["the running kernel has no driver and 6.2, the newest installed one, has 1.0"],
        ),
    ],
)
def test_reboot_only_where_it_helps(changes: dict[str, Any], reasons: list[str]) -> None:
    """A reboot boots the newest kernel: what that has on its disk decides."""
    state = replace(driver_state.DriverState("1.0", "open", "1.0", "1.0"), **changes)
    device = pci.PciDevice("0000:01:00.0", "10de", "2335", "", "030200", "nvidia")
    found = driver_state.reboot_reasons(state, [device])
    assert all(reason.startswith(start) for reason, start in zip(found, reasons, strict=True))
    assert driver_state.reboot_reasons(state, []) == []


def test_a_reboot_that_would_lose_the_driver(recorded: Recorded) -> None:
    """The newest kernel has no module: no reason to reboot, and a problem."""
    evidence = recorded("h200_passthrough")
    evidence = replace(evidence, driver=replace(evidence.driver, newest_kernel="6.1.0-41-amd64"))
    found = gpu.report(evidence)
    assert not found["reboot_required"]
    (problem,) = found["problems"]
    assert problem["what"] == "a reboot would lose the driver"
    assert "6.1.0-41-amd64" in problem["why"]


@pytest.mark.parametrize(
    ("images", "running", "newest"),
    [
        ([], "6.1.0-40-amd64", None),
        (["6.1.0-40-amd64"], "6.1.0-40-amd64", None),
        (["6.1.0-9-amd64", "6.1.0-40-amd64", "6.1.0-41-amd64"], "6.1.0-40-amd64", "6.1.0-41-amd64"),
        (["6.1.0-9-amd64", "6.1.0-40-amd64"], "6.1.0-40-amd64", None),
        (["6.1.0-9-amd64"], "6.1.0-40-amd64", "6.1.0-9-amd64"),
    ],
)
def test_newest_kernel(images: list[str], running: str, newest: str | None, tmp_path: Path) -> None:
    """The one that a reboot boots; one that is gone from /boot cannot be it."""
    (tmp_path / "boot").mkdir()
    for name in images:
        (tmp_path / "boot" / f"vmlinuz-{name}").touch()
    assert driver_state.newest_kernel(tmp_path, running) == newest


@pytest.mark.parametrize(
    ("licence", "flavour"),
    [("Dual MIT/GPL", "open"), ("NVIDIA", "proprietary"), ("", None), (None, None)],
)
def test_flavour_on_disk(licence: str | None, flavour: str | None) -> None:
    """The licence of a module says its flavour."""
    assert driver_state.flavour_of(licence) == flavour


def test_modinfo() -> None:
    """Of all that modinfo prints two lines count."""
    text = (
        "filename:  /x/nvidia.ko\nversion:   580.159.04\nlicense:        Dual MIT/GPL\nalias: a:b\n"
    )
    assert driver_state.parse_modinfo(text) == {"version": "580.159.04", "license": "Dual MIT/GPL"}


def test_processes_with_their_unit(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """gpu_info adds who a process is, the units and the history of Xids."""
    evidence = recorded("h200_passthrough")
    assert evidence.query
    row = (
        "<processes><process_info><pid>4711</pid><type>C</type><process_name>python"
        "</process_name><used_memory>100 MiB</used_memory></process_info>"
    )
    query = replace(evidence.query, stdout=evidence.query.stdout.replace("<processes>", row, 1))
    units = {"nvidia-persistenced.service": {"active": "active", "enabled": "enabled"}}
    xid = {"pci_address": "0000:00:06.0", "xid": 79, "count": 1}
    monkeypatch.setattr(gpu, "gather", lambda timeout: replace(evidence, query=query))  # noqa: ARG005 - its name is the parameter's
    monkeypatch.setattr(gpu, "show_units", lambda: units)
    monkeypatch.setattr(kernel_log, "history", lambda _: {"source": "journal", "xids": [xid]})
    monkeypatch.setattr(
        processes,
        "describe",
        lambda pid: {"pid": pid, "program": "python3 a", "unit": "b.service"},
    )
    found = gpu.collect(table={"79": {"says": "fell off the bus", "severity": "fatal"}})
    assert found["gpus"][0]["processes"] == [
        {
            "pid": 4711,
            "name": "python",
            "type": "C",
            "used_mib": 100,
            "program": "python3 a",
            "unit": "b.service",
        }
    ]
    assert found["units"] == units
    assert found["xid_history"]["xids"] == [
        {**xid, "says": "fell off the bus", "severity": "fatal"}
    ]
