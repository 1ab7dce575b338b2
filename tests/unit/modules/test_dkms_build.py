# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's modules on disk: which kernels lack one, and what is said where none can be had."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import dkms
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.dkms import (
    Module,
    compiler_said,
    converge,
    is_right,
    not_built,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VERSION, KERNEL, NEWER = "580.159.04", "6.1.0-40-amd64", "6.1.0-41-amd64"
LOG = "var/lib/dkms/nvidia/580.159.04/build/make.log"


def test_compiler_said(tmp_path: Path) -> None:
    """The first errors of the newest log; without any, its end; without a log, nothing."""
    assert compiler_said(str(tmp_path)) is None
    old = tmp_path / "var/lib/dkms/nvidia/570.1/build/make.log"
    for path, text in (
        (old, "fine\n"),
        (
            tmp_path / LOG,
            "  CC [M]  nv.o\nnv.c:41:9: error: too few arguments\nmake: *** [nv.o] Error 1\nend\n",
        ),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    os.utime(old, (1, 1))
    shown = ["nv.c:41:9: error: too few arguments", "make: *** [nv.o] Error 1"]
    assert compiler_said(str(tmp_path)) == (f"/{LOG}", shown)
    os.utime(tmp_path / LOG, (0, 0))
    assert compiler_said(str(tmp_path)) == ("/" + str(old.relative_to(tmp_path)), ["fine"])


@pytest.mark.parametrize(
    ("version", "flavour", "right"),
    [
        (VERSION, "open", True),
        (VERSION, None, True),
        (VERSION, "proprietary", False),
        ("570.1.1", "open", False),
        (None, None, False),
    ],
)
def test_is_right(version: str | None, flavour: str | None, right: bool) -> None:  # noqa: FBT001 - a table
    """A module is right in version and flavour; one that hides its flavour passes."""
    assert is_right(Module(KERNEL, version, flavour, headers=True), VERSION, "open") is right


def test_builds_what_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kernel without a module is built; the second time nothing is."""
    there = {KERNEL}
    calls: list[list[str]] = []

    def run(argv: Sequence[str], **_: object) -> CommandResult:
        calls.append(list(argv))
        there.add(argv[-1])
        return CommandResult(tuple(argv), 0, "", "")

    def look(kernels: Sequence[str], _root: str = "/") -> list[Module]:
        return [Module(k, VERSION if k in there else None, None, headers=True) for k in kernels]

    monkeypatch.setattr(dkms, "run", run)
    monkeypatch.setattr(dkms, "look", look)
    predicted = converge([KERNEL, NEWER], VERSION, "open", check_mode=True, timeout=1)[1]
    assert [module.version for module in predicted] == [VERSION, VERSION]
    assert calls == []
    before, after = converge([KERNEL, NEWER], VERSION, check_mode=False, timeout=1)
    assert [module.version for module in (*before, *after)] == [VERSION, None, VERSION, VERSION]
    assert calls == [["dkms", "autoinstall", "--kernelver", NEWER]]
    before, after = converge([KERNEL, NEWER], VERSION, check_mode=False, timeout=1)
    assert before == after


def test_says_what_the_compiler_said(tmp_path: Path) -> None:
    """A kernel without a module is named, with the cause, and nobody is to reboot into it."""
    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).write_text("nv.c:41:9: error: too few arguments\n")
    module = Module(NEWER, None, None, headers=True)
    said = str(not_built(module, VERSION, root=str(tmp_path), said="Error! Bad return status"))
    assert f"no module for Linux {NEWER}" in said
    assert "Bad return status" in said
    assert "too few arguments" in said
    assert "Do not reboot before" in said
    bare = str(not_built(Module(NEWER, None, None, headers=False), VERSION))
    assert f"install linux-headers-{NEWER}" in bare


def test_names() -> None:
    """A kernel's name never leads out of its folder."""
    with pytest.raises(LlmetalError, match="no release of a kernel"):
        converge(["../../etc"], VERSION, check_mode=True, timeout=1)
