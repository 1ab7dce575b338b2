# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a host: read, checked against its schema, written."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

import yaml
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import write_atomic
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import DATA, load_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import jsonschema

SCHEMA = 1

Lock = dict[str, Any]
"""A lock as lock.schema.json describes it."""

_HEADER = (
    "# What this host gets, exactly. Made by llmetal;"
    " `llmetal plan --upgrade --write` makes it anew.\n"
)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # chosen at run time
    """Writes equal data equally: no anchors, lists indented below their key."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the base class asks it so
        """Write repeated values in full."""
        return True


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    import jsonschema  # noqa: PLC0415 - slow to import, and planned hardware has no lock to read

    return jsonschema.Draft202012Validator(json.loads((DATA / "lock.schema.json").read_bytes()))


def dump(lock: Mapping[str, Any]) -> str:
    """The text of a lock file."""
    body = yaml.dump(dict(lock), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"---\n{_HEADER}{body}"


def validate(lock: object, where: str) -> Lock:
    """Check a lock against the schema.

    Args:
        lock: what was read.
        where: the file or host it belongs to, for the error.

    Raises:
        LlmetalError: it is no lock of this schema; the error names the key.
    """
    errors = sorted(_validator().iter_errors(lock), key=lambda error: list(map(str, error.path)))
    if not errors:
        if not isinstance(lock, dict):  # pragma: no cover - the schema says so already
            raise TypeError(type(lock))
        return lock
    first = errors[0]
    key = ".".join(map(str, first.absolute_path)) or "the lock"
    raise LlmetalError(
        what=f"{key} is not as a lock has it",
        where=where,
        why=_short(first.message),
        fix="remove the file and plan again: a lock is made, not edited",
    )


def load(path: Path) -> Lock | None:
    """Read a lock file; None where there is none.

    Raises:
        LlmetalError: it cannot be read, is not YAML, or is no lock.
    """
    fix = "remove the file and plan again"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "the lock cannot be read"
        raise LlmetalError(what=what, where=str(path), why=str(error), fix=fix) from error
    try:
        data = load_yaml(text)
    except yaml.YAMLError as error:
        what = "the lock is not YAML"
        raise LlmetalError(what=what, where=str(path), why=_short(str(error)), fix=fix) from error
    return validate(data, str(path))


def write(path: Path, text: str) -> bool:
    """Write a lock file whole; whether that changed it.

    Raises:
        LlmetalError: the folder cannot be written.
    """
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise LlmetalError(
            what="the lock cannot be written",
            where=str(path),
            why=str(error),
            fix="make the folder writable, or name another one in llmetal_lock_dir",
        ) from error
    return True


def _short(text: str) -> str:
    line, limit = " ".join(text.split()), 200
    return line if len(line) <= limit else line[: limit - 3] + "..."
