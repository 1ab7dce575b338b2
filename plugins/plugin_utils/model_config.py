# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A config.json read without trust: every value has the right type and size, or is said not to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 1 << 31
"""No dimension of a model is larger; one that is would only make sums without sense."""
_SHOWN = 40
_MOST_WORDS = 100_000


class Values:
    """A JSON object from which only values of the asked type come.

    Args:
        values: the object; anything else counts as an empty one.
        where: how sentences name it.
        defaults: what the model's class takes for a key that is not there.
    """

    def __init__(
        self, values: object, where: str = "config.json", defaults: Mapping[str, int] | None = None
    ) -> None:
        """Keep the object; nothing is looked at yet."""
        self._values: Mapping[object, object] = values if isinstance(values, Mapping) else {}
        self.where = where
        self._defaults = defaults or {}

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._values)

    def names(self) -> Iterator[str]:
        """The keys."""
        return (name for name in self._values if isinstance(name, str))

    def raw(self, name: str) -> object:
        """Any value; None where there is none."""
        return self._values.get(name)

    def has(self, *names: str) -> bool:
        """Whether one of the names has a value other than null."""
        return any(self._values.get(name) is not None for name in names)

    def whole(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """The first of the names that has a value, if that is a whole number in the range."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            # True is an int to Python, and no number to any engine.
            if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
                return value
            return None
        # A null is a value to the classes: their defaults are for keys that are not there.
        absent = (name for name in names if name in self._defaults and name not in self._values)
        return next((self._defaults[name] for name in absent), None)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false; the default for anything else."""
        value = self._values.get(name)
        return value if isinstance(value, bool) else default

    def text(self, name: str) -> str | None:
        """A text that is not empty."""
        value = self._values.get(name)
        return value if isinstance(value, str) and value else None

    def words(self, *names: str) -> tuple[str, ...]:
        """The texts of the first list among the names."""
        for name in names:
            value = self._values.get(name)
            if isinstance(value, (list, tuple)):
                return tuple(one for one in value[:_MOST_WORDS] if isinstance(one, str))
        return ()

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers; None where it is none."""
        value = self._values.get(name)
        if not isinstance(value, (list, tuple)) or len(value) > _MOST_WORDS:
            return None
        found = tuple(one for one in value if isinstance(one, int) and not isinstance(one, bool))
        return found if len(found) == len(value) else None

    def sub(self, name: str) -> Values:
        """An object inside; empty where there is none."""
        return Values(self._values.get(name), f"{name} of {self.where}")

    def with_defaults(self, defaults: Mapping[str, int]) -> Values:
        """The same object, with what its class takes for keys that are not there."""
        return Values(self._values, self.where, defaults)

    def subs(self, name: str) -> Iterator[tuple[str, Values]]:
        """The objects inside an object, by name."""
        value = self._values.get(name)
        if isinstance(value, Mapping):
            for key, one in value.items():
                if isinstance(one, Mapping):
                    yield str(key), Values(one, f"{name}.{key} of {self.where}")

    def why(self, *names: str, least: int = 1) -> str:
        """Why none of the names has a usable number."""
        for name in names:
            value = self._values.get(name)
            if value is not None:
                wanted = f"no whole number from {least} to {LARGEST}"
                return f"{self.where} has {name} = {shown(value)}, which is {wanted}"
        return f"{self.where} has no {names[0]}"


def shown(value: object) -> str:
    """A value as a sentence may show it, however large or odd it is."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
    if isinstance(value, int):
        # Python refuses to print an integer of thousands of digits.
        return str(value) if abs(value) <= LARGEST**2 else "a number of very many digits"
    if isinstance(value, float):
        return str(value)
    return "a list" if isinstance(value, (list, tuple)) else "an object"
