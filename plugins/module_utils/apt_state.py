# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt would do and what keeps it from doing it: keys, proxy, upgrades by itself, locks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_lock,
    apt_sources,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.openpgp import fingerprints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import Entry

_SETTING = re.compile(r'^(\S+?)(?:::)? "(.*)";$')
_PROXIES = ("Acquire::http::Proxy", "Acquire::https::Proxy")
_ON = "APT::Periodic::Unattended-Upgrade"
_SPARED = "Unattended-Upgrade::Package-Blacklist"


def parse_config(text: str) -> dict[str, list[str]]:
    """Read what `apt-config dump` printed: every value of every setting that has one."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = _SETTING.match(line)
        if match and match[2]:
            found.setdefault(match[1], []).append(match[2])
    return found


def without_user(address: str) -> str:
    """An address without the name and password that may stand in it."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(unreadable)"
    return f"{parts.scheme}://{host}{port}" if host else address.rpartition("@")[2]


def keys_of(path: Path) -> list[str] | None:
    """The fingerprints of a keyring; None where it cannot be read."""
    try:
        return fingerprints(path.read_bytes())
    except (OSError, LlmetalError, ValueError):
        return None


def _trusted(etc_apt: Path) -> list[str] | None:
    """The keys that every source without a keyring of its own is checked with."""
    folder = etc_apt / "trusted.gpg.d"
    try:
        paths = [path for path in sorted(folder.iterdir()) if path.suffix in {".gpg", ".asc"}]
    except OSError:
        paths = []
    main = etc_apt / "trusted.gpg"
    if main.exists() and main.stat().st_size:
        paths.append(main)
    found: list[str] = []
    for path in paths:
        keys = keys_of(path)
        if keys is None:
            return None
        found += keys
    return sorted(set(found))


def _locks() -> list[dict[str, Any]] | None:
    """Who holds a lock of apt or dpkg; None where that needs root."""
    there = [path for path in apt_lock.LOCKS if Path(path).exists()]
    if not all(os.access(path, os.W_OK) for path in there):
        return None
    try:
        holders = [holder for holder in map(apt_lock.holder_of, there) if holder]
    except OSError:
        return None
    return [
        {"path": holder.path, "pid": holder.pid, "program": holder.command.partition(" ")[0]}
        for holder in holders
    ]


def cloud_init(root: str = "/") -> str | None:
    """Whether cloud-init is at work: `running`, `done`; None where it does not run here."""
    folder = Path(root) / "run/cloud-init"
    if not folder.is_dir() or (folder / "disabled").exists():
        return None
    if not (folder / "status.json").exists():
        return None
    return "done" if (folder / "result.json").exists() else "running"


def _sources(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The declared sources, each with the keys of its own keyring."""
    return [{**entry.as_dict(), "fingerprints": apt_sources.keys_of(entry)} for entry in entries]


def collect(entries: Sequence[Entry], *, etc_apt: str = "/etc/apt") -> dict[str, Any]:
    """The state of apt on this host."""
    try:
        told = run(["apt-config", "dump"], timeout=10)
    except LlmetalError:
        config = None
    else:
        config = parse_config(told.stdout) if told.ok else None
    periodic = (config or {}).get(_ON, ["0"])[-1]
    proxies = [value for name in _PROXIES for value in (config or {}).get(name, [])]
    return {
        "sources": _sources(entries),
        "trusted": _trusted(Path(etc_apt)),
        "proxy": sorted({without_user(value) for value in proxies if value != "DIRECT"}),
        "unattended": None if config is None else periodic not in {"0", ""},
        "unattended_spares": (config or {}).get(_SPARED, []),
        "locked_by": _locks(),
        "cloud_init": cloud_init(),
    }
