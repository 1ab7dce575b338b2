# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A site run that is killed leaves nothing that the next run does not finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Site


def test_killed_in_the_driver_role_converges_then_changes_nothing(site: Site) -> None:
    """Killed while packages unpack, killed again while it reboots; then one run does it all."""
    first_boot = site.ssh("cat", "/proc/sys/kernel/random/boot_id")

    site.kill_at("nvidia_driver : Install headers", after=2.0)
    site.kill_at("nvidia_driver : Reboot", after=0.5)

    finished = site.run()
    assert finished.rc == 0, finished.output
    assert site.ssh("cat", "/proc/sys/kernel/random/boot_id") != first_boot
    version = site.ssh("modinfo", "-F", "version", "nvidia").strip()
    assert version in site.ssh("cat", "/proc/driver/nvidia/version")
    assert len(site.ssh("nvidia-smi", "-L").splitlines()) == 8
    assert not site.ssh("dpkg", "--audit")

    again = site.run()
    assert again.rc == 0, again.output
    assert again.counts()["changed"] == 0, again.output
