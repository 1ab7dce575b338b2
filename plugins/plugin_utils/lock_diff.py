# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs between two locks, as a person says it: by names and not by indexes.

Pure. Rows of a list are matched by what names them, hashes are counted and not printed, and what
only follows from something else (the reasons, the hash of the inventory) is left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.lock import Lock

    Row = Mapping[str, Any]

_FOLLOWS = frozenset({"request_sha256", "why"})
"""Keys that only say where something came from."""

_HASHES = "sha256"
_VERSIONS = ("version", "revision")
_NAMES = (("name",), ("name", "device"), ("path",), ("distribution",), ("pci",), ("field",))
"""What can name the rows of a list, in the order in which it is tried."""

_EMPTY: tuple[Any, ...] = (None, [], {})
_NOTHING = "nothing"
_SHOWN_FILES = 3


@dataclass(frozen=True)
class Change:
    """A value that differs; None stands for one that is not there."""

    path: str
    before: Any
    after: Any

    def as_dict(self) -> dict[str, Any]:
        """The change as JSON has it."""
        return asdict(self)

    def as_text(self) -> str:
        """The change as people read it, on one line."""
        return f"{self.path}: {_text(self.before)} -> {_text(self.after)}"


def changes(before: Lock, after: Lock) -> tuple[Change, ...]:
    """What an other lock would change, in the order of the lock."""
    return tuple(_mapping("", before, after))


def _mapping(path: str, before: Row, after: Row) -> Iterator[Change]:
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in _FOLLOWS]
    # Another version has other hashes: that goes without saying.
    if any(key in keys and before.get(key) != after.get(key) for key in _VERSIONS):
        keys = [key for key in keys if key != _HASHES]
    for key in keys:
        where = f"{path}.{key}" if path else str(key)
        yield from _value(where, str(key), before.get(key), after.get(key))


def _value(path: str, key: str, before: Any, after: Any) -> Iterator[Change]:  # noqa: ANN401 - any value
    if before == after or (before in _EMPTY and after in _EMPTY):
        return
    if key == _HASHES:
        yield Change(path, _hashes(before), _hashes(after))
    elif key == "files":
        yield _files(path, before or [], after or [])
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _mapping(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list(path, before, after)
    else:
        yield Change(path, _brief(before), _brief(after))


def _list(path: str, before: Sequence[Any], after: Sequence[Any]) -> Iterator[Change]:
    if not all(isinstance(row, dict) for row in [*before, *after]):
        yield _words(path, before, after)
        return
    old, new = _named(before, after)
    for name in dict.fromkeys([*old, *new]):
        where = f"{path}.{name}"
        if name in old and name in new:
            yield from _mapping(where, old[name], new[name])
        else:
            yield Change(where, _brief(old.get(name)), _brief(new.get(name)))


def _named(before: Sequence[Row], after: Sequence[Row]) -> tuple[dict[str, Row], dict[str, Row]]:
    """The rows of two lists by what names them in both; by their index where nothing does."""
    for keys in _NAMES:
        lists = [[_name(row, keys) for row in rows] for rows in (before, after)]
        if all(None not in names and len({*names}) == len(names) for names in lists):
            old, new = ([str(name) for name in names] for names in lists)
            return dict(zip(old, before, strict=True)), dict(zip(new, after, strict=True))
    return (
        {str(index): row for index, row in enumerate(before)},
        {str(index): row for index, row in enumerate(after)},
    )


def _name(row: Row, keys: Sequence[str]) -> str | None:
    if any(row.get(key) is None for key in keys):
        return None
    first, *rest = (str(row[key]) for key in keys)
    return f"{first} ({', '.join(rest)})" if rest else first


def _words(path: str, before: Sequence[Any], after: Sequence[Any]) -> Change:
    """A list of plain values: what only one of them has; the whole lists where only the order is.

    The arguments of a command stay with the option that they belong to.
    """
    old, new = _options(before), _options(after)
    gone = [one for one in old if one not in new]
    come = [one for one in new if one not in old]
    if not gone and not come:
        return Change(path, list(before), list(after))
    return Change(path, gone or None, come or None)


def _options(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        last = found[-1] if found else ""
        takes = isinstance(last, str) and last.startswith("--") and " " not in last
        if takes and isinstance(value, str) and "=" not in last and not value.startswith("--"):
            found[-1] = f"{last} {value}"
        else:
            found.append(value)
    return found


def _hashes(value: object) -> str | None:
    if isinstance(value, str):
        return value[:12]
    if not isinstance(value, list):
        return None
    return "1 hash" if len(value) == 1 else f"{len(value)} hashes"


def _files(path: str, before: Sequence[Row], after: Sequence[Row]) -> Change:
    """The files of a model: how many, and which differ."""
    old = {str(row["path"]): row for row in before}
    new = {str(row["path"]): row for row in after}
    differ = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    shown = ", ".join(differ[:_SHOWN_FILES])
    if len(differ) > _SHOWN_FILES:
        shown += f" and {len(differ) - _SHOWN_FILES} more"
    return Change(path, _count(before), f"{_count(after)}; {len(differ)} differ: {shown}")


def _count(files: Sequence[Row]) -> str:
    size = sum(int(row.get("size") or 0) for row in files)
    noun = "file" if len(files) == 1 else "files"
    return f"{len(files)} {noun}, {size} bytes"


def _brief(value: Any) -> Any:  # noqa: ANN401 - any value
    """A row that is there on one side only: its version, or what else names it."""
    if not isinstance(value, dict):
        return value
    for key in (*_VERSIONS, "path", "distribution"):
        if isinstance(value.get(key), str):
            return value[key]
    flat = {
        k: v for k, v in value.items() if isinstance(v, str | int | float) and k not in _FOLLOWS
    }
    return ", ".join(f"{key} {one}" for key, one in flat.items()) or "set"


def _text(value: object) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
