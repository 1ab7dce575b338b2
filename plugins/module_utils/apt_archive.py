# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The distribution's own archive as a host declares it, and components that its sources lack.

One more declaration says only what is missing. Its addresses, its key and every other option are
those that the host's own declarations have: apt refuses two that differ in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    Entry,
    require_name,
    stanzas,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LISTS = "/var/lib/apt/lists"
OS_RELEASE = "/etc/os-release"
_PARTS = ("", "-updates", "-security")
"""The suites of a release that a host is to have, by what follows its code name."""
_PATHS = {"debian", "debian-security", "ubuntu", "ubuntu-ports"}
_COMPONENT = re.compile(r"[a-z][a-z-]*")


@dataclass(frozen=True)
class System:
    """The distribution of a host."""

    id: str
    codename: str

    @property
    def suites(self) -> set[str]:
        """The suites of its archive that count."""
        return {f"{self.codename}{part}" for part in _PARTS}


def system_of(text: str) -> System:
    """Read /etc/os-release.

    Raises:
        LlmetalError: it does not name a distribution and its release.
    """
    values = {
        name: value.strip("'\"")
        for name, _, value in (line.strip().partition("=") for line in text.splitlines())
    }
    system = System(values.get("ID", ""), values.get("VERSION_CODENAME", ""))
    if not system.id or not system.codename:
        raise LlmetalError(
            what="the distribution of this host is not known",
            where=OS_RELEASE,
            why="ID or VERSION_CODENAME is missing",
            fix="restore the file (package base-files)",
        )
    return system


@dataclass(frozen=True)
class Lack:
    """A repository of the archive, and what of it the host does not read."""

    entry: Entry
    uri: str
    suite: str
    components: tuple[str, ...]

    def stanza(self) -> str:
        """As it stands in a .sources file."""
        lines = [
            "Types: deb",
            f"URIs: {self.uri}",
            f"Suites: {self.suite}",
            f"Components: {' '.join(self.components)}",
            *(_field(name, value) for name, value in self.entry.options),
        ]
        return "\n".join(lines) + "\n"


def _field(name: str, value: str) -> str:
    first, *rest = value.split("\n")
    return "\n".join([f"{name}: {first}".rstrip(), *(f" {line or '.'}" for line in rest)])


@dataclass(frozen=True)
class Archive:
    """The distribution's archive with components that are wanted."""

    name: str
    components: tuple[str, ...]

    @classmethod
    def of(cls, params: Mapping[str, Any] | None) -> Archive | None:
        """From a module's parameter; None where no components of the archive are asked for.

        Raises:
            LlmetalError: a name is none.
        """
        if not params or params.get("uri") or not params.get("components"):
            return None
        archive = cls(params.get("name") or "", tuple(params["components"]))
        require_name(archive.name)
        if odd := [name for name in archive.components if not _COMPONENT.fullmatch(name)]:
            raise LlmetalError(
                what=f"{odd[0]!r} is no component of a package archive",
                fix="use names such as non-free or multiverse",
            )
        return archive

    def file(self, etc_apt: str) -> str:
        """Where our own declaration stands."""
        return f"{etc_apt}/sources.list.d/{self.name}.sources"

    def text(
        self,
        entries: Sequence[Entry],
        *,
        own_file: str,
        lists: str = LISTS,
        os_release: str = OS_RELEASE,
    ) -> str:
        """Content of our own declaration; empty where the host reads all components already.

        Args:
            entries: all declarations of the host.
            own_file: the file of our own, which counts as not there.
            lists: where apt keeps indexes, of which those of the archive name themselves.
            os_release: the file that names the distribution.

        Raises:
            LlmetalError: the host declares no archive of its distribution.
        """
        system = system_of(read_text(os_release) or "")
        others = [one for one in entries if one.file != own_file and "deb" in one.types]
        found = list(_repositories(others, system, lists))
        if not found:
            raise LlmetalError(
                what=f"no package source of {system.id} {system.codename} is declared on this host",
                where="/etc/apt/sources.list, /etc/apt/sources.list.d",
                why=f"{', '.join(self.components)} can only be added to a declaration of its"
                " archive",
                fix="declare the archive (or its mirror) with component main, or name another"
                " source in llmetal_driver.source",
            )
        lacks = [lack for one in found if (lack := self._lack(one, others))]
        if not lacks:
            return ""
        head = "# Written by llmetal: components that the other declarations of this archive lack."
        return "\n".join([head, *(lack.stanza() for lack in lacks)])

    def _lack(self, repository: _Repository, entries: Sequence[Entry]) -> Lack | None:
        there = {
            name
            for entry in entries
            if _declares(entry, repository.uri, repository.suite)
            for name in entry.components
        }
        missing = tuple(
            name
            for name in self.components
            if name not in there and (not repository.offers or name in repository.offers)
        )
        if not missing:
            return None
        return Lack(repository.entry, repository.uri, repository.suite, missing)


@dataclass(frozen=True)
class _Repository:
    """One suite of the archive, as a host declares it."""

    entry: Entry
    uri: str
    suite: str
    offers: frozenset[str]
    """The components that it says it has; empty where it was not read yet."""


def _declares(entry: Entry, uri: str, suite: str) -> bool:
    return uri.rstrip("/") in {one.rstrip("/") for one in entry.uris} and suite in entry.suites


def _repositories(entries: Sequence[Entry], system: System, lists: str) -> list[_Repository]:
    """The suites of the distribution's archive that a host reads, each once."""
    found: dict[tuple[str, str], _Repository] = {}
    for entry in entries:
        if "main" not in entry.components:
            continue
        for uri in entry.uris:
            for suite in entry.suites:
                release = _release(uri, suite, lists)
                if not _is_archive(entry, uri, suite, release, system):
                    continue
                named = release.get("components", "").split()
                offers = frozenset(name.rpartition("/")[2] for name in named)
                one = _Repository(entry, uri, suite, offers)
                found.setdefault((uri.rstrip("/"), suite), one)
    return list(found.values())


def _release(uri: str, suite: str, lists: str) -> dict[str, str]:
    """What the index of a repository says of itself; nothing where apt has not read it yet."""
    plain = quote(re.sub(r"^[a-z+]+:/*", "", uri.rstrip("/")), safe="/:%+@~")
    name = f"{plain}/dists/{suite.strip('/')}".replace("_", "%5f").replace("/", "_")
    try:
        paths = sorted(Path(lists).iterdir())
    except OSError:
        return {}
    for path in paths:
        for ending in (f"{name}_InRelease", f"{name}_Release"):
            if path.name == ending or path.name.endswith(f"_{ending}"):
                text = (read_text(path) or "").partition("\n\n")
                body = text[2] if text[0].startswith("-----BEGIN") else text[0]
                return next(iter(stanzas(body.partition("\n-----BEGIN")[0])), {})
    return {}


def _is_archive(
    entry: Entry, uri: str, suite: str, release: Mapping[str, str], system: System
) -> bool:
    """Whether a repository is the distribution's, by its own word, its key or its address.

    Others use the code names of distributions too, so those say nothing by themselves.
    """
    if release:
        own = release.get("origin", "").lower() == system.id
        return (
            own
            and release.get("codename", suite) in {*system.suites, system.codename}
            and (suite in system.suites or "codename" in release)
            and not suite.endswith(("-backports", "-proposed", "-proposed-updates"))
        )
    if suite not in system.suites:
        return False
    key = Path(entry.signed_by or "").name
    if key:
        return key.startswith((f"{system.id}-archive-", f"{system.id}-keyring"))
    last = uri.rstrip("/").rpartition("/")[2].removesuffix(".list")
    return last in _PATHS
