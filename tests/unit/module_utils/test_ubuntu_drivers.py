# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""ubuntu-drivers: what it recommends, over recordings and over a program that stands in for it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import ubuntu_drivers

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[[str], str]

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ubuntu_drivers"
CASES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
LISTED = "nvidia-driver-580-server linux-modules-nvidia-580-server-generic"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Stand in for the program by a shell script, which also notes how it was called."""

    def write(body: str) -> str:
        path = tmp_path / "ubuntu-drivers"
        path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n{body}\n')
        path.chmod(0o755)
        return str(path)

    return write


def calls(program: str) -> list[str]:
    """How it was called."""
    return (Path(program).parent / "calls").read_text().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_recordings(case: str) -> None:
    """Each recording gives the result that stands beside it."""
    folder = FIXTURES / case
    expected = json.loads((folder / "expected.json").read_text())
    assert {
        "list": ubuntu_drivers.parse_list((folder / "list.txt").read_text()),
        "devices": ubuntu_drivers.parse_devices((folder / "devices.txt").read_text()),
    } == expected


def test_not_installed(tmp_path: Path) -> None:
    """Then nothing is run, and nothing is known."""
    start = time.monotonic()
    found = ubuntu_drivers.collect(str(tmp_path / "ubuntu-drivers"))
    assert time.monotonic() - start < 0.1
    assert found["path"] is None
    assert found["server"] is None
    assert found["offered"] == []


def test_recommendation(program: Program) -> None:
    """Each command runs once."""
    devices = FIXTURES / "ubuntu2404_l4" / "devices.txt"
    path = program(f'[ "$1" = list ] && echo {LISTED} || cat {devices}')
    found = ubuntu_drivers.collect(path)
    assert found["server"] == "nvidia-driver-580-server"
    assert found["desktop"] == "nvidia-driver-595-open"
    assert found["said"] is None
    assert "nvidia-driver-535" in found["offered"]
    assert "xserver-xorg-video-nouveau" not in found["offered"]
    assert calls(path) == ["list --gpgpu --recommended", "devices"]


def test_modules_by_dkms(program: Program) -> None:
    """A kernel without prebuilt modules: what DKMS builds is asked for."""
    told = "nvidia-driver-580-server nvidia-dkms-580-server"
    path = program(f'case "$*" in *dkms) echo {told};; esac')
    found = ubuntu_drivers.collect(path)
    assert found["server"] == "nvidia-driver-580-server"
    assert calls(path)[1] == "list --gpgpu --recommended --include-dkms"


def test_what_it_says_instead(program: Program) -> None:
    """Without the noise that it always makes; an old one knows no --include-dkms."""
    body = (
        "echo udevadm hwdb is deprecated. Use systemd-hwdb instead. >&2\n"
        'case "$*" in *dkms) echo Error: No such option: --include-dkms >&2; exit 2;; esac\n'
        "echo E:The package cache file is corrupted\n"
    )
    found = ubuntu_drivers.collect(program(body))
    assert found["server"] is None
    assert found["said"] == (
        "E:The package cache file is corrupted Error: No such option: --include-dkms"
    )


def test_it_hangs(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for longer than the limit, and not asked again."""
    monkeypatch.setattr(ubuntu_drivers, "_TIMEOUT", 0.2)
    path = program("exec sleep 5")
    found = ubuntu_drivers.collect(path)
    assert found["path"] == path
    assert "did not end within 0.2 s" in found["said"]
    assert len(calls(path)) == 1
