# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secure Boot: a key is requested, a person confirms it at the console, and the next run goes on.

The firmware, its console and `mokutil` are simulated; the key is a real one.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

import pytest
from fault_runs import FOLDER, Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAYBOOK = "tests/faults/driver.yml"
BOOT = "/proc/sys/kernel/random/boot_id"
PASSWORD = "console4711"  # noqa: S105 - of a simulated console
RUN = ("-vvv", "--diff", "-e", json.dumps({"nvidia_driver_mok_password": PASSWORD}))


def reboot(host: Lab) -> None:
    """Boot anew, and wait until that is done."""
    boot = host.ssh("cat", BOOT)
    host.ssh("systemd-run", "--on-active=1", "systemctl", "reboot")
    for _ in range(60):
        time.sleep(1)
        with contextlib.suppress(AssertionError):
            if host.ssh("cat", BOOT) != boot:
                return
    pytest.fail(f"{host.host} did not boot anew")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A GeForce on Ubuntu with Secure Boot, and no driver yet."""
    made = Lab("fault-secure", FOLDER / "driver", tmp_path_factory.mktemp("secure"), PLAYBOOK)
    made.sandbox("reset")
    try:
        made.break_it("secure_boot")
        reboot(made)
        yield made
    finally:
        made.sandbox("absent")


def test_from_the_request_to_the_driver(host: Lab) -> None:
    """Each run says what a person has to do, and the one after that does the rest."""
    without = host.run()
    assert without.rc == 2, without.output
    for words in ("no password for its request is set", "llmetal_mok_password"):
        assert words in without.said, without.output

    requested = host.run(*RUN)
    assert requested.rc == 2, requested.output
    for words in ("Enroll MOK", "BMC, KVM", "llmetal_mok_password", "then run again"):
        assert words in requested.said, requested.output
    assert PASSWORD not in requested.output

    waiting = host.run(*RUN)
    assert "Enroll MOK" in waiting.said, waiting.output
    assert waiting.counts(host.host)["changed"] == 0, waiting.output

    host.ssh("python3", "/usr/lib/sandbox-hardware/mokutil.py", "at-console")
    host.converge(*RUN)
    assert "580.159.04" in host.ssh("cat", "/proc/driver/nvidia/version")
    again = host.run()
    assert again.rc == 0, again.output
    assert again.counts(host.host)["changed"] == 0, again.output
