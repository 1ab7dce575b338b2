# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error counters of links as they were when a boot was new, to compare later ones with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def parse(text: str | None) -> dict[str, Any] | None:
    """What a file holds; None where there is none, or it holds no counters."""
    try:
        raw = json.loads(text or "")
        gpus = {
            uuid: {
                link: {name: _whole(count) for name, count in counts.items()}
                for link, counts in links.items()
            }
            for uuid, links in raw["gpus"].items()
        }
        boot_id = raw["boot_id"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return {"boot_id": boot_id, "gpus": gpus} if boot_id and isinstance(boot_id, str) else None


def _whole(count: object) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        msg = f"{count!r} counts nothing"
        raise ValueError(msg)
    return count


def is_of_now(kept: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    """Whether kept counters are of this boot and of these GPUs; else they say nothing any more."""
    if kept is None:
        return False
    return kept["boot_id"] == now["boot_id"] and set(kept["gpus"]) == set(now["gpus"])


def render(counters: Mapping[str, Any]) -> str:
    """As they are written."""
    return json.dumps(counters, indent=2, sort_keys=True) + "\n"
