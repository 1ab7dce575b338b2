# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host lets a service use: locked memory, shared memory, memory, a local /tmp."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

_UNLIMITED = -1
_V1_NO_LIMIT = 1 << 60


def bytes_of(text: str | None) -> int | None:
    """A limit as systemd writes it: bytes, or -1 for `infinity`; None for none."""
    word = (text or "").strip()
    if word in {"infinity", "18446744073709551615"}:
        return _UNLIMITED
    return int(word) if word.isdigit() else None


def manager(*, with_systemd: bool) -> dict[str, str]:
    """Properties of the systemd manager: one question."""
    if not with_systemd:
        return {}
    names = "--property=DefaultLimitMEMLOCK,Environment"
    try:
        told = run(["systemctl", "show", names], timeout=10)
    except LlmetalError:
        return {}
    return dict(line.partition("=")[::2] for line in told.stdout.splitlines() if "=" in line)


def file_system_of(mountinfo: str, path: str) -> str | None:
    """The type of the file system that holds a path, from /proc/self/mountinfo."""
    best, kind = "", None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:  # noqa: PLR2004 - the fifth word is the mount point
            continue
        point = words[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def available_bytes(root: str = "/") -> int | None:
    """Memory that can be had without swapping."""
    for line in (read_text(Path(root) / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def memory_limit(root: str = "/") -> int | None:
    """The lowest memory limit of the control groups above this process; None for none."""
    base = Path(root)
    found = []
    for line in (read_text(base / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in {"", "memory"}:
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        top = base / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        folder = top / path.lstrip("/")
        while folder == top or top in folder.parents:
            limit = bytes_of(read_text(folder / name))
            if limit is not None and limit < _V1_NO_LIMIT:
                found.append(limit)
            folder = folder.parent
    return min(found, default=None)


def _shm(root: str) -> tuple[int | None, int | None]:
    try:
        room = os.statvfs(Path(root) / "dev/shm")
    except OSError:
        return None, None
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def _infiniband(root: str) -> list[str]:
    try:
        return sorted(path.name for path in (Path(root) / "sys/class/infiniband").iterdir())
    except OSError:
        return []


def collect(properties: dict[str, str], root: str = "/") -> dict[str, Any]:
    """The limits of this host.

    Args:
        properties: what `manager` found.
        root: the root of the file system, another one only in tests.
    """
    size, free = _shm(root)
    mounts = read_text(Path(root) / "proc/self/mountinfo") or ""
    return {
        "memlock_bytes": bytes_of(properties.get("DefaultLimitMEMLOCK")),
        "memlock_hard_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
        "infiniband": _infiniband(root),
        "shm_bytes": size,
        "shm_free_bytes": free,
        "tmp_file_system": file_system_of(mounts, "/tmp"),  # noqa: S108 - nothing is made there
        "memory_available_bytes": available_bytes(root),
        "memory_limit_bytes": memory_limit(root),
    }
