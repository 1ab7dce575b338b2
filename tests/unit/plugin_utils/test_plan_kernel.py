# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Headers of the running kernel and of the one that a reboot boots; Secure Boot."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import planner

A100, KERNEL, NEWER = "20b2", "6.1.0-41-amd64", "6.1.0-48-amd64"
MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}
BOTH = {"gpus": (A100,), "kernel__installed": [KERNEL, NEWER]}


def driver(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of the variable
    """A driver from NVIDIA's repository, but for some values."""
    return {"driver": {"source": "cuda_repo", "mirror": MIRROR, **changes}}


@pytest.mark.parametrize("installed", [[], [KERNEL], ["6.1.0-39-amd64", KERNEL]])
def test_the_running_kernel_is_the_newest(bench: Any, installed: list[str]) -> None:  # noqa: ANN401 - see conftest.py
    """A reboot boots it again, or nobody said what it boots."""
    lock = bench.plan(driver(), gpus=(A100,), kernel__installed=installed).lock
    assert lock["kernel"]["newest"] is None


def test_headers_of_the_newest(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """They are asked for, and locked beside those of the running one."""
    question = planner.question(
        bench.request(**driver()), bench.facts(**BOTH), bench.compat
    ).packages
    assert {f"linux-headers-{KERNEL}", f"linux-headers-{NEWER}"} <= set(question)
    answers = bench.candidates(packages={f"linux-headers-{NEWER}": ["6.1.170-1"]})
    lock = bench.plan(driver(), candidates=answers, **BOTH).lock
    assert lock_.validate(lock, "here")["kernel"]["newest"] == {
        "release": NEWER,
        "headers": {"package": f"linux-headers-{NEWER}", "version": "6.1.170-1"},
    }


def test_installed_headers_stay(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """What is there is not asked for in another version."""
    packages = {f"linux-headers-{NEWER}": "6.1.169-1"}
    lock = bench.plan(driver(), packages=packages, **BOTH).lock
    assert lock["kernel"]["newest"]["headers"]["version"] == "6.1.169-1"


def test_no_headers_of_the_newest(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """The next reboot would boot a kernel without a module."""
    (refusal,) = bench.plan(driver(), **BOTH).refusals
    assert refusal.rule == "headers-missing-newest"
    assert f"a reboot boots Linux {NEWER}" in refusal.fact
    assert f"apt-get purge linux-image-{NEWER}" in refusal.fix


def test_nobody_was_asked(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Its version is then one of the fields that are left open."""
    looked = bench.plan({**driver(), "plan_lock": "compare"}, candidates={}, **BOTH).lock
    assert looked["kernel"]["newest"]["headers"]["version"] is None
    assert "kernel.newest.headers" in [row["field"] for row in looked["unresolved"]]


@pytest.mark.parametrize(
    ("running", "rules"), [(KERNEL, []), (NEWER, []), ("6.1.0-50-amd64", ["lock-kernel"])]
)
def test_a_lock_holds_after_the_reboot(bench: Any, running: str, rules: list[str]) -> None:  # noqa: ANN401 - see conftest.py
    """The host then runs the kernel that was the newest; the modules were built for it too."""
    answers = bench.candidates(packages={f"linux-headers-{NEWER}": ["6.1.170-1"]})
    lock = bench.plan(driver(), candidates=answers, **BOTH).lock
    plan = bench.plan(driver(), existing=lock, gpus=(A100,), kernel__running=running)
    assert [finding.rule for finding in plan.refusals] == rules


@pytest.mark.parametrize(
    ("system", "key"),
    [("debian12", "/var/lib/dkms/mok.key"), ("ubuntu2404", "/var/lib/shim-signed/mok/MOK.priv")],
)
def test_secure_boot(bench: Any, system: str, key: str) -> None:  # noqa: ANN401 - see conftest.py
    """Refused, or a key of the system's own place; without Secure Boot neither."""
    facts = {"gpus": (A100,), "kernel__secure_boot": "enabled", "os__key": system}
    answers = bench.candidates(
        packages={
            name: ["580.178.04-1"]
            for name in (
                "nvidia-dkms-580-open",
                "libnvidia-compute-580",
                "nvidia-utils-580",
                "nvidia-compute-utils-580",
            )
        }
    )
    (refusal,) = bench.plan(driver(), candidates=answers, **facts).refusals
    assert refusal.rule == "secure-boot"
    assert "llmetal_driver.secure_boot" in refusal.fix
    enrolled = bench.plan(driver(secure_boot="enrol"), candidates=answers, **facts).lock
    assert enrolled["driver"]["secure_boot"]["key"] == key
    lock_.validate(enrolled, "here")
    facts["kernel__secure_boot"] = "disabled"
    off = bench.plan(driver(secure_boot="enrol"), candidates=answers, **facts).lock
    assert off["driver"]["secure_boot"] is None


def test_unload(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Whether modules may be swapped without a reboot is the inventory's word."""
    assert bench.plan(driver(unload=True), gpus=(A100,)).lock["driver"]["unload"] is True
