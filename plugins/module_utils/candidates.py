# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which versions a host could install, asked in a private state: nothing of the host changes."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import apt_simulation, dpkg
from ansible_collections.llmetal.inference.plugins.module_utils.apt_archive import (
    LISTS,
    OS_RELEASE,
    Archive,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_messages import failure
from ansible_collections.llmetal.inference.plugins.module_utils.apt_pins import pinned
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    ETC_APT,
    Entry,
    Source,
    declared_elsewhere,
    read_entries,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.package_set import parse_madison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WILD = set("*?[")


@dataclass(frozen=True)
class Question:
    """What is asked."""

    packages: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    archives: tuple[Archive, ...] = ()
    simulate: tuple[str, ...] = ()
    update: str = "auto"
    timeout: int = 300
    cache_dir: str | None = None
    etc_apt: str = ETC_APT
    lists: str = LISTS
    os_release: str = OS_RELEASE

    @property
    def names(self) -> str:
        """The asked sources, for a person."""
        names = [source.name for source in self.sources]
        return ", ".join(names + [archive.name for archive in self.archives])


class PrivateApt:
    """apt with its lists, caches and sources in a folder of our own."""

    def __init__(self, folder: Path, question: Question) -> None:
        """Lay out the folder."""
        self._folder = folder
        self._question = question
        self._parts = folder / "parts"
        self._asked = folder / "asked"
        for name in ("lists/partial", "cache/archives/partial", "parts", "asked", "empty"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def _options(self, parts: Path) -> list[str]:
        etc = Path(self._question.etc_apt)
        own = parts == self._asked
        values = {
            "Dir::State::lists": self._folder / "lists",
            "Dir::Cache": self._folder / "cache",
            "Dir::Cache::archives": self._folder / "cache/archives",
            "Dir::Etc::sourcelist": "/dev/null" if own else etc / "sources.list",
            "Dir::Etc::sourceparts": parts,
            "Dir::Etc::preferencesparts": etc / "preferences.d",
            "APT::Sandbox::User": "root",
            "APT::Get::List-Cleanup": "false",
            "Acquire::Languages": "none",
        }
        return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]

    def prepare(self) -> list[Path]:
        """Declare the host's own sources and the asked ones; the files of the latter."""
        question = self._question
        for link in self._parts.iterdir():
            link.unlink()
        for path in sorted((Path(question.etc_apt) / "sources.list.d").glob("*")):
            if path.suffix in {".list", ".sources"}:
                (self._parts / path.name).symlink_to(path)
        entries = read_entries(question.etc_apt)
        asked = []
        for source in question.sources:
            name = f"{source.name}.sources"
            declared = declared_elsewhere(
                source, entries, f"{question.etc_apt}/sources.list.d/{name}"
            )
            keyring = self._asked / f"{source.name}.asc"
            keyring.write_text(source.key_text(), encoding="utf-8")
            file = self._asked / name
            file.write_text(source.text(keyring=str(keyring)), encoding="utf-8")
            asked.append(file)
            if declared is None:
                mine = self._parts / name
                mine.unlink(missing_ok=True)
                mine.symlink_to(file)
        return asked + self._prepare_archives(entries)

    def _prepare_archives(self, entries: Sequence[Entry]) -> list[Path]:
        """Declare the components that the host's own sources lack; the files that do."""
        asked = []
        for archive in self._question.archives:
            text = archive.text(
                entries,
                own_file=archive.file(self._question.etc_apt),
                lists=self._question.lists,
                os_release=self._question.os_release,
            )
            if text:
                name = f"{archive.name}.sources"
                file = self._asked / name
                file.write_text(text, encoding="utf-8")
                mine = self._parts / name
                mine.unlink(missing_ok=True)
                mine.symlink_to(file)
                asked.append(file)
        return asked

    def link_lists(self) -> None:
        """Have the host's lists, so that only what is new is fetched.

        apt replaces a list by renaming, so a link is replaced and never written through.
        """
        with contextlib.suppress(OSError):
            for path in Path(self._question.lists).iterdir():
                target = self._folder / "lists" / path.name
                if path.is_file() and path.name != "lock" and not target.exists():
                    target.symlink_to(path)

    def _call(self, argv: Sequence[str], parts: Path) -> CommandResult:
        program, *rest = argv
        timeout = self._question.timeout
        return run([program, *self._options(parts), *rest], timeout=timeout)

    def update_asked(self, names: str) -> None:
        """Fetch the indexes of the asked sources; they must answer.

        Raises:
            LlmetalError: one does not.
        """
        argv = ["apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update"]
        result = self._call(argv, self._asked)
        if not result.ok:
            text = result.stdout + result.stderr
            raise failure(text, stage="reading the package source", where=names)

    def update_all(self) -> list[str]:
        """Fetch all indexes; what did not answer, as warnings."""
        result = self._call(["apt-get", "-q", "update"], self._parts)
        lines = (result.stdout + result.stderr).splitlines()
        return [line for line in lines if line.startswith(("W:", "E:", "Err:"))]

    def names(self, patterns: Sequence[str]) -> list[str]:
        """The names that patterns stand for; plain names stay as they are."""
        plain = [name for name in patterns if not _WILD & set(name)]
        wild = [name for name in patterns if _WILD & set(name)]
        if wild:
            known = self._call(["apt-cache", "pkgnames"], self._parts).stdout.split()
            for pattern in wild:
                plain += sorted(fnmatch.filter(known, pattern))
        return list(dict.fromkeys(plain))

    def versions(self, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """Versions of packages, newest first, each with where it comes from."""
        found: dict[str, list[dict[str, str]]] = {name: [] for name in names}
        if not names:
            return found
        told = self._call(["apt-cache", "madison", *names], self._parts)
        for name, rows in parse_madison(told.stdout).items():
            origins: dict[str, str] = {}
            for version, origin in rows:
                origins.setdefault(version, origin)
            found[name] = [
                {"version": version, "origin": origins[version]}
                for version in sorted(origins, key=dpkg.version_key, reverse=True)
            ]
        return found

    def closure(self, arguments: Sequence[str]) -> list[dict[str, str]]:
        """What installing these would install in all.

        Raises:
            LlmetalError: they cannot be installed together.
        """
        versions = [word.partition("=")[2] for word in arguments if "=" in word]
        with pinned(versions, etc_apt=self._question.etc_apt) as pins:
            argv = ["apt-get", "-s", "-q", "--no-install-recommends", "--allow-downgrades"]
            argv += ["--allow-change-held-packages", *pins, "install", *arguments]
            result = self._call(argv, self._parts)
        if not result.ok:
            text = result.stdout + result.stderr
            where = " ".join(arguments)
            raise failure(text, stage="simulating the installation", where=where)
        return parse_simulation(result.stdout)


def parse_simulation(text: str) -> list[dict[str, str]]:
    """The packages that `apt-get -s install` would install or change."""
    return [
        {"name": change.name, "version": change.after, "origin": change.origin}
        for change in apt_simulation.parse(text)
        if change.after is not None
    ]


@contextlib.contextmanager
def _folder(cache_dir: str | None) -> Iterator[Path]:
    if cache_dir:
        path = Path(cache_dir)
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        yield path
        return
    path = Path(tempfile.mkdtemp(prefix="llmetal-apt-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ask(question: Question) -> dict[str, Any]:
    """Ask apt.

    Raises:
        LlmetalError: this host has no apt, a source does not answer, or the packages of the
            simulation cannot be installed together.
    """
    if shutil.which("apt-get", path=f"{os.environ.get('PATH', '')}:/usr/bin") is None:
        raise LlmetalError(
            what="this host has no apt",
            fix="llmetal serves Debian and Ubuntu; take this host out of the inventory",
        )
    warnings: list[str] = []
    with _folder(question.cache_dir) as folder:
        apt = PrivateApt(folder, question)
        asked = apt.prepare()
        apt.link_lists()
        if asked and question.update != "never":
            apt.update_asked(question.names)
        if question.update == "always":
            warnings = apt.update_all()
        candidates = apt.versions(apt.names(question.packages))
        if question.update == "auto" and not all(candidates.values()):
            warnings = apt.update_all()
            candidates = apt.versions(apt.names(question.packages))
        closure = apt.closure(question.simulate) if question.simulate else None
    return {"candidates": candidates, "closure": closure, "warnings": warnings}


def question_of(params: Mapping[str, Any]) -> Question:
    """From a module's parameters.

    Raises:
        LlmetalError: a source is not complete, or its key is another one.
    """
    sources = [source for source in map(Source.of, params["sources"]) if source]
    archives = [archive for archive in map(Archive.of, params["sources"]) if archive]
    return Question(
        packages=tuple(params["packages"]),
        sources=tuple(sources),
        archives=tuple(archives),
        simulate=tuple(params["simulate"]),
        update=params["update"],
        timeout=params["timeout"],
        cache_dir=params["cache_dir"],
    )
