# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions are compared as numbers."""

from __future__ import annotations

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import versions


@pytest.mark.parametrize(
    ("full", "release"),
    [
        ("580.159.04-1", "580.159.04"),
        ("580.159.04-0ubuntu0.22.04.1", "580.159.04"),
        ("1:580.65.06-1~bpo12+1", "580.65.06"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("nothing", ""),
    ],
)
def test_upstream(full: str, release: str) -> None:
    """The upstream part of a Debian version."""
    assert versions.upstream(full) == release


@pytest.mark.parametrize(
    ("version", "minimum", "expected"),
    [
        ("580.95.05", "580", True),
        ("580", "580.0", True),
        ("3.9.2", "3.11", False),
        ("3.11", "3.11.2", False),
        ("", "1", False),
    ],
)
def test_is_at_least(version: str, minimum: str, expected: bool) -> None:  # noqa: FBT001 - a row of a table
    """Numbers, not letters: 3.9 is older than 3.11."""
    assert versions.is_at_least(version, minimum) is expected
