# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_info over recordings: each folder of tests/fixtures/gpu_info is a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import driver_state, gpu, pci
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.driver_state import DriverState
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.nvidia_smi import (
    parse_nvlink,
    parse_query,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "gpu_info"
CASES = sorted(path.name for path in FIXTURES.iterdir())


def make_bus(folder: Path, text: str) -> None:
    """A /sys/bus/pci/devices as the lines of a recording say."""
    for line in text.splitlines():
        address, vendor, device, pci_class, subsystem, driver, numa = line.split()
        entry = folder / address
        entry.mkdir(parents=True)
        values = {
            "vendor": vendor,
            "device": device,
            "class": pci_class,
            "numa_node": numa.removeprefix("numa="),
            "subsystem_vendor": subsystem.split(":")[0],
            "subsystem_device": subsystem.split(":")[1],
        }
        for name, value in values.items():
            (entry / name).write_text(f"{value}\n")
        if name := driver.removeprefix("driver="):
            (entry / "driver").symlink_to(f"../../../bus/pci/drivers/{name}")


def result(path: Path, rc: int | None) -> CommandResult | None:
    """What a recorded program printed."""
    if rc is None or not path.exists():
        return None
    return CommandResult((path.stem,), rc, path.read_text(), "")


def evidence(name: str, tmp_path: Path) -> gpu.Evidence:
    """The evidence of a recorded host."""
    folder = FIXTURES / name
    case = json.loads((folder / "case.json").read_text())
    make_bus(tmp_path, (folder / "pci.txt").read_text())
    proc = folder / "proc_version.txt"
    loaded, flavour = driver_state.parse_proc_version(proc.read_text() if proc.exists() else None)
    devices = pci.scan(tmp_path)
    return gpu.Evidence(
        pci=devices,
        driver=DriverState(
            loaded=loaded,
            flavour=flavour,
            on_disk=case.get("on_disk"),
            user_space=case.get("user_space"),
            nouveau=any(device.kernel_driver == "nouveau" for device in devices),
        ),
        kernel="6.1.0-40-amd64",
        boot_id="boot",
        smi_path="/usr/bin/nvidia-smi" if "query_rc" in case else None,
        query=result(folder / "query.txt", case.get("query_rc")),
        nvlink=result(folder / "nvlink.txt", case.get("nvlink_rc")),
    )


@pytest.mark.parametrize("name", CASES)
def test_recordings(name: str, tmp_path: Path) -> None:
    """Each recorded host gives the result that stands beside it."""
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    assert gpu.report(evidence(name, tmp_path)) == expected


@pytest.mark.parametrize("name", ["h200_passthrough", "h200x2_nvswitch_vm"])
def test_real_hosts_are_healthy(name: str, tmp_path: Path) -> None:
    """A GPU passed through without NVLink is healthy, and so is a pair that sees no switch."""
    found = gpu.report(evidence(name, tmp_path))
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
def test_reboot_is_asked_of_the_state(name: str, reasons: list[str], tmp_path: Path) -> None:
    """A reboot is needed only where it helps."""
    assert gpu.report(evidence(name, tmp_path))["reboot_reasons"] == reasons


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
def test_problems(name: str, what: str, tmp_path: Path) -> None:
    """What is wrong is named, with a cause and a way out."""
    problems = {
        problem["what"]: problem for problem in gpu.report(evidence(name, tmp_path))["problems"]
    }
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
def test_proof_fails_closed(name: str, expected: dict[str, Any], why: str, tmp_path: Path) -> None:
    """What is not as expected, or cannot be read, is no proof."""
    proof = gpu.prove(gpu.report(evidence(name, tmp_path)), expected)
    assert not proof["ok"]
    assert any(why in reason for reason in proof["why"]), proof


def test_switches_of_blackwell(tmp_path: Path) -> None:
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
