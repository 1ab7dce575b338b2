# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which TCP ports are listened on, and by whom where that can be read."""

from __future__ import annotations

import ipaddress
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import processes
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTENS = "0A"
_FIELDS = 10
_SECONDS = 0.3
"""How long the search for owners may take: a host can have a million open files."""


def _address(text: str) -> str:
    """An address of /proc/net: words of 32 bits, each in the byte order of the machine."""
    raw = b"".join(
        int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)
    )
    return str(ipaddress.ip_address(raw))


def parse(text: str) -> list[dict[str, Any]]:
    """The listening sockets in a /proc/net/tcp or tcp6."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < _FIELDS or words[3] != _LISTENS:
            continue
        address, _, port = words[1].partition(":")
        found.append(
            {
                "address": _address(address),
                "port": int(port, 16),
                "uid": int(words[7]),
                "inode": words[9],
            }
        )
    return found


def _sockets(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder / "fd") as entries:
            for entry in entries:
                target = os.readlink(entry.path)  # noqa: PTH115 - there are very many of them
                if target.startswith("socket:["):
                    yield target[8:-1]
    except OSError:
        return


def _owners(inodes: set[str], proc: Path) -> dict[str, int]:
    """The process of each socket; those of other users need root."""
    end = time.monotonic() + _SECONDS
    found: dict[str, int] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        for inode in _sockets(folder):
            if inode in inodes:
                found.setdefault(inode, int(folder.name))
        if len(found) == len(inodes) or time.monotonic() > end:
            break
    return found


def collect(proc: str = "/proc") -> list[dict[str, Any]] | None:
    """The listening sockets of this network namespace; None where they cannot be read."""
    base = Path(proc)
    texts = [read_text(base / "net" / name) for name in ("tcp", "tcp6")]
    if texts[0] is None:
        return None
    rows = [row for text in texts for row in parse(text or "")]
    owners = _owners({row["inode"] for row in rows}, base) if rows else {}
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        pid = owners.get(row.pop("inode"))
        row["process"] = processes.describe(pid, proc) if pid is not None else None
        found.setdefault((row["port"], row["address"]), row)
    return [found[key] for key in sorted(found)]
