# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all sandboxes of a machine need of it: forwarding, and a folder for systemd-nspawn.

Two sandboxes (two state folders) can be up at once. The first to come changes the machine, the last
to go puts it back. Who is there stands in a file below /run, which is gone after a restart of the
machine, as the changes are.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import locks, mounts
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import LOCKS

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_REGISTRY = Path("/run/systemd/nspawn")
_RECORD = LOCKS / "machine.json"
_LOCK = LOCKS / "machine.lock"
_TIMEOUT = 60.0


def enter(settings: Settings) -> bool:
    """Change the machine where it is not yet as a sandbox needs it.

    Returns:
        Whether anything had to be changed.
    """
    with locks.held(_LOCK, timeout=_TIMEOUT):
        record = _load()
        if str(settings.state) not in record["users"]:
            record["users"].append(str(settings.state))
            _save(record)
        forwarded = _forward(record)
        return _mount_registry(record) or forwarded


def leave(settings: Settings) -> None:
    """Put the machine back, unless another sandbox needs it as it is."""
    with locks.held(_LOCK, timeout=_TIMEOUT):
        record = _load()
        record["users"] = [
            user for user in record["users"] if user != str(settings.state) and Path(user).exists()
        ]
        if record["users"]:
            _save(record)
            return
        if record["forwarding_before"] is not None:
            _FORWARDING.write_text(record["forwarding_before"], encoding="ascii")
        if record["registry"] and mounts.is_mounted(_REGISTRY):
            mounts.unmount_all(_REGISTRY)
        for folder in record["folders"]:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        _RECORD.unlink(missing_ok=True)


def _forward(record: dict[str, Any]) -> bool:
    current = _FORWARDING.read_text(encoding="ascii").strip()
    if current == "1":
        return False
    if record["forwarding_before"] is None:
        record["forwarding_before"] = current
        _save(record)
    _FORWARDING.write_text("1", encoding="ascii")
    return True


def _mount_registry(record: dict[str, Any]) -> bool:
    """Give systemd-nspawn the folder it keeps its sockets in, where systemd does not."""
    if Path("/run/systemd/system").is_dir() or mounts.is_mounted(_REGISTRY):
        return False
    if not record["registry"]:
        record["registry"] = True
        made = (_REGISTRY, _REGISTRY.parent)
        record["folders"] = [str(folder) for folder in made if not folder.exists()]
        _save(record)
    _REGISTRY.mkdir(parents=True, exist_ok=True)
    done = run(["mount", "-t", "tmpfs", "tmpfs", str(_REGISTRY)], timeout=_TIMEOUT)
    if not done.ok:
        raise LlmetalError(
            what="a file system in memory cannot be mounted",
            where=str(_REGISTRY),
            why=done.tail(),
            fix="the sandbox needs root with the right to mount",
        )
    return True


def _load() -> dict[str, Any]:
    empty: dict[str, Any] = {
        "users": [],
        "forwarding_before": None,
        "registry": False,
        "folders": [],
    }
    text = read_text(_RECORD)
    if text:
        with contextlib.suppress(ValueError):
            empty.update(json.loads(text))
    return empty


def _save(record: dict[str, Any]) -> None:
    write_atomic(_RECORD, json.dumps(record, indent=2) + "\n")
