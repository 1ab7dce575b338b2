# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of systemd units, in one question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROPERTIES = "Id,LoadState,ActiveState,UnitFileState"


def parse(text: str) -> dict[str, dict[str, str]]:
    """Read what `systemctl show` printed; units that are not there are left out."""
    found = {}
    for block in text.split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        name = values.get("Id")
        if name and values.get("LoadState") not in {None, "not-found"}:
            found[name] = {
                "active": values.get("ActiveState", ""),
                "enabled": values.get("UnitFileState", "") or "static",
            }
    return found


def show(names: Sequence[str], *, scope: str = "system") -> dict[str, dict[str, str]]:
    """Whether units are active and enabled; patterns stand for loaded units."""
    manager = ["--user"] if scope == "user" else []
    told = run(["systemctl", *manager, "show", f"--property={_PROPERTIES}", *names], timeout=20)
    return parse(told.stdout)
