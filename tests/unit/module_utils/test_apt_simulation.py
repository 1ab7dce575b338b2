# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a transaction may do: a recorded simulation, and each thing that stops one."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.apt_simulation import (
    Change,
    Limits,
    parse,
    refuse,
    release_of,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "apt_simulate"
ASKED = {"nvidia-driver-cuda": "580.159.04-1", "gcc": None}
LIMITS = Limits(
    replaces=("nvidia-kernel-*",),
    one_release=("nvidia-*", "libnvidia-*"),
    own_release=("nvidia-settings",),
)


def test_parse() -> None:
    """Every change in its order, with what was there before."""
    text = (
        "Reading package lists...\n"
        "Remv nvidia-kernel-dkms [580.159.04-1]\n"
        "Inst libcuda1:i386 [570.1-1] (580.159.04-1 NVIDIA:1/stable [i386]) []\n"
        "Inst gcc (4:12.2.0-3 Debian:12.5/oldstable [amd64])\n"
        "Purg old [1]\n"
        "Conf gcc (4:12.2.0-3 Debian:12.5/oldstable [amd64])\n"
    )
    assert parse(text) == [
        Change("nvidia-kernel-dkms", "580.159.04-1", None),
        Change("libcuda1", "570.1-1", "580.159.04-1", "NVIDIA:1/stable"),
        Change("gcc", None, "4:12.2.0-3", "Debian:12.5/oldstable"),
        Change("old", "1", None),
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_recordings_have_no_removal(name: str) -> None:
    """A recorded installation only installs, and nothing stops it."""
    changes = parse((FIXTURES / name / "output.txt").read_text())
    assert changes
    assert all(change.after for change in changes)
    refuse(changes, asked={"vim": None}, limits=Limits())


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("580.159.04-1", "580.159.04"),
        ("1:580.159.04-0ubuntu1", "580.159.04"),
        ("590.48-1", "590.48"),
        ("1.17.8-1", None),
        ("20220217+3~deb12u1", None),
        (None, None),
    ],
)
def test_release(version: str | None, release: str | None) -> None:
    """The driver release in a package's version."""
    assert release_of(version) == release


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            Change("linux-image-6.1.0-41-amd64", None, "6.1.158-1"),
            r"move a kernel.*linux-image-6\.1\.0-41-amd64.*What to do: the modules",
        ),
        (Change("linux-image-amd64", "1", None), "move a kernel"),
        (Change("docker.io", "20.10", None), r"nothing to do with it \(docker\.io\).*removes"),
        (
            Change("libnvidia-gl", "580.159.04-1", "590.48.01-1"),
            r"part of the driver in another release \(libnvidia-gl\).*590\.48\.01-1",
        ),
        (Change("libc6", "2.36-9", "2.36-10"), r"on hold in another version \(libc6\).*unhold"),
    ],
)
def test_stopped(change: Change, message: str) -> None:
    """Each thing that a transaction must not do stops it, by name."""
    with pytest.raises(LlmetalError, match=message):
        refuse([change], asked=ASKED, holds=["libc6"], limits=LIMITS)


@pytest.mark.parametrize(
    "changes",
    [
        [Change("nvidia-driver-cuda", "570.1-1", "580.159.04-1")],
        [Change("nvidia-kernel-dkms", "580.159.04-1", None)],
        [Change("nvidia-settings", None, "590.48.01-1")],
        [Change("nvidia-container-toolkit", None, "1.18.0-1")],
        [Change("libnvidia-gl", None, "580.159.04-1")],
        [Change("libc6", "2.36-9", None), Change("libc6", "2.36-9", "2.36-9")],
    ],
)
def test_allowed(changes: list[Change]) -> None:
    """The set itself, its release, what it replaces, and what has releases of its own."""
    refuse(changes, asked=ASKED, holds=["nvidia-driver-cuda"], limits=LIMITS)


def test_what_has_to_stay() -> None:
    """A toolkit must not bring a driver: whatever it would do to one stops it, and says by whom."""
    keeps = Limits(keeps=("nvidia-*", "libnvidia-*", "cuda-drivers*"))
    asked = {"cuda-13-0": "13.0.3-1"}
    toolkit = Change("cuda-nvcc-13-0", None, "13.0.88-1")
    refuse([Change("cuda-13-0", None, "13.0.3-1"), toolkit], asked=asked, limits=keeps)
    for change in (
        Change("cuda-drivers", None, "595.91.07-1"),
        Change("nvidia-open", "580.159.04-1", "595.91.07-1"),
        Change("libnvidia-compute", "580.159.04-1", None),
    ):
        with pytest.raises(LlmetalError, match="leave alone") as caught:
            refuse([toolkit, change], asked=asked, limits=keeps)
        assert str(change) in caught.value.why
        assert "never cuda" in caught.value.fix
