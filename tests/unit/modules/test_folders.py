# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""folders: made, corrected, left alone."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.folders import Folder
from ansible_collections.llmetal.inference.plugins.modules.folders import converge

if TYPE_CHECKING:
    from pathlib import Path

ME = pwd.getpwuid(os.geteuid()).pw_name


def test_makes_corrects_and_leaves(tmp_path: Path) -> None:
    """Folders above are made too; a second run changes nothing."""
    deep, loose = tmp_path / "a/b/c", tmp_path / "loose"
    loose.mkdir(mode=0o777)
    loose.chmod(0o777)
    wanted = [Folder(str(deep), 0o750, ME), Folder(str(loose), 0o755)]
    assert converge(wanted, check_mode=True)["changed"]
    assert not (tmp_path / "a").exists()
    assert converge(wanted, check_mode=False)["before"][str(deep)] is None
    assert deep.stat().st_mode & 0o777 == 0o750
    assert loose.stat().st_mode & 0o777 == 0o755
    assert not converge(wanted, check_mode=False)["changed"]


def test_parent_and_child(tmp_path: Path) -> None:
    """A folder and one in it, both new, each get their own mode."""
    outer, inner = tmp_path / "x", tmp_path / "x/y"
    converge([Folder(str(inner), 0o700), Folder(str(outer), 0o755)], check_mode=False)
    assert outer.stat().st_mode & 0o777 == 0o755
    assert inner.stat().st_mode & 0o777 == 0o700


def test_file_in_the_way(tmp_path: Path) -> None:
    """A file is not replaced by a folder."""
    (tmp_path / "x").touch()
    with pytest.raises(LlmetalError, match="a file where a folder should be"):
        converge([Folder(str(tmp_path / "x"), 0o755)], check_mode=True)
    with pytest.raises(LlmetalError, match="cannot be looked at"):
        converge([Folder(str(tmp_path / "x/y"), 0o755)], check_mode=True)


def test_unknown_owner(tmp_path: Path) -> None:
    """A user to be made is no failure in check mode; without it there is one."""
    folder = [Folder(str(tmp_path / "x"), 0o755, "no-such-user")]
    assert (
        converge(folder, check_mode=True)["after"][str(tmp_path / "x")]["owner"] == "no-such-user"
    )
    with pytest.raises(LlmetalError, match="owner of a folder does not exist"):
        converge(folder, check_mode=False)


def test_mode() -> None:
    """Modes are octal digits."""
    assert Folder.of({"path": "/x", "mode": "0750"}).mode == 0o750
    with pytest.raises(LlmetalError, match="no mode"):
        Folder.of({"path": "/x", "mode": "rwx"})
