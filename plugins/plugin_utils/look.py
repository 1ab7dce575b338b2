# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nested data read without trust: what is missing or of another type is unknown, never wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Look:
    """A mapping of a result. A key that is null, missing or of another type gives None."""

    raw: Mapping[str, Any] = field(default_factory=dict)

    def _value(self, keys: tuple[str, ...]) -> object:
        value: object = self.raw
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def at(self, *keys: str) -> Look:
        """The mapping under some keys, empty where there is none."""
        value = self._value(keys)
        return Look(value) if isinstance(value, Mapping) else Look()

    def text(self, *keys: str) -> str | None:
        """A text that is not empty."""
        value = self._value(keys)
        return value if isinstance(value, str) and value else None

    def number(self, *keys: str) -> int | None:
        """A whole number."""
        value = self._value(keys)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, *keys: str) -> bool | None:
        """Yes, no, or unknown."""
        value = self._value(keys)
        return value if isinstance(value, bool) else None

    def known(self, *keys: str) -> bool:
        """Whether there is a list or a mapping, be it empty: somebody looked."""
        return isinstance(self._value(keys), list | Mapping)

    def texts(self, *keys: str) -> tuple[str, ...]:
        """The texts of a list, or the keys of a mapping; none where there is neither."""
        value = self._value(keys)
        items = value if isinstance(value, list | Mapping) else ()
        return tuple(item for item in items if isinstance(item, str))

    def rows(self, *keys: str) -> tuple[Look, ...]:
        """The mappings of a list; none where there is no list."""
        value = self._value(keys)
        items = value if isinstance(value, list) else []
        return tuple(Look(item) for item in items if isinstance(item, Mapping))
