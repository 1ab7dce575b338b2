# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of the driver and the fabric: what a run says of each, and that the next one converges.

The tests of a host build on each other in the order in which they stand here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fault_runs import FOLDER, Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

INVENTORY = FOLDER / "driver"
PLAYBOOK = "tests/faults/driver.yml"
RELEASE = "580.159.04"
QUICK = ("-e", '{"nvidia_driver_apt_timeout": 5, "nvlink_timeout": 5}')
"""Bounds of waits, short where the fault does not go away by itself."""


def lab(host: str, folder: pytest.TempPathFactory) -> Iterator[Lab]:
    """A new host, gone again at the end."""
    made = Lab(host, INVENTORY, folder.mktemp(host), PLAYBOOK)
    made.sandbox("reset")
    try:
        yield made
    finally:
        made.sandbox("absent")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host without a driver; a test that installs one resets it before."""
    yield from lab("fault-bare", tmp_path_factory)


@pytest.fixture(scope="module")
def metal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Eight H200 on four NVSwitches with driver and fabric."""
    for made in lab("fault-metal", tmp_path_factory):
        made.converge()
        yield made


@pytest.fixture(scope="module")
def ubuntu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A GeForce on Ubuntu with the driver of its archive."""
    for made in lab("fault-ubuntu", tmp_path_factory):
        made.converge()
        yield made


def fails(host: Lab, *said: str, arguments: tuple[str, ...] = QUICK) -> None:
    """A run fails on just this host, and says all this."""
    run = host.run(*arguments)
    assert run.rc == 2, run.output
    assert run.counts(host.host)["failed"] == 1, run.output
    for words in said:
        assert words in run.said, run.output


def assert_driver_runs(host: Lab, gpus: int) -> None:
    """Module, libraries and packages are of the lock's release, and nothing is half there."""
    assert RELEASE in host.ssh("cat", "/proc/driver/nvidia/version")
    assert len(host.ssh("nvidia-smi", "-L").splitlines()) == gpus
    assert not host.ssh("dpkg", "--audit")
    host.ssh("apt-get", "check", "-q")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "repo_404",
            (
                "the repository does not have what was asked for (404)",
                "http://10.213.0.1:8213/cuda/debian/x86_64",
                "What to do: check address and suite in the inventory",
            ),
        ),
        (
            "unknown_key",
            (
                "the repository is signed by a key that the host does not trust",
                "What to do: find out which key the repository has now",
            ),
        ),
        (
            "index_hash",
            (
                "the repository's index and its files are of two moments",
                "Packages.gz Hash Sum mismatch",
                "never turn the check off",
            ),
        ),
        (
            "no_headers",
            (
                "a package of the lock is in none of the sources (linux-headers-",
                "What to do: check the address and suite of its source",
            ),
        ),
        (
            "apt_locked",
            (
                "another package manager is still at work after 5 s",
                "unattended-upgrade, started 20",
                " UTC) holds /var/lib/dpkg/lock-frontend",
                "What to do: let it end",
                "never delete the lock file",
            ),
        ),
    ],
)
def test_nothing_is_begun(bare: Lab, fault: str, said: tuple[str, ...]) -> None:
    """What stands against the transaction is named before it begins, and no package is touched."""
    before = bare.ssh("dpkg-query", "--show")
    bare.break_it(fault)
    try:
        fails(bare, *said)
        assert bare.ssh("dpkg-query", "--show") == before
        assert not bare.ssh("dpkg", "--audit")
    finally:
        bare.mend(fault)


def test_disk_full_in_the_transaction(bare: Lab) -> None:
    """Packages are left unpacked; with room again the next run goes on from there."""
    bare.break_it("disk_full_transaction")
    fails(
        bare,
        "installing packages failed: the disk is full (/usr/src/",
        "No space left on device",
        "What to do: make room in /var",
    )
    assert bare.ssh("dpkg", "--audit")
    bare.mend()
    bare.converge()
    bare.assert_settled()
    assert_driver_runs(bare, 8)


def test_postinst_fails(bare: Lab) -> None:
    """A module that does not build is named with its kernel, not with what depends on it."""
    bare.sandbox("reset")
    bare.break_it("postinst_fails")
    fails(
        bare,
        "installing packages failed: the kernel module was not built",
        "dma_buf_attachment_is_dynamic",
        "What to do: read /var/lib/dkms/nvidia/",
    )
    bare.mend()
    bare.converge()
    bare.assert_settled()
    assert_driver_runs(bare, 8)


def test_dpkg_interrupted_and_nouveau_bound(bare: Lab) -> None:
    """The run finishes what a killed dpkg left, and the reboot gives the GPUs to the driver."""
    bare.sandbox("reset")
    bare.break_it("dpkg_interrupted", "nouveau")
    # As after any reboot of a host that was never set up: nouveau has the GPUs.
    bare.sandbox("stopped")
    bare.sandbox("started")
    assert "nouveau" in bare.ssh("readlink", "/sys/bus/pci/devices/0000:19:00.0/driver")
    assert bare.ssh("dpkg", "--audit")
    bare.converge()
    assert_driver_runs(bare, 8)
    bare.assert_settled()


def test_reboot_that_does_not_come_back(bare: Lab) -> None:
    """The run names the host and the time that it waited; when it is up again, the next goes on."""
    bare.sandbox("reset")
    bare.break_it("no_reboot")
    fails(
        bare,
        "Timed out waiting for last boot time check (timeout=10)",
        arguments=("-e", '{"nvidia_driver_reboot_timeout": 10}'),
    )
    bare.mend()
    bare.sandbox("started")
    bare.converge()
    assert_driver_runs(bare, 8)
    bare.assert_settled()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("link_down", ("0000:4c:00.0", "What to do: ")),
        ("gpu_off_bus", ("0000:19:00.0 a GPU is off the bus", "has Xid 79 of it")),
        ("row_remap_pending", ("0000:19:00.0", "row remap", "What to do: ")),
        ("fabric_stuck", ("In Progress", "What to do: ")),
    ],
)
def test_broken_hardware_is_not_called_healthy(
    metal: Lab, fault: str, said: tuple[str, ...]
) -> None:
    """A fault that no package mends is named with its GPU; when it is gone, nothing is to do."""
    metal.break_it(fault)
    try:
        fails(metal, *said)
    finally:
        metal.mend(fault)
    metal.assert_settled()


def test_fabric_manager_of_another_version(metal: Lab) -> None:
    """The run brings the driver's version back and starts it."""
    metal.break_it("fabric_version")
    assert "failed" in metal.ssh("systemctl", "is-active", "nvidia-fabricmanager", "||", "true")
    metal.converge()
    shown = metal.ssh("dpkg-query", "-W", "-f", r"\${Version}", "nvidia-fabricmanager")
    assert shown == f"{RELEASE}-1"
    assert metal.ssh("systemctl", "is-active", "nvidia-fabricmanager") == "active\n"
    metal.assert_settled()


def test_held_metapackage(metal: Lab) -> None:
    """A hold of somebody else is respected: it is named, with what would break it."""
    metal.break_it("package_held")
    try:
        fails(metal, "nvidia-open", "What to do: ")
    finally:
        metal.mend("package_held")
    metal.converge()
    metal.assert_settled()


SICK = {
    "ecc_errors": ("ecc", "the GPU has uncorrected memory errors", "drain_and_reset"),
    "row_remap_failure": ("remap", "a memory row could not be remapped", "replace"),
    "retired_pages": ("remap", "the GPU waits for a reset", "drain_and_reset"),
    "recovery_action": ("recovery", "the GPU asks for recovery", "reboot"),
    "xid_in_log": ("xids", "Xid 48 (", "drain_and_reset"),
}


def test_each_sickness_of_a_gpu_is_told_with_what_to_do(metal: Lab) -> None:
    """All at once on one GPU, and no other; then none."""
    metal.break_it(*SICK)
    try:
        failures = metal.health(expect={"xids": True})["failures"]
    finally:
        metal.mend(*SICK)
    assert {failure["gpu"] for failure in failures} == {"0000:19:00.0"}
    told = [(one["check"], one["what"], one["action"]) for one in failures]
    for fault, (check, what, action) in SICK.items():
        assert any((check, action) == (c, a) and w.startswith(what) for c, w, a in told), fault
    assert metal.health()["healthy"]


def test_nvidia_smi_that_hangs(metal: Lab) -> None:
    """It is given up after its time, and that is the failure."""
    metal.break_it("smi_hangs")
    try:
        health = metal.health(timeout=2)
    finally:
        metal.mend("smi_hangs")
    (failure,) = health["failures"]
    assert failure["what"] == "nvidia-smi gives no answer"
    assert failure["action"] == "reboot"
    assert health["seconds"] < 20


def test_half_upgrade(ubuntu: Lab) -> None:
    """Libraries that an unattended upgrade moved go back to the release of the loaded module."""
    ubuntu.break_it("half_upgrade")
    mismatch = ubuntu.ssh("nvidia-smi", "||", "true")
    assert "Driver/library version mismatch" in mismatch
    ubuntu.converge()
    assert_driver_runs(ubuntu, 1)
    ubuntu.assert_settled()


def test_member_held_in_another_version(ubuntu: Lab) -> None:
    """A hold on a package of the set does not keep the set apart."""
    ubuntu.break_it("member_held")
    ubuntu.converge()
    assert_driver_runs(ubuntu, 1)
    ubuntu.assert_settled()
