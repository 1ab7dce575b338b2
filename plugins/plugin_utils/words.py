# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people wrote and what they may have meant; apart, since it needs nothing of Ansible."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CREDENTIALS = re.compile(r"://[^/\s]*@")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that someone who wrote `name` may have meant."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def presentable(text: str) -> str:
    """A text without the credentials of its URLs, and with control characters spelt out."""
    hidden = _CREDENTIALS.sub("://(hidden)@", text)
    if hidden.isprintable():
        return hidden
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in hidden
    )
