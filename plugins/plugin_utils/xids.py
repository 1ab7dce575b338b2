# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the driver's Xids mean, from data/xids.yml."""

from __future__ import annotations

import functools
from typing import Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_data

_SENT = ("says", "severity", "action")


@functools.lru_cache(maxsize=1)
def _rows() -> dict[int, dict[str, Any]]:
    return {int(number): row for number, row in load_data("xids.yml")["xids"].items()}


@functools.lru_cache(maxsize=1)
def of_hardware() -> dict[int, str]:
    """The Xids that are an error of the GPU and not of a program, in plain words."""
    return {number: row["says"] for number, row in _rows().items() if row["hardware"]}


def table() -> dict[str, dict[str, str]]:
    """What a host is sent, by number."""
    return {str(number): {key: row[key] for key in _SENT} for number, row in _rows().items()}
