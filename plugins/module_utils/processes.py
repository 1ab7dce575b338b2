# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a process is, as far as /proc shows it to this user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

_INTERPRETER = re.compile(r"(python|perl|ruby|node|bash|sh)[\d.]*")


def unit_of(cgroup: str | None) -> str | None:
    """The systemd unit in the text of /proc/<pid>/cgroup; None where there is none."""
    for line in (cgroup or "").splitlines():
        for part in reversed(line.rpartition(":")[2].split("/")):
            if part.endswith((".service", ".scope")):
                return part
    return None


def program_of(cmdline: str | None) -> str | None:
    """What a command line runs, without its arguments: they may hold secrets."""
    words = [word for word in (cmdline or "").split("\0") if word]
    if not words:
        return None
    name = words[0].rpartition("/")[2]
    script = len(words) > 1 and _INTERPRETER.fullmatch(name) and not words[1].startswith("-")
    return " ".join(words[:2] if script else words[:1])[:200]


def describe(pid: int, proc: str = "/proc") -> dict[str, Any]:
    """One process; null for what cannot be read."""
    folder = Path(proc) / str(pid)
    try:
        place = str((folder / "cwd").readlink())
    except OSError:
        place = None
    return {
        "pid": pid,
        "program": program_of(read_text(folder / "cmdline")),
        "unit": unit_of(read_text(folder / "cgroup")),
        "folder": place,
    }
