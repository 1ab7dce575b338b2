# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preferences for one transaction: what a set depends on comes in the set's own version."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PRIORITY = 1001
"""Above 1000, so that apt takes the version even where it is older than the installed one."""


def preferences(versions: Sequence[str], own: str) -> str:
    """The host's preferences, and after them every package of these exact versions.

    A driver package depends on its libraries in its own version, which apt does not take where
    the source has a newer one. `/./` stands for any name; `*` would not match by version.
    """
    stanzas = [
        f"Package: /./\nPin: version {version}\nPin-Priority: {_PRIORITY}\n"
        for version in dict.fromkeys(versions)
    ]
    return "\n".join([own.rstrip("\n") + "\n" if own.strip() else "", *stanzas]).lstrip("\n")


@contextlib.contextmanager
def pinned(versions: Sequence[str], *, etc_apt: str) -> Iterator[list[str]]:
    """Options for apt that prefer these versions for as long as the block runs."""
    if not versions:
        yield []
        return
    own = read_text(Path(etc_apt) / "preferences") or ""
    with tempfile.TemporaryDirectory(prefix="llmetal-apt-") as folder:
        file = Path(folder) / "preferences"
        file.write_text(preferences(versions, own), encoding="utf-8")
        yield ["-o", f"Dir::Etc::preferences={file}"]
