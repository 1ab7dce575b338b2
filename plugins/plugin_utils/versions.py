# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of drivers, packages and interpreters, compared as numbers."""

from __future__ import annotations

import re

_UPSTREAM = re.compile(r"(?:\d+:)?(\d+(?:\.\d+)*)")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version: (580, 95, 5) for `580.95.05`; () for none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def upstream(version: str) -> str:
    """The upstream part of a Debian version: `1:580.95.05-0ubuntu1` is `580.95.05`."""
    found = _UPSTREAM.match(version)
    return found[1] if found else ""


def branch_of(version: str) -> str:
    """The driver branch of a release: `580` for `580.95.05`."""
    return version.partition(".")[0]


def is_at_least(version: str, minimum: str) -> bool:
    """Whether a version is the minimum or newer; missing numbers count as zero."""
    mine, least = numbers(version), numbers(minimum)
    width = max(len(mine), len(least))
    return _padded(mine, width) >= _padded(least, width)


def _padded(parts: tuple[int, ...], width: int) -> tuple[int, ...]:
    return parts + (0,) * (width - len(parts))
