# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a transaction would do, by apt's own simulation, and what it must not do."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.apt_messages import AptError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INSTALL = re.compile(
    r"^Inst (\S+) (?:\[([^\]]*)\] )?\((\S+) ([^\[]*?)(?: \[[^\]]*\])?\)", re.MULTILINE
)
_REMOVE = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[([^\]]*)\])?", re.MULTILINE)
_KERNEL = re.compile(r"linux-image-.+")
_RELEASE = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?![\d.])")
"""A driver release at the start of a package's version: three digits, as 580.159.04."""
_SHOWN = 8


@dataclass(frozen=True)
class Change:
    """One package that a transaction would install, change or remove."""

    name: str
    before: str | None
    after: str | None
    origin: str = ""

    def __str__(self) -> str:
        """For a person."""
        if self.after is None:
            return f"removes {self.name} {self.before or ''}".rstrip()
        if self.before is None:
            return f"installs {self.name} {self.after}"
        return f"changes {self.name} from {self.before} to {self.after}"


@dataclass(frozen=True)
class Limits:
    """What a transaction may do besides bringing the packages asked for.

    Attributes:
        replaces: names that it may remove, as patterns.
        one_release: names that it may bring only in a release of the set, as patterns.
        own_release: names among those that have releases of their own, as patterns.
        keeps: names that it may neither bring, change nor remove, as patterns.
    """

    replaces: tuple[str, ...] = ()
    one_release: tuple[str, ...] = ()
    own_release: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()

    def may_remove(self, name: str) -> bool:
        """Whether the transaction may remove a package."""
        return _matches(name, self.replaces)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _plain(name: str) -> str:
    """A name without its architecture."""
    return name.partition(":")[0]


def parse(text: str) -> list[Change]:
    """The changes that `apt-get -s` printed, in their order."""
    found: list[tuple[int, Change]] = []
    for match in _INSTALL.finditer(text):
        change = Change(_plain(match[1]), match[2] or None, match[3], match[4].strip())
        found.append((match.start(), change))
    found += [
        (match.start(), Change(_plain(match[1]), match[2] or None, None))
        for match in _REMOVE.finditer(text)
    ]
    return [change for _, change in sorted(found, key=lambda pair: pair[0])]


def release_of(version: str | None) -> str | None:
    """The driver release in a package's version; None where it has none."""
    match = _RELEASE.match(version or "")
    return match[1] if match else None


def _kernels(changes: Sequence[Change], asked: Iterable[str]) -> list[Change]:
    names = set(asked)
    return [c for c in changes if _KERNEL.fullmatch(c.name) and c.name not in names]


def _removed(changes: Sequence[Change], asked: Iterable[str], limits: Limits) -> list[Change]:
    names = {*asked, *(change.name for change in changes if change.after is not None)}
    return [
        change
        for change in changes
        if change.after is None and change.name not in names and not limits.may_remove(change.name)
    ]


def _other_release(
    changes: Sequence[Change], asked: Mapping[str, str | None], limits: Limits
) -> list[Change]:
    releases = {release for version in asked.values() if (release := release_of(version))}
    return [
        change
        for change in changes
        if releases
        and change.name not in asked
        and change.after is not None
        and _matches(change.name, limits.one_release)
        and not _matches(change.name, limits.own_release)
        and (release := release_of(change.after)) is not None
        and release not in releases
    ]


def _held(
    changes: Sequence[Change], asked: Iterable[str], holds: Iterable[str], limits: Limits
) -> list[Change]:
    names, on_hold = set(asked), set(holds)
    return [
        change
        for change in changes
        if change.name in on_hold
        and change.name not in names
        and not _matches(change.name, (*limits.one_release, *limits.replaces))
    ]


def _touched(changes: Sequence[Change], asked: Iterable[str], limits: Limits) -> list[Change]:
    names = set(asked)
    return [c for c in changes if c.name not in names and _matches(c.name, limits.keeps)]


def refuse(
    changes: Sequence[Change],
    *,
    asked: Mapping[str, str | None],
    holds: Iterable[str] = (),
    limits: Limits,
) -> None:
    """Stop before a transaction that does more than was asked for.

    Args:
        changes: what it would do.
        asked: the packages asked for, and their versions.
        holds: all packages on hold.
        limits: what it may do.

    Raises:
        AptError: it moves a kernel, removes a stranger, mixes releases, breaks a hold or touches
            what is to stay.
    """
    cases = (
        (
            _kernels(changes, asked),
            "it would move a kernel of the host",
            (
                "the modules are built for the kernels that are there. Bring or remove kernels on"
                " their own, reboot, plan anew"
            ),
        ),
        (
            _touched(changes, asked, limits),
            "it would touch packages that it has to leave alone",
            (
                "ask for packages that do not depend on these (of CUDA: cuda-toolkit-X-Y, never"
                " cuda, which brings a driver), or install these on their own first"
            ),
        ),
        (
            _held(changes, asked, holds, limits),
            "a package that the set needs is on hold in another version",
            (
                "see why (`apt-mark showhold`); release it with `apt-mark unhold <name>`, or"
                " plan a driver that does with the held version"
            ),
        ),
        (
            _removed(changes, asked, limits),
            "it would remove packages that have nothing to do with it",
            (
                "see what binds them together (`apt-get -s install` of the same versions), take"
                " the cause away"
            ),
        ),
        (
            _other_release(changes, asked, limits),
            "it would bring a part of the driver in another release",
            (
                "one set has one release. Remove what pulls the other one in (`apt-cache rdepends"
                " --installed <name>`; often a metapackage), or plan anew"
            ),
        ),
    )
    for found, what, fix in cases:
        if found:
            error = AptError(
                what=f"installing packages was stopped before it began: {what}",
                where=", ".join(change.name for change in found[:_SHOWN]),
                why="apt's simulation: " + _few(found),
                fix=fix,
            )
            error.kind = "guarded"
            raise error


def _few(changes: Sequence[Change]) -> str:
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(map(str, changes[:_SHOWN])) + more
