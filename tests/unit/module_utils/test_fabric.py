# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric manager: of one version with the driver, and never touched under programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import fabric, gpu
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.dpkg import Database, Package
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.service import Manager, UnitState

if TYPE_CHECKING:
    from pathlib import Path

WANTED = fabric.Wanted(
    service="nvidia-fabricmanager.service",
    package="nvidia-fabricmanager",
    version="580.159.04-1",
    packages={"libnvidia-nscq": "580.159.04-1"},
)
HERE = {"nvidia-fabricmanager": "580.159.04-1", "libnvidia-nscq": "580.159.04-1"}
RUNNING = UnitState(load="loaded", active="active", sub="running", enabled="enabled", main_pid=7)
STOPPED = UnitState(load="loaded")
NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"


def seen(
    unit: UnitState = RUNNING,
    driver: str | None = "580.159.04",
    changed: float | None = None,
    **packages: str | None,
) -> fabric.Seen:
    """A host on which all is well, but for some things."""
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return fabric.Seen(unit, {**HERE, **named}, driver, changed)


def test_all_is_well() -> None:
    """Nothing to do, nothing to refuse."""
    fabric.check(WANTED, seen())
    assert fabric.action_of(seen()) == "none"
    assert seen().as_dict() == {
        "active": "active",
        "enabled": True,
        "stale": False,
        "packages": HERE,
        "driver": "580.159.04",
    }


@pytest.mark.parametrize(
    ("unit", "age", "action"),
    [
        (STOPPED, None, "start"),
        (UnitState(load="loaded", active="failed"), None, "start"),
        (RUNNING, 3600.0, "none"),
        (RUNNING, -1.0, "restart"),
    ],
)
def test_action(unit: UnitState, age: float | None, action: str) -> None:
    """A process that is older than its program is of another version."""
    started = time.time() - time.monotonic()
    changed = None if age is None else started - age
    assert fabric.action_of(seen(unit, changed=changed)) == action


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (
            seen(nvidia_fabricmanager="580.95.05-1"),
            "not of the lock's version.*nvidia-fabricmanager is 580.95.05-1, the lock has 580.159",
        ),
        (seen(nvidia_fabricmanager=None), "nvidia-fabricmanager is not installed"),
        (seen(libnvidia_nscq="580.95.05-1"), "libnvidia-nscq is 580.95.05-1"),
        (seen(driver=None), "ends at once with this driver.*no NVIDIA driver is loaded"),
        (
            seen(driver="580.95.05"),
            "the fabric manager is 580.159.04, the loaded driver 580.95.05.*reboot into",
        ),
        (seen(UnitState(load="masked")), "is masked.*systemctl unmask nvidia-fabricmanager"),
    ],
)
def test_what_cannot_run(host: fabric.Seen, message: str) -> None:
    """It is refused before anything is touched, with what to do."""
    with pytest.raises(LlmetalError, match=message):
        fabric.check(WANTED, host)


def test_never_under_programs() -> None:
    """They would keep the old state of the fabric."""
    fabric.refuse_under([], "restart", WANTED.service)
    processes = [{"pid": 4000 + number, "name": "vllm"} for number in range(7)]
    with pytest.raises(LlmetalError, match=r"must not restart.*4000 \(vllm\).*and 2 more.*drain"):
        fabric.refuse_under(processes, "restart", WANTED.service)


def test_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unit, packages, driver and program, in one look."""
    package = Package("nvidia-fabricmanager", "amd64", "580.159.04-1", "hold", "installed")
    monkeypatch.setattr(fabric, "query", lambda _names: Database({package.name: package}))
    monkeypatch.setattr(Manager, "state_of", lambda _manager, _name: STOPPED)
    nothing = fabric.see(WANTED, Manager(), str(tmp_path))
    assert (nothing.driver, nothing.program_changed) == (None, None)
    for name, text in (("usr/bin/nv-fabricmanager", ""), ("proc/driver/nvidia/version", NVRM)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    found = fabric.see(WANTED, Manager(), str(tmp_path))
    assert found.driver == "580.159.04"
    assert found.packages == {"nvidia-fabricmanager": "580.159.04-1", "libnvidia-nscq": None}
    assert found.program_changed is not None


def test_no_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can run it there."""
    monkeypatch.setattr(Manager, "state_of", lambda _manager, _name: None)
    with pytest.raises(LlmetalError, match="no systemd answers"):
        fabric.see(WANTED, Manager())


def _answering(monkeypatch: pytest.MonkeyPatch, *states: UnitState, log: str = "") -> list[Any]:
    """A systemd whose unit goes through some states."""
    left, calls = list(states), []

    def systemctl(_manager: Manager, *words: str, timeout: float | None = None) -> CommandResult:
        assert timeout is None
        calls.append(words)
        return CommandResult(words, 0, "", "")

    def state_of(_manager: Manager, _name: str) -> UnitState:
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(Manager, "systemctl", systemctl)
    monkeypatch.setattr(Manager, "state_of", state_of)
    monkeypatch.setattr(Manager, "log_tail", lambda *_words: log.splitlines())
    monkeypatch.setattr(fabric, "_POLL", 0.01)
    monkeypatch.setattr(fabric, "_STEADY", 0.05)
    return calls


def test_it_stays_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is forgiven its failures first, then watched for a while."""
    calls = _answering(monkeypatch, RUNNING)
    assert fabric.run_it(WANTED, "start", Manager()) == RUNNING
    assert calls == [("reset-failed", WANTED.service), ("start", WANTED.service)]


@pytest.mark.parametrize(
    ("last", "log", "message"),
    [
        (
            UnitState(active="failed", result="exit-code"),
            "version 580.95.05 don't match with driver version 580.159.04.",
            "did not start.*don't match.*in the driver's version",
        ),
        (
            UnitState(active="failed", result="exit-code"),
            "failed with error: NV_WARN_NOTHING_TO_DO",
            "NOTHING_TO_DO.*needs nvlsm",
        ),
        (
            UnitState(active="inactive", condition_failed=True),
            "",
            "is skipped.*sees no NVSwitch on the PCI bus",
        ),
        (UnitState(active="failed"), "something new", "something new.*fabricmanager.log"),
    ],
)
def test_it_does_not(
    last: UnitState, log: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last words, and what they mean."""
    _answering(monkeypatch, RUNNING, last, log=log)
    with pytest.raises(LlmetalError, match=message):
        fabric.run_it(WANTED, "start", Manager())


def test_who_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not say who computes is no leave to touch the fabric."""
    smi: dict[str, Any] = {"rc": 0, "message": ""}
    one = {"source": "driver", "processes": [{"pid": 7, "name": "vllm"}]}
    report = {"driver": {"smi": smi}, "gpus": [one]}
    monkeypatch.setattr(gpu, "gather", lambda: None)
    monkeypatch.setattr(gpu, "report", lambda _evidence: report)
    assert fabric.computing() == [{"pid": 7, "name": "vllm"}]
    one.update(source="pci", processes=[])
    with pytest.raises(LlmetalError, match="it describes no GPU"):
        fabric.computing()
    smi.update(rc=9, message="couldn't communicate")
    with pytest.raises(LlmetalError, match="does not say which processes compute"):
        fabric.computing()
