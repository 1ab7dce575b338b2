# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The locks of apt and dpkg: who holds one, and waiting for it with a bound."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
_FLOCK = "hhqqi4x"
"""struct flock of Linux on 64 bits: type, whence, start, length, process."""
_START_TIME = 19
"""Among the fields of /proc/<pid>/stat that follow the program's name."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    path: str
    pid: int
    command: str
    since: str | None = None
    """When the process started; None where it ended meanwhile."""

    def __str__(self) -> str:
        """Who it is, for a person."""
        since = f", started {self.since}" if self.since else ""
        return f"process {self.pid} ({self.command or 'ended meanwhile'}{since}) holds {self.path}"


def started(pid: int, proc: str = "/proc") -> str | None:
    """When a process started; None where it cannot be read."""
    # The name of the program may hold blanks and parentheses; the fields after it do not.
    fields = (read_text(f"{proc}/{pid}/stat") or "").rpartition(")")[2].split()
    booted = re.search(r"^btime (\d+)$", read_text(f"{proc}/stat") or "", re.MULTILINE)
    if len(fields) <= _START_TIME or booted is None:
        return None
    seconds = int(booted[1]) + int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def holder_of(path: str) -> Holder | None:
    """Who holds the lock on a file; None where nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.EACCES, errno.EROFS, errno.EPERM}:
            return None
        raise
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK:
        return None
    command = (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    return Holder(path, pid, command[:200], started(pid))


def _described(holders: Sequence[Holder]) -> str:
    """Who holds which locks, each process once."""
    paths: dict[int, list[str]] = {}
    for holder in holders:
        paths.setdefault(holder.pid, []).append(holder.path)
    first = {holder.pid: holder for holder in reversed(holders)}
    return "; ".join(", ".join([str(first[pid]), *more[1:]]) for pid, more in paths.items())


def wait(seconds: float, locks: Sequence[str] = LOCKS) -> float:
    """Wait until no other program holds a lock of apt or dpkg.

    Args:
        seconds: how long to wait.
        locks: the files.

    Returns:
        How long it took.

    Raises:
        LlmetalError: one is still held; it names who holds it.
    """
    start = time.monotonic()
    while True:
        holders = [holder for holder in map(holder_of, locks) if holder]
        passed = time.monotonic() - start
        if not holders:
            return passed
        if passed >= seconds:
            raise LlmetalError(
                what=f"another package manager is still at work after {seconds:g} s",
                where=holders[0].path,
                why=_described(holders),
                fix="let it end (unattended-upgrades, apt-daily, a person), then run again; never"
                " delete the lock file",
            )
        time.sleep(min(1.0, max(0.1, seconds - passed)))
