# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's values as plain Python ones."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:  # noqa: ANN401 - any value
    """A copy without Ansible's own types: tags and lazy templates gone, texts as `str`."""
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    return str(value)
