# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Site runs that fail or are killed: what they say, and that the next run finishes the work."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fault_runs import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

INVENTORY = Path(__file__).parent / "inventory"
HOST = "fault-1"
_SHUTDOWN = 3.0
"""Seconds in which a host that was told to reboot has gone down."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Lab]:
    """A fresh sandbox host, gone again at the end."""
    made = Lab(HOST, INVENTORY, tmp_path)
    made.sandbox("started")
    try:
        yield made
    finally:
        made.sandbox("absent")


def test_killed_in_the_driver_role_converges_then_changes_nothing(site: Lab) -> None:
    """Killed while packages unpack, killed again while it reboots; then one run does it all."""
    first_boot = site.ssh("cat", "/proc/sys/kernel/random/boot_id")

    site.kill_at("nvidia_driver : Install headers", after=2.0)
    site.kill_at("nvidia_driver : Reboot", after=0.5)
    # A host that is down is reported, not waited for: the next run begins when it answers again.
    time.sleep(_SHUTDOWN)
    site.wait_for_ssh()

    finished = site.run()
    assert finished.rc == 0, finished.output
    assert site.ssh("cat", "/proc/sys/kernel/random/boot_id") != first_boot
    version = site.ssh("modinfo", "-F", "version", "nvidia").strip()
    assert version in site.ssh("cat", "/proc/driver/nvidia/version")
    assert len(site.ssh("nvidia-smi", "-L").splitlines()) == 8
    assert not site.ssh("dpkg", "--audit")

    again = site.run()
    assert again.rc == 0, again.output
    assert again.counts(HOST)["changed"] == 0, again.output


@pytest.mark.parametrize(
    ("fault", "stage", "what", "fix"),
    [
        ("disk_full", "Converge", "the disk is full", "make room in /var"),
        ("repo_404", "Resolve", "(404)", "check address and suite in the inventory"),
    ],
)
def test_a_fault_is_named_and_the_next_run_converges(
    site: Lab, fault: str, stage: str, what: str, fix: str
) -> None:
    """Exit code 4 with host, stage, cause and what to do; mended, the same command converges."""
    locks = json.dumps({"llmetal_lock_dir": str(site.folder / "locks")})
    command = ("site", "-i", str(INVENTORY), "-e", locks)
    assert site.llmetal("sandbox", "break", HOST, fault).rc == 0

    failed = site.llmetal(*command)
    assert failed.rc == 4, failed.output
    assert f"failed: {HOST} in {stage}" in failed.output
    assert what in failed.output
    assert fix in failed.output

    assert site.llmetal("sandbox", "break", HOST, fault, "--fix").rc == 0
    mended = site.llmetal(*command)
    assert mended.rc == 0, mended.output
    assert len(site.ssh("nvidia-smi", "-L").splitlines()) == 8
