# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks on files: they end with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL = 0.1


@contextlib.contextmanager
def held(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold an exclusive lock on a file for as long as the block runs.

    The file may be removed by the one who held the lock before; a lock on a removed file keeps
    nobody out, so the file is opened again until the locked one is the one of that name.

    Raises:
        LlmetalError: somebody else held it all the time.
    """
    deadline = time.monotonic() + timeout
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            if _try(stream.fileno()) and _is_same(stream.fileno(), path):
                yield
                return
        if time.monotonic() > deadline:
            raise LlmetalError(
                what="another run works on the sandbox and did not end in time",
                where=str(path),
                fix="wait for it, or end it; its lock ends with it",
            )
        time.sleep(_POLL)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock on a file."""
    try:
        with path.open("r", encoding="utf-8") as stream:
            return not _try(stream.fileno())
    except FileNotFoundError:
        return False


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
