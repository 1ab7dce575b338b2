# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an Xid means, by the table that the controller sends along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNKNOWN = {"says": "not in the table", "severity": "unknown", "action": "none"}


def meaning(table: Mapping[str, Any] | None, number: int) -> Mapping[str, Any]:
    """The row of an Xid; `unknown` what the table does not say of it."""
    row = (table or {}).get(str(number))
    return {**UNKNOWN, **row} if isinstance(row, dict) else UNKNOWN


def explain(
    rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """The Xids of a log with what they mean."""
    told = []
    for row in rows:
        known = meaning(table, row["xid"])
        told.append({**row, "severity": known["severity"], "says": known["says"]})
    return told
