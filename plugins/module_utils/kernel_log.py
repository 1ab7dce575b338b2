# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the driver told the kernel's log of this boot: Xids, and GPUs that fell off the bus."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
_BUS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_LOST = re.compile(rf"NVRM:.*?GPU (?:at )?(?:PCI:)?({_BUS})\b.*fallen off the bus")
_FIRST = re.compile(r"^(?:<\d+>)?\[\s*(\d+)\.\d+\]")
_OFF_BUS = 79
_GREP = "NVRM: Xid|fallen off the bus"
_LINES = 2000
_START = 5
"""A log whose first line is younger than this, in seconds, has lost its beginning."""


def _bus(text: str) -> str:
    return normal_address(text if "." in text else f"{text}.0")


def parse(text: str) -> list[dict[str, Any]]:
    """The Xids of a log, counted by GPU and number; being off the bus is Xid 79."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in text.splitlines():
        xid, lost = _XID.search(line), _LOST.search(line)
        if xid:
            key = (_bus(xid[1]), int(xid[2]))
        elif lost:
            key = (_bus(lost[1]), _OFF_BUS)
        else:
            continue
        message = line[line.index("NVRM:") :].strip()[:160]
        row = found.setdefault(key, {"pci_address": key[0], "xid": key[1], "count": 0})
        row["count"] += 1
        row["last"] = message
    return [found[key] for key in sorted(found)]


def is_whole(text: str) -> bool:
    """Whether a log of the kernel's ring buffer still has the beginning of the boot."""
    first = _FIRST.match(text)
    return bool(first) and int(first[1]) < _START if first else False


def collect() -> dict[str, Any] | None:
    """The Xids since the boot; None where no log can be read."""
    try:
        ring = run(["dmesg"], timeout=5)
        readable = ring.ok and bool(ring.stdout)
        if readable and is_whole(ring.stdout):
            return {"source": "dmesg", "whole": True, "xids": parse(ring.stdout)}
        journal = run(
            ["journalctl", "-k", "-q", "--no-pager", "-o", "cat", "-n", str(_LINES), "-g", _GREP],
            timeout=5,
        )
    except LlmetalError:
        return None
    if journal.stdout.strip():
        return {"source": "journal", "whole": True, "xids": parse(journal.stdout)}
    # An empty journal may be one that this user cannot read: it then proves nothing.
    if readable:
        return {"source": "dmesg", "whole": False, "xids": parse(ring.stdout)}
    return None
