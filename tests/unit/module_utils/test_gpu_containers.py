# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers with GPUs are found without asking any engine, and stop a reload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import gpu_containers as subject
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.service import Manager, UnitState

if TYPE_CHECKING:
    from pathlib import Path

ID = "4f1c0ffee123" + "0" * 52
OTHER = "badc0ffee123" + "0" * 52
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
UNIT = "nvidia-fabricmanager.service"


def process(proc: Path, pid: int, cgroup: str, *devices: str) -> None:
    """A process with device files in its root."""
    folder = proc / str(pid)
    (folder / "root/dev").mkdir(parents=True)
    (folder / "cgroup").write_text(f"{cgroup}\n")
    (folder / "cmdline").write_text("/usr/bin/vllm\0serve\0secret\0")
    for name in devices:
        (folder / "root/dev" / name).touch()


@pytest.mark.parametrize(
    ("cgroup", "engine", "scope"),
    [
        (f"0::/system.slice/docker-{ID}.scope", "docker", True),
        (f"0::{POD}/cri-containerd-{ID}.scope", "cri-containerd", True),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "libpod", True),
        (f"0::/docker/{ID}", "docker", False),
        (f"11:devices:/kubepods/besteffort/pod7/{ID}\n0::/", "container", False),
    ],
)
def test_container_of(cgroup: str, engine: str, scope: bool) -> None:  # noqa: FBT001 - a column
    """By the cgroup that each engine gives its containers."""
    assert subject.container_of(cgroup) == ("4f1c0ffee123", engine, scope)


@pytest.mark.parametrize("cgroup", [None, "", "0::/system.slice/ssh.service", "0::/user.slice"])
def test_no_container(cgroup: str | None) -> None:
    """A service is none."""
    assert subject.container_of(cgroup) is None


def test_running(tmp_path: Path) -> None:
    """Only containers that see a GPU's device file, each once."""
    process(tmp_path, 1, "0::/init.scope", "nvidia0", "nvidiactl")
    process(tmp_path, 20, f"0::/system.slice/docker-{ID}.scope", "null", "nvidiactl")
    process(tmp_path, 21, f"0::/system.slice/docker-{ID}.scope", "null", "nvidiactl")
    process(tmp_path, 30, f"0::/system.slice/docker-{OTHER}.scope", "null")
    (tmp_path / "self").mkdir()
    (found,) = subject.running(str(tmp_path))
    assert found.as_dict() == {
        "id": "4f1c0ffee123",
        "engine": "docker",
        "pid": 20,
        "program": "/usr/bin/vllm",
        "scope": True,
    }


def test_only_scopes_are_endangered(tmp_path: Path) -> None:
    """Only the cgroups that systemd manages get their device rules anew."""
    process(tmp_path, 20, f"0::/docker/{ID}", "nvidia0")
    assert subject.running(str(tmp_path))
    subject.refuse_reload(str(tmp_path))
    process(tmp_path, 21, f"0::/system.slice/docker-{OTHER}.scope", "nvidia0")
    with pytest.raises(LlmetalError, match=r"docker badc0ffee123 .*takes the GPUs out of them"):
        subject.refuse_reload(str(tmp_path))


def test_nothing_to_look_at(tmp_path: Path) -> None:
    """A host that hides its processes has none."""
    assert subject.running(str(tmp_path / "gone")) == []


class Systemd:
    """A systemd that has one unit, and remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: UnitState) -> None:
        """Stand in for the real one."""
        self.calls: list[tuple[str, ...]] = []
        self.manager = Manager()

        def systemctl(
            _manager: Manager, *words: str, timeout: float | None = None
        ) -> CommandResult:
            assert timeout is None
            if words[0] == "is-enabled":
                return CommandResult(words, 0, f"{state.enabled or 'disabled'}\n", "")
            self.calls.append(words)
            return CommandResult(words, 0, "", "")

        monkeypatch.setattr(Manager, "systemctl", systemctl)
        monkeypatch.setattr(Manager, "state_of", lambda _manager, _name: state)
        monkeypatch.setattr(subject, "endangered", list)

    def reload(self, *, postpone: bool = False) -> subject.Reload:
        """Look and act."""
        reload = subject.look([UNIT], [UNIT], self.manager)
        subject.act(reload, self.manager, postpone=postpone)
        return reload


def test_a_reload_only_where_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a changed unit, or so that systemd knows that one is enabled now."""
    fresh = Systemd(monkeypatch, UnitState(load="loaded"))
    fresh.reload()
    assert fresh.calls == [("--root=/", "enable", UNIT), ("daemon-reload",)]
    stale = Systemd(monkeypatch, UnitState(load="loaded", enabled="enabled", needs_reload=True))
    stale.reload()
    assert stale.calls == [("daemon-reload",)]


def test_containers_postpone_or_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only matters at a boot waits for it; all else fails."""
    systemd = Systemd(monkeypatch, UnitState(load="loaded", enabled="enabled", needs_reload=True))
    held = [subject.GpuContainer("4f1c0ffee123", "docker", 20, "vllm", scope=True)]
    monkeypatch.setattr(subject, "endangered", lambda _proc="/proc": held)
    assert systemd.reload(postpone=True).is_postponed
    assert systemd.calls == []
    with pytest.raises(LlmetalError, match="must not read its units anew"):
        systemd.reload()


def test_enabling_cuts_nobody_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside containers it is done on the files alone."""
    systemd = Systemd(monkeypatch, UnitState(load="loaded"))
    held = [subject.GpuContainer("4f1c0ffee123", "docker", 20, "vllm", scope=True)]
    monkeypatch.setattr(subject, "endangered", lambda _proc="/proc": held)
    assert not systemd.reload().is_postponed
    assert systemd.calls == [("--root=/", "enable", UNIT)]


def test_a_unit_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be enabled; and there is nothing of it to read."""
    systemd = Systemd(monkeypatch, UnitState())
    assert subject.look([UNIT], [], systemd.manager) == subject.Reload((), (), ())
    with pytest.raises(LlmetalError, match="no such unit"):
        systemd.reload()


def test_systemd_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words."""
    systemd = Systemd(monkeypatch, UnitState(load="loaded"))
    answer = CommandResult(("systemctl",), 1, "", "Failed to enable unit: Access denied")
    monkeypatch.setattr(Manager, "systemctl", lambda *_words, **_options: answer)
    with pytest.raises(LlmetalError, match=r"systemctl --root=/ enable .* failed.*Access denied"):
        systemd.reload()
