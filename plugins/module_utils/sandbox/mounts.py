# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is mounted on this machine, and the overlay of a host over its base."""

from __future__ import annotations

import os
from pathlib import Path

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def parse_mounts(text: str) -> list[tuple[str, str, str]]:
    """The (mount point, type, options) of each line of `/proc/self/mounts`, oldest first."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:  # noqa: PLR2004 - the format has six fields, four of use
            mounts.append((_unescape(fields[1]), fields[2], fields[3]))
    return mounts


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at exactly this path."""
    return any(point == str(path) for point, _, _ in _mounts())


def mounted_below(path: Path) -> list[Path]:
    """The mount points at or below a path, the deepest first."""
    prefix = f"{path}/"
    points = [p for p, _, _ in _mounts() if p == str(path) or p.startswith(prefix)]
    return [Path(point) for point in sorted(points, key=len, reverse=True)]


def is_base_in_use(base: Path) -> bool:
    """Whether an overlay on this machine stands on a base."""
    return any(f"lowerdir={base}," in f"{options}," for _, _, options in _mounts())


def mount_overlay(*, base: Path, upper: Path, work: Path, root: Path) -> None:
    """Mount a host's root: what it changed over the base.

    Raises:
        LlmetalError: the kernel refuses.
    """
    for folder in (upper, work, root):
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    options = f"lowerdir={base},upperdir={upper},workdir={work}"
    argv = ["mount", "-t", "overlay", "llmetal-sandbox", "-o", options, str(root)]
    done = run(argv, timeout=30)
    if not done.ok:
        raise LlmetalError(
            what="the overlay of a sandbox host cannot be mounted",
            where=str(root),
            why=done.tail(),
            fix="set sandbox_state_dir to a folder on a disk's own file system"
            " (an overlay cannot stand on an overlay)",
        )


def unmount_all(path: Path) -> bool:
    """Unmount everything at or below a path of ours.

    Returns:
        Whether anything was mounted there.
    """
    points = mounted_below(path)
    for point in points:
        done = run(["umount", str(point)], timeout=30)
        if not done.ok:
            run(["umount", "--lazy", str(point)], timeout=30)
    return bool(points)


def _mounts() -> list[tuple[str, str, str]]:
    return parse_mounts(Path("/proc/self/mounts").read_text(encoding="utf-8"))


def _unescape(text: str) -> str:
    for code, character in _ESCAPES.items():
        text = text.replace(code, character)
    return os.path.normpath(text)
