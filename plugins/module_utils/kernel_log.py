# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the driver told the kernel's log: Xids, and GPUs that fell off the bus."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
_BUS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_LOST = re.compile(rf"NVRM:.*?GPU (?:at )?(?:PCI:)?({_BUS})\b.*fallen off the bus")
_FIRST = re.compile(r"^(?:<\d+>)?\[\s*(\d+)\.\d+\]")
_OFF_BUS = 79
_MARK = "NVRM:"
_GREP = "NVRM: Xid|fallen off the bus"
_LINES = 20_000
"""The newest lines that are read; where there are more, what came before is not known."""
_TIMEOUT = 5
_START = 5
"""A log whose first line is younger than this, in seconds, has lost its beginning."""


def _bus(text: str) -> str:
    return normal_address(text if "." in text else f"{text}.0")


def parse(text: str) -> list[dict[str, Any]]:
    """The Xids of a log, counted by GPU and number; being off the bus is Xid 79."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in _lines(text):
        xid, lost = _XID.search(line), _LOST.search(line)
        if xid:
            key = (_bus(xid[1]), int(xid[2]))
        elif lost:
            key = (_bus(lost[1]), _OFF_BUS)
        else:
            continue
        message = line[line.index(_MARK) :].strip()[:160]
        row = found.setdefault(key, {"pci_address": key[0], "xid": key[1], "count": 0})
        row["count"] += 1
        row["last"] = message
    return [found[key] for key in sorted(found)]


def _lines(text: str) -> Iterator[str]:
    """The lines of the driver, without taking a long log apart."""
    place = text.find(_MARK)
    while place >= 0:
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        yield text[text.rfind("\n", 0, place) + 1 : end]
        place = text.find(_MARK, end)


def is_whole(text: str) -> bool:
    """Whether a log of the kernel's ring buffer still has the beginning of the boot."""
    first = _FIRST.match(text)
    return bool(first) and int(first[1]) < _START if first else False


def _ask(*argv: str) -> CommandResult | None:
    """What a program says; None where it hangs."""
    try:
        return run(list(argv), timeout=_TIMEOUT)
    except LlmetalError:
        return None


def _journal(*options: str) -> CommandResult | None:
    return _ask("journalctl", "-q", "--no-pager", *options)


def collect() -> dict[str, Any] | None:
    """The Xids since the boot; None where no log can be read."""
    told = _ask("dmesg")
    ring = told.stdout if told and told.ok else ""
    if is_whole(ring):
        return {"source": "dmesg", "whole": True, "xids": parse(ring)}
    found = _journal("-k", "-o", "cat", "-n", str(_LINES), "-g", _GREP)
    if found and found.stdout.strip():
        whole = found.stdout.count("\n") < _LINES
        return {"source": "journal", "whole": whole, "xids": parse(found.stdout)}
    # Silence proves something only of a journal that was searched to its end (not one that hangs or
    # cannot search) and that this user can read: one with lines.
    if found and not found.stderr.strip():
        last = _journal("-k", "-o", "cat", "-n", "1")
        if last and last.stdout.strip():
            return {"source": "journal", "whole": True, "xids": []}
    return {"source": "dmesg", "whole": False, "xids": parse(ring)} if ring else None


def parse_history(text: str, boot_id: str | None) -> list[dict[str, Any]]:
    """The Xids of all boots in `journalctl -o json`, counted by GPU and number.

    Args:
        text: one JSON object a line.
        boot_id: the identifier of this boot.
    """
    this = (boot_id or "").replace("-", "")
    found: dict[tuple[str, int], dict[str, Any]] = {}
    boots: dict[tuple[str, int], set[str]] = {}
    for line in text.splitlines():
        entry = _entry(line)
        boot = str(entry.get("_BOOT_ID"))
        for one in parse(str(entry.get("MESSAGE"))):
            key = (one["pci_address"], one["xid"])
            row = found.setdefault(key, {**one, "count": 0, "this_boot": 0})
            row["count"] += 1
            row["this_boot"] += bool(this) and boot == this
            row["last"] = one["last"]
            row["when"] = _when(entry.get("__REALTIME_TIMESTAMP"))
            boots.setdefault(key, set()).add(boot)
    return [{**found[key], "boots": len(boots[key])} for key in sorted(found)]


def _entry(line: str) -> dict[str, Any]:
    """A line of the journal; its message is a list of bytes where it is no text."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(entry, dict):
        return {}
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        entry["MESSAGE"] = bytes(b for b in message if isinstance(b, int)).decode(
            "utf-8", "replace"
        )
    return entry


def _when(microseconds: object) -> str | None:
    try:
        seconds = int(str(microseconds)) // 1_000_000
    except ValueError:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def history(boot_id: str | None) -> dict[str, Any] | None:
    """The Xids of this boot and of those that the journal keeps; None where none can be read."""
    told = _journal(
        "_TRANSPORT=kernel",
        "-o",
        "json",
        "--output-fields=MESSAGE",
        "-n",
        str(_LINES),
        "-g",
        _GREP,
    )
    if told and (rows := parse_history(told.stdout, boot_id)):
        return {"source": "journal", "whole": True, "xids": rows}
    log = collect()
    if log is None:
        return None
    rows = [{**row, "this_boot": row["count"], "boots": 1, "when": None} for row in log["xids"]]
    return {**log, "xids": rows}
