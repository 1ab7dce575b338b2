# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations on a driver, on sandbox hosts: recovery from what people have, and upgrades."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fault_runs import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "operations"
OLD, NEW, OLDER = "580.159.04", "580.178.04", "570.211.01"
BOTH = ("--limit", "ops-1,ops-2,localhost")
TO_NEW = (*BOTH, "-e", f"site_release={NEW}")
RECOVER, UPGRADE = "playbooks/recover_driver.yml", "playbooks/upgrade_driver.yml"


def lab(host: str, folder: Path) -> Lab:
    """Runs on one of the hosts; both share their locks."""
    return Lab(host, FOLDER / "inventory", folder)


def make(host: Lab, state: str) -> None:
    """Bring the host into a state that one finds in the field."""
    host.ssh((FOLDER / "states" / f"{state}.sh").read_text(encoding="utf-8"))


def driver(host: Lab) -> str:
    """The driver that answers, is loaded, on disk and in the packages: one version, or it fails."""
    assert len(host.ssh("nvidia-smi", "-L").splitlines()) == 1
    version = host.ssh("modinfo", "-F", "version", "nvidia").strip()
    assert version in host.ssh("cat", "/proc/driver/nvidia/version")
    shown = host.ssh("dpkg-query", "-W", "-f='${Version}\\n'", "libcuda1", "libnvidia-ml1")
    assert set(shown.split()) == {f"{version}-1"}
    assert not host.ssh("dpkg", "--audit")
    return version


def boot(host: Lab) -> str:
    """Which boot of the host this is."""
    return host.ssh("cat", "/proc/sys/kernel/random/boot_id")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Lab]]:
    """Two hosts with the old driver, gone again at the end."""
    folder = tmp_path_factory.mktemp("operations")
    first, second = lab("ops-1", folder), lab("ops-2", folder)
    sandbox = "playbooks/sandbox.yml"
    up = first.run(*BOTH, "-e", "sandbox_state=reset", playbook=sandbox)
    assert up.rc == 0, up.output
    try:
        first.converge(*BOTH)
        yield first, second
    finally:
        down = first.run(*BOTH, "-e", "sandbox_state=absent", playbook=sandbox)
        assert down.rc == 0, down.output


def assert_recovered(host: Lab, *stays: str) -> None:
    """The driver answers, nothing is left of another one, and one more run changes nothing."""
    assert driver(host) == OLD
    assert host.ssh("find / -xdev -name '*570.211.01*'") == ""
    assert "nvidia" not in host.ssh("dpkg-divert --list; update-alternatives --get-selections")
    again = host.run(playbook=RECOVER)
    assert again.rc == 0, again.output
    assert again.counts(host.host)["changed"] == 0, again.changed_tasks()
    if not stays:
        assert "Nothing is wrong with the driver of ops-1" in again.said
    for path in stays:
        assert f"{path} stays, for nobody can say whose it is" in again.said


def test_installer_over_packages_is_recovered(hosts: tuple[Lab, Lab]) -> None:
    """Diagnosed in words, undone, installed anew; what nobody can attribute stays and is named."""
    host, _ = hosts
    make(host, "runfile")

    done = host.run(playbook=RECOVER)
    assert done.rc == 0, done.output
    for said in (
        "NVIDIA's installer was at work here, over the packages",
        f"the nvidia module on disk is {OLDER} and not {OLD}",
        f"module and libraries are of two versions: module {OLD}, libraries {OLDER}",
        "dpkg --verify names /usr/bin/nvidia-smi",
        "kernel/drivers/video/nvidia.ko, DKMS nvidia/570.211.01",
        "diversion of /usr/lib/x86_64-linux-gnu/libGL.so.1 to /usr/lib/nvidia/libGL.so.1",
        "/usr/local/lib/libcuda.so.1 stays, for nobody can say whose it is",
    ):
        assert said in done.said, done.output
    assert host.ssh("cat /usr/lib/x86_64-linux-gnu/libGL.so.1").strip() == "simulated"
    assert_recovered(host, "/usr/local/lib/libcuda.so.1")
    host.ssh("rm /usr/local/lib/libcuda.so.1")


def test_half_upgrade_is_recovered(hosts: tuple[Lab, Lab]) -> None:
    """Libraries of the next release, a package only unpacked, headers and module gone."""
    host, _ = hosts
    make(host, "half_upgrade")

    done = host.run(playbook=RECOVER)
    assert done.rc == 0, done.output
    for said in (
        "packages are half installed: nvidia-persistenced (unpacked)",
        f"beside {OLD}: libcuda1 {NEW}-1, libnvidia-ml1 {NEW}-1",
        "there is no nvidia module for the running kernel",
        "has no usable headers",
    ):
        assert said in done.said, done.output
    assert_recovered(host)


def test_upgrade_stops_at_a_canary_that_fails(hosts: tuple[Lab, Lab]) -> None:
    """It goes back, the other host is untouched; mended, the same command upgrades both."""
    canary, other = hosts
    make(canary, "no_module_at_boot")
    before, first = boot(other), boot(canary)

    failed = canary.run(*TO_NEW, playbook=UPGRADE)
    assert failed.rc != 0
    assert f"ops-1 was not upgraded from driver {OLD} to {NEW}: " in failed.said, failed.output
    assert f"The rollback holds: driver {OLD} is back, loaded and proved" in failed.said, (
        failed.output
    )
    assert "Not reached and left as they are: ops-2." in failed.said
    assert failed.counts("ops-2")["changed"] == 0, failed.changed_tasks()
    assert driver(canary) == driver(other) == OLD
    assert boot(other) == before
    assert boot(canary) != first
    assert f"version: {OLD}" in canary.ssh("cat", "/etc/llmetal/lock.yml")

    canary.ssh("systemctl disable lose-module.service")
    done = canary.run(*TO_NEW, "-e", "upgrade_canary=ops-2", playbook=UPGRADE)
    assert done.rc == 0, done.output
    upgraded = [f"{name} has driver {NEW}, loaded and proved" for name in ("ops-2", "ops-1")]
    assert done.said.index(upgraded[0]) < done.said.index(upgraded[1])
    assert driver(canary) == driver(other) == NEW
    assert f"version: {NEW}" in other.ssh("cat", "/etc/llmetal/lock.yml")

    again = canary.run(*TO_NEW, playbook=UPGRADE)
    assert again.rc == 0, again.output
    assert f"nothing to do, its driver {NEW} is that of its lock" in again.said
    assert [again.counts(name)["changed"] for name in ("ops-1", "ops-2")] == [0, 0]
