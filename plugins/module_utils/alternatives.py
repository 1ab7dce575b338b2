# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's alternatives: one path of a system that leads to one of several installations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from pathlib import Path

_TOOL = "update-alternatives"
_TIMEOUT = 60
_NO_GROUP = 2


@dataclass(frozen=True)
class Group:
    """An alternative as it is."""

    link: str = ""
    value: str | None = None
    automatic: bool = True
    choices: tuple[tuple[str, int], ...] = ()
    """Path and priority of each."""


def parse(text: str) -> Group:
    """What `update-alternatives --query` prints."""
    link, value, status, choices = "", None, "auto", []
    path = ""
    for line in text.splitlines():
        name, _, rest = line.partition(": ")
        if name == "Link":
            link = rest
        elif name == "Value":
            value = None if rest == "none" else rest
        elif name == "Status":
            status = rest
        elif name == "Alternative":
            path = rest
        elif name == "Priority":
            choices.append((path, int(rest)))
    return Group(link, value, status == "auto", tuple(sorted(choices)))


def query(name: str) -> Group:
    """The group of a name; an empty one where there is none.

    Raises:
        LlmetalError: it cannot be asked.
    """
    done = run([_TOOL, "--query", name], timeout=_TIMEOUT)
    if done.ok:
        return parse(done.stdout)
    if done.rc == _NO_GROUP:
        return Group()
    raise LlmetalError(
        what="the alternatives of the system cannot be read",
        where=name,
        why=done.tail(2),
        fix="see /var/lib/dpkg/alternatives",
    )


def check_path(link: Path) -> None:
    """Refuse a path that no alternative owns.

    Raises:
        LlmetalError: a folder or a link to elsewhere is in the way.
    """
    if link.is_symlink():
        leads = str(link.readlink())
        if leads.startswith("/etc/alternatives/"):
            return
        found = f"a link to {leads}"
    elif link.exists():
        found = "a folder or file"
    else:
        return
    raise LlmetalError(
        what="the path of the alternative is taken",
        where=str(link),
        why=f"it is {found} that somebody made by hand; it is not removed for you",
        fix=f"move it away (mv {link} {link}.before), or set llmetal_cuda.default to false",
    )


def apply(name: str, link: str, path: str, priority: int, *, selected: bool) -> None:
    """Register a choice, and select it where that is wanted.

    Raises:
        LlmetalError: it could not be done.
    """
    _do("--install", link, name, path, str(priority))
    if selected:
        _do("--set", name, path)


def remove(name: str, path: str) -> None:
    """Take a choice back.

    Raises:
        LlmetalError: it could not be done.
    """
    _do("--remove", name, path)


def _do(*arguments: str) -> None:
    done = run([_TOOL, *arguments], timeout=_TIMEOUT)
    if not done.ok:
        raise LlmetalError(
            what="the alternative could not be set",
            where=" ".join(arguments),
            why=done.tail(2),
            fix="run it as root, and see /var/log/alternatives.log",
        )
