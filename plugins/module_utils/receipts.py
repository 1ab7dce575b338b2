# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role left on the host, and of which wishes it was made."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import dpkg, units
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    sha256_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = 1


def digest(value: object) -> str:
    """The sha256 of a value: of its JSON with sorted keys and without blanks."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: str) -> str | None:
    try:
        return sha256_file(path)
    except OSError:
        return None


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - the text of the link, not a path
    except OSError:
        return None


def compose(  # noqa: PLR0913 - the parts of a receipt, all by keyword
    *,
    role: str,
    slice_: Mapping[str, Any],
    inputs: Mapping[str, Any],
    files: Sequence[str],
    packages: Sequence[str],
    unit_names: Sequence[str],
    links: Sequence[str],
    scope: str,
) -> dict[str, Any]:
    """The receipt of a role, from what is really there now; null for what is not there."""
    database = dpkg.query(packages) if packages else None
    return {
        "schema": SCHEMA,
        "role": role,
        "slice_sha256": digest(slice_),
        "inputs_sha256": digest(inputs),
        "files": {path: _sha256(path) for path in sorted(files)},
        "packages": {name: database.version(name) for name in sorted(packages)} if database else {},
        "units": units.show(unit_names, scope=scope) if unit_names else {},
        "links": {path: _target(path) for path in sorted(links)},
    }


def render(receipt: Mapping[str, Any]) -> str:
    """As it is written."""
    return json.dumps(receipt, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A receipt; where it cannot be read, `{"unreadable": why}`, which differs from all others."""
    text = read_text(path)
    if text is None:
        return {"unreadable": "the file cannot be opened"}
    try:
        value = json.loads(text)
    except ValueError as error:
        return {"unreadable": f"this is not JSON: {error}"}
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return {"unreadable": f"this is not a receipt of schema {SCHEMA}"}
    return value


def read_all(config: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """All receipts of a host, by role."""
    try:
        paths = sorted((Path(config) / "receipts").glob("*.json"))
    except OSError:
        return {}
    return {path.stem: read(path) for path in paths}
