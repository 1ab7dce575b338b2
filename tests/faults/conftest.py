# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option of the kill tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--every-task`."""
    parser.addoption(
        "--every-task",
        action="store_true",
        help="kill the driver role at every task boundary, not only where a phase begins",
    )
