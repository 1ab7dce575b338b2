# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders with an owner and a mode, many at once."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Folder:
    """One folder as it is wanted; an owner that is null is left as it is."""

    path: str
    mode: int
    owner: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Folder:
        """From a module's parameter.

        Raises:
            LlmetalError: the mode is none.
        """
        try:
            mode = int(params["mode"], 8)
        except ValueError:
            raise LlmetalError(
                what=f"{params['mode']!r} is no mode of a folder",
                where=params["path"],
                fix="give octal digits, as in '0755'",
            ) from None
        return cls(params["path"], mode, params.get("owner"), params.get("group"))


@dataclass(frozen=True)
class State:
    """A folder as it is."""

    mode: str
    owner: str
    group: str


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def state_of(path: str) -> State | None:
    """The folder that is there; None where nothing is.

    Raises:
        LlmetalError: something else is there.
    """
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LlmetalError(
            what="a folder cannot be looked at",
            where=path,
            why=error.strerror or str(error),
            fix="see that the folders above it are folders and can be entered",
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise LlmetalError(
            what="there is a file where a folder should be",
            where=path,
            fix="move the file away",
        )
    return State(f"{stat.S_IMODE(found.st_mode):04o}", _owner(found.st_uid), _group(found.st_gid))


def wanted(folder: Folder, before: State | None) -> State:
    """The folder as it will be."""
    me = State("", _owner(os.geteuid()), _group(os.getegid()))
    now = before or me
    return State(f"{folder.mode:04o}", folder.owner or now.owner, folder.group or now.group)


def make(folder: Folder, before: State | None) -> None:
    """Make the folder, or correct its owner and mode.

    Raises:
        LlmetalError: it cannot be made, or there is no such user or group.
    """
    path = Path(folder.path)
    try:
        if before is None:
            path.mkdir(mode=0o700, parents=True)
        uid = pwd.getpwnam(folder.owner).pw_uid if folder.owner else -1
        gid = grp.getgrnam(folder.group).gr_gid if folder.group else -1
        if uid != -1 or gid != -1:
            os.chown(path, uid, gid)
        path.chmod(folder.mode)
    except KeyError as error:
        raise LlmetalError(
            what="the owner of a folder does not exist",
            where=folder.path,
            why=str(error.args[0]),
            fix="make the user and the group first",
        ) from error
    except OSError as error:
        raise LlmetalError(
            what="a folder cannot be made",
            where=folder.path,
            why=error.strerror or str(error),
            fix="see that the disk has room and the place can be written",
        ) from error
