# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exchanging the loaded driver: who holds it, what is done, and what is left where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_reload,
    driver_state,
    units,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.driver_reload import (
    Holder,
    Loaded,
    Outcome,
    converge,
    holders,
    loaded_modules,
    module_holders,
    parse_modules,
    still_referenced,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OLD, NEW = "580.159.04", "580.178.04"
PERSISTENCED = "nvidia-persistenced.service"
MODULES = (
    "nvidia_uvm 1814528 0 - Live 0x0 (OE)\nnvidia_modeset 1 0 - Live 0x0 (OE)\n"
    "nvidia 14376960 {} nvidia_uvm,nvidia_modeset, Live 0x0 (OE)\nloop 40960 0 - Live 0x0\n"
)


@dataclass
class MadeHost:
    """A host with a loaded driver, and what its programs do to it."""

    proc: Path
    references: int = 2
    failing: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    active: set[str] = field(default_factory=lambda: {PERSISTENCED})
    disk: tuple[str | None, str | None] = (NEW, "open")

    def load(self, version: str | None) -> None:
        """Show a loaded driver, or none."""
        file = self.proc / "driver/nvidia/version"
        file.parent.mkdir(parents=True, exist_ok=True)
        modules = self.proc / "modules"
        if version is None:
            file.unlink(missing_ok=True)
            modules.write_text("loop 40960 0 - Live 0x0\n")
            return
        line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release\n"
        file.write_text(line)
        modules.write_text(MODULES.format(self.references))

    def run(self, argv: Sequence[str], **_: object) -> CommandResult:
        """Stand in for rmmod, modprobe and systemctl."""
        line = " ".join(argv)
        self.calls.append(line)
        if line in self.failing:
            return CommandResult(tuple(argv), 1, "", self.failing[line])
        if line == "rmmod nvidia":
            self.load(None)
        elif line == "modprobe nvidia":
            self.load(self.disk[0])
        elif argv[:2] == ["systemctl", "stop"] or argv[:2] == ("systemctl", "stop"):
            self.active.discard(argv[2])
        elif argv[:2] == ["systemctl", "start"] or argv[:2] == ("systemctl", "start"):
            self.active.add(argv[2])
        return CommandResult(tuple(argv), 0, "", "")

    def converge(self, version: str = NEW, **more: Any) -> Outcome:  # noqa: ANN401 - any option
        """Ask for a driver."""
        given = {"services": [PERSISTENCED], "kernel": "6.1.0", "proc": str(self.proc), **more}
        return converge(version, **given)

    def hold(self, pid: int, device: str, unit: str) -> None:
        """A process that has a device open."""
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/3").symlink_to(device)
        (folder / "cmdline").write_text("python3\0serve.py\0")
        (folder / "cgroup").write_text(f"0::/system.slice/{unit}\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeHost:
    """A host with the old driver loaded and the new one on disk."""
    made = MadeHost(tmp_path)
    made.load(OLD)
    monkeypatch.setattr(driver_reload, "run", made.run)
    monkeypatch.setattr(driver_reload, "_SETTLE", 0.0)
    monkeypatch.setattr(driver_state, "module_on_disk", lambda _root, _kernel: made.disk)
    monkeypatch.setattr(
        units,
        "show",
        lambda names: {
            name: {"active": "active" if name in made.active else "inactive", "enabled": "enabled"}
            for name in names
        },
    )
    return made


def test_modules() -> None:
    """Reference counts and users, without the dash that stands for none."""
    modules = parse_modules(MODULES.format(3))
    assert modules["nvidia"] == Loaded(3, ("nvidia_uvm", "nvidia_modeset"))
    assert modules["nvidia_uvm"] == Loaded(0, ())
    assert still_referenced(modules) == [Holder("kernel", "nvidia: 3 references")]
    foreign = {"nvidia": Loaded(1, ("gdrdrv",)), "nvidia_uvm": Loaded(0, ())}
    assert module_holders(foreign) == [Holder("kernel module", "gdrdrv")]


def test_modules_of_sysfs(tmp_path: Path) -> None:
    """Where there is no list of modules, sysfs has each with its count and its users."""
    folder = tmp_path / "sys/module/nvidia"
    (folder / "holders/nvidia_uvm").mkdir(parents=True)
    (folder / "refcnt").write_text("2\n")
    (tmp_path / "proc").mkdir()
    assert loaded_modules(str(tmp_path / "proc")) == {"nvidia": Loaded(2, ("nvidia_uvm",))}


def test_nothing_to_do(host: MadeHost) -> None:
    """The wanted driver is loaded: nothing is asked, stopped or unloaded."""
    outcome = host.converge(OLD, flavour="open")
    assert (outcome.needed, outcome.reloaded, host.calls) == (False, False, [])


def test_exchange(host: MadeHost) -> None:
    """The daemon is stopped, modules go in order, the new ones come, the daemon runs again."""
    outcome = host.converge()
    assert outcome.reloaded
    assert (outcome.loaded, outcome.version, outcome.why) == (OLD, NEW, "")
    assert host.calls == [
        f"systemctl stop {PERSISTENCED}",
        "rmmod nvidia_modeset",
        "rmmod nvidia_uvm",
        "rmmod nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "modprobe nvidia_modeset",
        f"systemctl start {PERSISTENCED}",
    ]
    assert not host.converge().needed


def test_other_flavour(host: MadeHost) -> None:
    """The same version with other modules is another driver."""
    host.disk = (OLD, "proprietary")
    assert host.converge(OLD, flavour="proprietary", check_mode=True).reloaded


def test_check_mode(host: MadeHost) -> None:
    """Nothing is done, and the version is predicted before the new one is on disk."""
    host.disk = (OLD, "open")
    outcome = host.converge(check_mode=True)
    assert (outcome.reloaded, outcome.version, host.calls) == (True, NEW, [])


def test_held_by_a_process(host: MadeHost) -> None:
    """Nothing is stopped where a process has a device open, and it is named."""
    host.hold(4711, "/dev/nvidia-uvm", "chat.service")
    outcome = host.converge()
    assert not outcome.reloaded
    assert outcome.why == "in use: process 4711 python3 serve.py (chat.service)"
    assert host.calls == []


def test_own_services_do_not_hold(host: MadeHost) -> None:
    """The daemon that will be stopped is no reason against it; a directory is no device."""
    host.hold(4711, "/dev/nvidiactl", PERSISTENCED)
    host.hold(4712, "/usr/bin/nvidia-smi", "other.service")
    assert holders(str(host.proc), [PERSISTENCED]) == []


def test_nouveau_is_never_unloaded(host: MadeHost) -> None:
    """With nouveau on the GPU only a reboot helps."""
    host.load(None)
    (host.proc / "modules").write_text("nouveau 2437120 1 - Live 0x0\n")
    outcome = host.converge()
    assert "nouveau, which has the GPU" in outcome.why
    assert host.calls == []


def test_service_that_does_not_let_go(host: MadeHost) -> None:
    """What still refers to a module after the services stopped keeps it; they run again."""
    host.references = 3
    host.load(OLD)
    outcome = host.converge()
    assert not outcome.reloaded
    assert outcome.why == "in use: kernel nvidia: 3 references"
    assert host.calls == [f"systemctl stop {PERSISTENCED}", f"systemctl start {PERSISTENCED}"]


def test_module_that_does_not_go(host: MadeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was unloaded comes back, the services run, and it says which module stayed."""
    host.failing = {"rmmod nvidia": "rmmod: ERROR: Module nvidia is in use"}
    host.disk = (NEW, "open")
    host.failing["modprobe nvidia_uvm"] = "modprobe: ERROR: could not insert"

    def run(argv: Sequence[str], **more: object) -> CommandResult:
        if list(argv) == ["modprobe", "nvidia"]:
            host.calls.append("modprobe nvidia")
            return CommandResult(tuple(argv), 0, "", "")
        return host.run(argv, **more)

    monkeypatch.setattr(driver_reload, "run", run)
    outcome = host.converge()
    assert not outcome.reloaded
    assert outcome.version == OLD
    assert "nvidia cannot be unloaded: rmmod: ERROR: Module nvidia is in use" in outcome.why
    assert "nvidia_uvm cannot be loaded" in outcome.why
    assert PERSISTENCED in host.active


def test_other_module_on_disk(host: MadeHost) -> None:
    """Nothing is stopped where the wanted module is not there to be loaded."""
    host.disk = (None, None)
    outcome = host.converge()
    assert outcome.why == "the module on disk for Linux 6.1.0 is none"
    assert host.calls == []
