# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's side of the simulated hardware: what is loaded, what is refused, what is shown."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import elf

if TYPE_CHECKING:
    from types import ModuleType

PROGRAM = Path(__file__).parents[3] / "roles/sandbox/files/guest/kernel.py"
ALL = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a program
    """The program, with its folders in a temporary one and one GPU."""
    spec = importlib.util.spec_from_file_location("guest_kernel", PROGRAM)
    assert spec
    assert spec.loader
    program: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    places = {
        "HARDWARE": tmp_path,
        "FAULTS": tmp_path / "faults",
        "RUN": tmp_path / "run",
        "MODULES": tmp_path / "modules",
        "LOG": tmp_path / "log",
        "ENROLLED": tmp_path / "mok",
    }
    for name, path in places.items():
        monkeypatch.setattr(program, name, path)
    for name in ("faults", "run", "mok"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(program, "make_nodes", lambda *_: None)
    monkeypatch.setattr(program, "configuration", list)
    # Not the processes of the machine: sandbox hosts may run on it.
    monkeypatch.setattr(program, "HELD_BY", {})
    device = dict.fromkeys(("vendor", "device", "class", "subsystem_vendor"), "10de")
    device |= {"address": "0000:01:00.0", "subsystem_device": "1", "driver": "nvidia"}
    machine = {
        "open_only": False,
        "vbios": "1",
        "name": "GPU",
        "devices": [{**device, "numa_node": 0}],
        "gpus": [{"address": "0000:01:00.0", "uuid": "GPU-1"}],
    }
    (tmp_path / "devices.json").write_text(json.dumps(machine), encoding="utf-8")
    return program


def install(kernel: Any, licence: str = "Dual MIT/GPL", tail: bytes = b"") -> None:  # noqa: ANN401
    """Put the driver's modules on the disk."""
    folder = kernel.MODULES / os.uname().release / "updates/dkms"
    folder.mkdir(parents=True, exist_ok=True)
    data = elf.kernel_module({"version": "580.159.04", "license": licence}) + tail
    for name in ALL:
        (folder / f"{name}.ko").write_bytes(data)


def test_module_is_loaded_with_what_it_needs_and_shown(kernel: Any) -> None:  # noqa: ANN401
    """/proc and /sys say what is loaded, and nothing after it is unloaded."""
    install(kernel)
    assert kernel.modprobe(["nvidia_uvm"]) == 0
    assert list(kernel.loaded()) == ["nvidia", "nvidia_uvm"]
    assert "  580.159.04  " in (kernel.RUN / "proc-driver/nvidia/version").read_text()
    assert (kernel.RUN / "sys-module/nvidia/version").read_text() == "580.159.04\n"
    assert (kernel.RUN / "sys-module/nvidia/refcnt").read_text() == "1\n"
    assert (kernel.RUN / "pci/0000:01:00.0/driver").readlink().name == "nvidia"
    assert kernel.modprobe(["-r", "nvidia_uvm"]) == 0
    assert kernel.loaded() == {}
    assert not (kernel.RUN / "proc-driver/nvidia").exists()
    assert not (kernel.RUN / "pci/0000:01:00.0/driver").is_symlink()


def test_module_in_use_stays(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
    """Rmmod names what uses it, and fails."""
    install(kernel)
    kernel.modprobe(["-a", "nvidia", "nvidia_uvm"])
    assert kernel.rmmod(["nvidia"]) == 1
    assert "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm" in capsys.readouterr().err
    assert "nvidia" in kernel.loaded()


@pytest.mark.parametrize(
    ("licence", "machine", "said"),
    [
        ("NVIDIA", {"open_only": True}, "No such device"),
        ("Dual MIT/GPL", {"gpus": []}, "No such device"),
    ],
)
def test_driver_is_refused(
    kernel: Any,  # noqa: ANN401
    capsys: pytest.CaptureFixture[str],
    licence: str,
    machine: dict[str, object],
    said: str,
) -> None:
    """With modprobe's words, and a line in the kernel's log."""
    install(kernel, licence)
    path = kernel.HARDWARE / "devices.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **machine}), encoding="utf-8")
    assert kernel.modprobe(["nvidia"]) == 1
    assert f"could not insert 'nvidia': {said}" in capsys.readouterr().err
    assert kernel.loaded() == {}
    assert kernel.LOG.read_text()


def test_signed_module_loads_where_its_key_is_enrolled(
    kernel: Any,  # noqa: ANN401
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The mark in the module is the certificate's."""
    install(kernel, tail=b"~Module signature appended~ abc1\n")
    (kernel.FAULTS / "secure_boot").touch()
    assert kernel.modprobe(["nvidia"]) == 1
    assert "Key was rejected by service" in capsys.readouterr().err
    (kernel.ENROLLED / "abc1").touch()
    assert kernel.modprobe(["nvidia"]) == 0


def test_module_that_is_missing_beside_others(kernel: Any) -> None:  # noqa: ANN401
    """A boot loads those that are there; what needs the missing one is refused and not shown."""
    install(kernel)
    folder = kernel.MODULES / os.uname().release / "updates/dkms"
    (folder / "nvidia-modeset.ko").unlink()
    now: dict[str, Any] = {}
    kernel.load_at_boot(now)
    assert list(now) == ["nvidia"]
    assert kernel.modprobe(["nvidia_drm"]) == 1
    kernel.modprobe(["nvidia_uvm"])
    assert "nvidia_drm" not in kernel.loaded()


def test_missing_module(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
    """As on a host without the driver."""
    assert kernel.modprobe(["nvidia"]) == 1
    assert "FATAL: Module nvidia not found in directory" in capsys.readouterr().err
