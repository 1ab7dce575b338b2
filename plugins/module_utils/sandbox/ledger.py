# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: the list of everything the sandbox made on this machine.

An entry is written before the thing is made, so that whatever an interrupted run left is known to
the next one; what is not in the ledger was made by somebody else and is never touched.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


@dataclass
class Ledger:
    """What was made, and what was there before."""

    schema: int = SCHEMA
    bridge: str | None = None
    rules: list[list[str]] = field(default_factory=list)
    hosts: dict[str, dict[str, str]] = field(default_factory=dict)

    def address_taken_by(self, address: str, *, other_than: str) -> str | None:
        """The host that has an address already, if there is one."""
        for name, host in self.hosts.items():
            if name != other_than and host["address"] == address:
                return name
        return None


def load(path: Path) -> Ledger:
    """Read the ledger; an empty one where there is none.

    Raises:
        LlmetalError: it is not one that this version can read.
    """
    text = read_text(path)
    if text is None:
        return Ledger()
    try:
        raw = json.loads(text)
        if raw["schema"] != SCHEMA:
            raise LlmetalError(
                what="the sandbox on this machine was made by another version",
                where=str(path),
                why=f"schema {raw['schema']}, this version knows {SCHEMA}",
                fix="run `llmetal sandbox down` with the version that made it",
            )
        known = {part.name for part in fields(Ledger)}
        return Ledger(**{key: value for key, value in raw.items() if key in known})
    except (ValueError, TypeError, KeyError) as error:
        raise LlmetalError(
            what="the list of what the sandbox made cannot be read",
            where=str(path),
            why=str(error),
            fix="it is needed to remove the sandbox safely: restore it, or remove by hand"
            " what it made (the folder's mounts, the bridge, the firewall rules)",
        ) from error


def is_unwritten(path: Path) -> bool:
    """Whether a ledger's folder is missing, or has nothing but what a killed first write left."""
    if not path.parent.exists():
        return True
    return all(child.name.startswith(f".{path.name}.") for child in path.parent.iterdir())


def save(path: Path, ledger: Ledger) -> None:
    """Write the ledger whole."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    write_atomic(path, json.dumps(asdict(ledger), indent=2, sort_keys=True) + "\n")
