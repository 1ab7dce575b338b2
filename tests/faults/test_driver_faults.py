# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of the driver and the fabric: what a run says of each, and that the next one converges.

Each fault has a host, and one run meets them side by side. The stages are fixtures that build on
each other: nothing begun, left half done, converged, broken again, mended.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from fault_runs import FOLDER, Lab, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RELEASE = "580.159.04"
UBUNTU = "fault-f"
"""A GeForce with the driver of Ubuntu's archive; all others have eight H200 on four NVSwitches."""
ALL = ("fault-a", "fault-b", "fault-c", "fault-d", "fault-e", UBUNTU)
QUICK = ("-e", '{"nvidia_driver_apt_timeout": 5, "nvlink_timeout": 5}')
"""Bounds of waits, short where the fault does not go away by itself."""

NOT_BEGUN = {
    "fault-a": ("repo_404",),
    "fault-b": ("unknown_key",),
    "fault-c": ("index_hash",),
    "fault-d": ("no_headers",),
    "fault-e": ("apt_locked",),
}
HALF_DONE = {
    "fault-a": ("disk_full_transaction",),
    "fault-b": ("postinst_fails",),
    "fault-c": ("dpkg_interrupted", "nouveau"),
    "fault-d": ("no_reboot",),
}
BROKEN = {
    "fault-a": ("link_down",),
    "fault-b": ("gpu_off_bus",),
    "fault-c": ("row_remap_pending",),
    "fault-d": ("fabric_stuck",),
    "fault-e": ("fabric_version",),
    UBUNTU: ("half_upgrade",),
}


@dataclass(frozen=True)
class Stage:
    """A run on several hosts, and what was asked of each before and after it."""

    run: Run
    before: Mapping[str, str]
    after: Mapping[str, str]

    def assert_said(self, host: str, *said: str) -> None:
        """The run failed on a host, and said all this of it."""
        assert self.run.counts(host)["failed"] == 1, self.run.output
        for words in said:
            assert words in self.run.failure(host)

    def assert_converged(self, host: str) -> None:
        """The run brought a host to its end."""
        assert self.run.counts(host)["failed"] == 0, self.run.failure(host)


def of(lab: Lab, *hosts: str) -> Lab:
    """The same on some of the hosts, or on one."""
    return replace(lab, host=",".join(hosts))


def switch(lab: Lab, faults: Mapping[str, tuple[str, ...]], *, on: bool) -> None:
    """Switch faults of several hosts on or off at once."""
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(of(lab, host).break_it if on else of(lab, host).mend, *names)
            for host, names in faults.items()
        ]
        for job in jobs:
            job.result()


def ask(lab: Lab, *argv: str, hosts: tuple[str, ...] = ALL) -> dict[str, str]:
    """What a command prints on each host."""
    return {host: of(lab, host).ssh(*argv) for host in hosts}


def assert_driver_runs(lab: Lab, host: str) -> None:
    """Module, libraries and packages are of the lock's release, and nothing is half there."""
    one = of(lab, host)
    assert RELEASE in one.ssh("cat", "/proc/driver/nvidia/version")
    assert len(one.ssh("nvidia-smi", "-L").splitlines()) == (1 if host == UBUNTU else 8)
    assert not one.ssh("dpkg", "--audit")
    one.ssh("apt-get", "check", "-q")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """New hosts, without a driver; gone again at the end."""
    folder = tmp_path_factory.mktemp("faults")
    made = Lab(",".join(ALL), FOLDER / "driver", folder, "tests/faults/driver.yml")
    try:
        made.sandbox("reset")
        yield made
    finally:
        made.sandbox("absent")


@pytest.fixture(scope="module")
def not_begun(lab: Lab) -> Stage:
    """A run that meets what stands against the transaction."""
    listed = ("dpkg-query", "--show")
    hosts = tuple(NOT_BEGUN)
    switch(lab, NOT_BEGUN, on=True)
    before = ask(lab, *listed, hosts=hosts)
    run = of(lab, *hosts).run(*QUICK)
    after = ask(lab, *listed, hosts=hosts)
    switch(lab, NOT_BEGUN, on=False)
    return Stage(run, before, after)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (
            "fault-a",
            (
                "the repository does not have what was asked for (404)",
                "http://10.213.0.1:8213/cuda/debian/x86_64",
                "What to do: check address and suite in the inventory",
            ),
        ),
        (
            "fault-b",
            (
                "the repository is signed by a key that the host does not trust",
                "What to do: find out which key the repository has now",
            ),
        ),
        (
            "fault-c",
            (
                "the repository's index and its files are of two moments",
                "Packages.gz Hash Sum mismatch",
                "never turn the check off",
            ),
        ),
        (
            "fault-d",
            (
                "a package of the lock is in none of the sources (linux-headers-",
                "What to do: check the address and suite of its source",
            ),
        ),
        (
            "fault-e",
            (
                "another package manager is still at work after 5 s",
                "unattended-upgrade, started ",
                ") holds /var/lib/dpkg/lock-frontend",
                "What to do: let it end",
                "never delete the lock file",
            ),
        ),
    ],
    ids=[faults[0] for faults in NOT_BEGUN.values()],
)
def test_nothing_is_begun(not_begun: Stage, host: str, said: tuple[str, ...]) -> None:
    """What stands against the transaction is named before it begins, and no package is touched."""
    not_begun.assert_said(host, *said)
    assert not_begun.before[host] == not_begun.after[host]


@pytest.mark.usefixtures("not_begun")
def test_held_metapackage(lab: Lab) -> None:
    """A hold of somebody else is respected: it is named, with what would break it."""
    host = of(lab, "fault-a")
    host.break_it("package_held")
    before = host.ssh("dpkg-query", "--show")
    run = host.run(*QUICK)
    after = host.ssh("dpkg-query", "--show")
    host.mend("package_held")
    Stage(run, {}, {}).assert_said(
        "fault-a",
        "the packages cannot be installed together",
        "nvidia-open : Depends: nvidia-driver-cuda (= 595.91.07-1)",
        "What to do: see what holds or offers another version",
    )
    assert before == after


@pytest.fixture(scope="module")
def half_done(lab: Lab, not_begun: Stage) -> Stage:
    """A run that is stopped on its way on some of the hosts."""
    del not_begun
    switch(lab, HALF_DONE, on=True)
    # As after any reboot of a host that was never set up: nouveau has the GPUs.
    of(lab, "fault-c").sandbox("stopped")
    of(lab, "fault-c").sandbox("started")
    nouveau = of(lab, "fault-c").ssh("readlink", "/sys/bus/pci/devices/0000:19:00.0/driver")
    half = of(lab, "fault-c").ssh("dpkg", "--audit")
    run = lab.run(*QUICK)
    after = ask(lab, "dpkg", "--audit", hosts=("fault-a", "fault-b"))
    return Stage(run, {"nouveau": nouveau, "half": half}, after)


def test_disk_full_in_the_transaction(half_done: Stage) -> None:
    """Packages are left unpacked."""
    half_done.assert_said(
        "fault-a",
        "installing packages failed: the disk is full (/usr/src/",
        "No space left on device",
        "What to do: make room in /var",
    )
    assert half_done.after["fault-a"]


def test_postinst_fails(half_done: Stage) -> None:
    """A module that does not build is named with its kernel, not with what depends on it."""
    half_done.assert_said(
        "fault-b",
        "installing packages failed: the kernel module was not built",
        "dma_buf_attachment_is_dynamic",
        "What to do: read /var/lib/dkms/nvidia/",
    )
    assert half_done.after["fault-b"]


def test_reboot_that_does_not_come_back(half_done: Stage) -> None:
    """The run names the host, the time that it waited and where to look."""
    half_done.assert_said(
        "fault-d",
        "fault-d was told to reboot and does not answer after 15 s",
        "What to do: look at its console",
    )


def test_dpkg_interrupted_and_nouveau_bound(lab: Lab, half_done: Stage) -> None:
    """The run finishes what a killed dpkg left, and the reboot gives the GPUs to the driver."""
    assert "nouveau" in half_done.before["nouveau"]
    assert half_done.before["half"]
    half_done.assert_converged("fault-c")
    assert_driver_runs(lab, "fault-c")


@pytest.mark.parametrize("host", ["fault-e", UBUNTU])
def test_host_without_a_fault(lab: Lab, half_done: Stage, host: str) -> None:
    """It converges beside the others that fail."""
    half_done.assert_converged(host)
    assert_driver_runs(lab, host)


@pytest.fixture(scope="module")
def converged(lab: Lab, half_done: Stage) -> None:
    """The next run, the faults gone."""
    del half_done
    failed = ("fault-a", "fault-b", "fault-d")
    switch(lab, HALF_DONE, on=False)
    of(lab, "fault-d").sandbox("started")
    of(lab, *failed).converge()


@pytest.mark.usefixtures("converged")
@pytest.mark.parametrize("host", ["fault-a", "fault-b", "fault-d"])
def test_next_run_goes_on(lab: Lab, host: str) -> None:
    """From wherever the first was stopped."""
    assert_driver_runs(lab, host)


@pytest.fixture(scope="module")
def broken(lab: Lab, converged: None) -> Stage:
    """A run that meets what broke on hosts that were converged."""
    del converged
    switch(lab, BROKEN, on=True)
    before = {
        "fabric": of(lab, "fault-e").ssh(
            "systemctl", "is-active", "nvidia-fabricmanager", "||", "true"
        ),
        "smi": of(lab, UBUNTU).ssh("nvidia-smi", "||", "true"),
    }
    return Stage(lab.run(*QUICK), before, {})


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("fault-a", ("0000:4c:00.0: link 5 is down", "What to do: ")),
        ("fault-b", ("0000:19:00.0 a GPU is off the bus", "has Xid 79 of it")),
        ("fault-c", ("0000:19:00.0", "row remap", "What to do: ")),
        ("fault-d", ("In Progress", "What to do: ")),
    ],
    ids=[faults[0] for faults in list(BROKEN.values())[:4]],
)
def test_broken_hardware_is_not_called_healthy(
    broken: Stage, host: str, said: tuple[str, ...]
) -> None:
    """A fault that no package mends is named with its GPU."""
    broken.assert_said(host, *said)


def test_fabric_manager_of_another_version(lab: Lab, broken: Stage) -> None:
    """The run brings the driver's version back and starts it."""
    assert "failed" in broken.before["fabric"]
    broken.assert_converged("fault-e")
    host = of(lab, "fault-e")
    shown = host.ssh("dpkg-query", "-W", "-f", r"\${Version}", "nvidia-fabricmanager")
    assert shown == f"{RELEASE}-1"
    assert host.ssh("systemctl", "is-active", "nvidia-fabricmanager") == "active\n"


def test_half_upgrade(lab: Lab, broken: Stage) -> None:
    """Libraries that an unattended upgrade moved go back to the release of the loaded module."""
    assert "Driver/library version mismatch" in broken.before["smi"]
    broken.assert_converged(UBUNTU)
    assert_driver_runs(lab, UBUNTU)


@pytest.fixture(scope="module")
def mended(lab: Lab, broken: Stage) -> Stage:
    """The next run, nothing broken any more but a package that somebody holds."""
    del broken
    hardware = {host: BROKEN[host] for host in ("fault-a", "fault-b", "fault-c", "fault-d")}
    switch(lab, hardware, on=False)
    of(lab, UBUNTU).break_it("member_held")
    return Stage(lab.run(), {}, {})


@pytest.mark.parametrize("host", ALL[:-1])
def test_nothing_is_left_to_do(mended: Stage, host: str) -> None:
    """When a fault is gone, or was repaired by the run before, a run changes nothing."""
    mended.assert_converged(host)
    assert mended.run.counts(host)["changed"] == 0, mended.run.output


def test_member_held_in_another_version(lab: Lab, mended: Stage) -> None:
    """A hold on a package of the set does not keep the set apart."""
    mended.assert_converged(UBUNTU)
    assert_driver_runs(lab, UBUNTU)
    of(lab, UBUNTU).assert_settled()


SICK = {
    "ecc_errors": ("ecc", "the GPU has uncorrected memory errors", "drain_and_reset"),
    "row_remap_failure": ("remap", "a memory row could not be remapped", "replace"),
    "retired_pages": ("remap", "the GPU waits for a reset", "drain_and_reset"),
    "recovery_action": ("recovery", "the GPU asks for recovery", "reboot"),
    "xid_in_log": ("xids", "Xid 48 (", "drain_and_reset"),
}


@pytest.mark.usefixtures("mended")
def test_each_sickness_of_a_gpu_is_told_with_what_to_do(lab: Lab) -> None:
    """All at once on one GPU, and no other; then none."""
    host = of(lab, "fault-a")
    host.break_it(*SICK)
    failures = host.health(expect={"xids": True})["failures"]
    host.mend(*SICK)
    assert {failure["gpu"] for failure in failures} == {"0000:19:00.0"}
    told = [(one["check"], one["what"], one["action"]) for one in failures]
    for fault, (check, what, action) in SICK.items():
        assert any((check, action) == (c, a) and w.startswith(what) for c, w, a in told), fault
    assert host.health()["healthy"]


@pytest.mark.usefixtures("mended")
def test_nvidia_smi_that_hangs(lab: Lab) -> None:
    """It is given up after its time, and that is the failure."""
    host = of(lab, "fault-a")
    host.break_it("smi_hangs")
    health = host.health(timeout=2)
    host.mend("smi_hangs")
    (failure,) = health["failures"]
    assert failure["what"] == "nvidia-smi gives no answer"
    assert failure["action"] == "reboot"
    assert health["seconds"] < 20
