# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders that the loader searches: one file in /etc/ld.so.conf.d, and the cache made from it.

`ldconfig FOLDER` enters a folder into the cache of that moment only: the next plain ldconfig, which
every installation of a library runs, drops it again. So the file is what counts, and the cache is
made anew where it is not what the file says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import loader
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEAD = "# Made by llmetal: folders of libraries, for the loader's cache.\n"


@dataclass(frozen=True)
class Places:
    """Where file and cache are; elsewhere only in tests."""

    conf_dir: Path = Path("/etc/ld.so.conf.d")
    rebuild: tuple[str, ...] = ()
    """The arguments with which ldconfig makes the cache."""
    show: tuple[str, ...] = ("-p",)
    """Those with which it prints it."""


@dataclass(frozen=True)
class Wanted:
    """One file and what has to resolve."""

    name: str
    folders: tuple[str, ...] = ()
    present: bool = True
    sonames: tuple[str, ...] = ()
    anywhere: bool = False
    """Whether the libraries may come from any folder."""

    def check(self) -> None:
        """Refuse what cannot be a file of folders.

        Raises:
            LlmetalError: the name is none, or folders are missing.
        """
        if not _NAME.fullmatch(self.name):
            raise LlmetalError(
                what="the file's name is not a plain name",
                where=repr(self.name),
                fix="use letters, digits, dot, dash and underscore",
            )
        bad = [folder for folder in self.folders if not folder.startswith("/")]
        if self.present and (bad or not self.folders):
            raise LlmetalError(
                what="the loader's folders are whole paths, and at least one",
                where=", ".join(bad) or self.name,
                fix="give `folders`, each from the root on",
            )

    @property
    def text(self) -> str | None:
        """The file's content; None for no file."""
        if not self.present:
            return None
        return _HEAD + "".join(f"{folder}\n" for folder in self.folders)


@dataclass(frozen=True)
class Outcome:
    """What is there now, or would be."""

    changed: bool
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    resolves: Mapping[str, str | None] = field(default_factory=dict)
    shadowed_by: tuple[loader.Shadow, ...] = ()
    unlisted: tuple[str, ...] = ()


def stale(
    cache: Mapping[str, Sequence[str]], folders: Iterable[str], *, present: bool
) -> list[str]:
    """What the cache has that it should not, or lacks, of some folders.

    ldconfig takes a folder once, under the first path by which it is listed: where /usr/local/cuda
    leads to the same place, the cache has that path. So what lies there counts, not its name.
    """
    known = {path for paths in cache.values() for path in paths}
    places = {(Path(path).parent.resolve(), Path(path).name) for path in known}
    wrong = []
    for folder in folders:
        base = folder.rstrip("/")
        if present:
            real = Path(base).resolve()
            lacking = {name for name in loader.sonames_in(folder) if (real, name) not in places}
            wrong += [f"{base}/{name} is not in the cache" for name in sorted(lacking)]
        mine = {path for path in known if str(Path(path).parent) == base}
        gone = mine if not present else {path for path in mine if not Path(path).exists()}
        wrong += [f"{path} is in the cache" for path in sorted(gone)]
    return wrong


def listed(conf_dir: Path) -> set[str]:
    """The folders of all files of a configuration folder."""
    found: set[str] = set()
    for path in sorted(conf_dir.glob("*.conf")):
        lines = (line.partition("#")[0].strip() for line in (read_text(path) or "").splitlines())
        found.update(line.rstrip("/") for line in lines if line.startswith("/"))
    return found


def unlisted(cache: Mapping[str, Sequence[str]], conf_dir: Path) -> tuple[str, ...]:
    """Folders of toolkits in the cache that no file names: gone at the next plain ldconfig."""
    names = listed(conf_dir)
    folders = {str(Path(path).parent) for paths in cache.values() for path in paths}
    return tuple(
        sorted(
            folder
            for folder in folders
            if "cuda" in folder and folder not in names and str(Path(folder).resolve()) not in names
        )
    )


def ensure(
    wanted: Wanted,
    *,
    check_mode: bool,
    places: Places | None = None,
    settings: Iterable[Mapping[str, str]] = (),
    preload: str = "",
) -> Outcome:
    """Bring file and cache to what is wanted, and see that the libraries resolve.

    Args:
        wanted: the file, its folders and libraries.
        check_mode: predicts only; a library of a folder that is yet to be made is no failure.
        places: where file and cache are.
        settings: LD_LIBRARY_PATH in files.
        preload: the text of /etc/ld.so.preload.

    Raises:
        LlmetalError: ldconfig failed, or a library does not resolve as wanted.
    """
    wanted.check()
    at = places or Places()
    path = at.conf_dir / f"{wanted.name}.conf"
    text, cache = read_text(path), loader.parse(loader.ldconfig(*at.show))
    temporary = unlisted(cache, at.conf_dir)
    folders = wanted.folders if wanted.present else (*wanted.folders, *_of_text(text))
    others = listed(at.conf_dir) - set(_of_text(text))
    mine = folders if wanted.present else [one for one in folders if one not in others]
    wrong = stale(cache, mine, present=wanted.present)
    before = {"file": text, "cache": wrong}
    after: dict[str, Any] = {"file": wanted.text, "cache": []}
    changed = before != after
    if changed and not check_mode:
        _write(path, wanted.text)
        loader.ldconfig(*at.rebuild)
        cache = loader.parse(loader.ldconfig(*at.show))
        if left := stale(cache, mine, present=wanted.present):
            raise LlmetalError(
                what="the loader's cache is not as wanted after ldconfig",
                where=str(path),
                why="; ".join(left[:3]),
                fix="see that /etc/ld.so.conf includes /etc/ld.so.conf.d/*.conf",
            )
    resolves = {name: next(iter(cache.get(name, ())), None) for name in wanted.sonames}
    below = () if wanted.anywhere else wanted.folders
    found = loader.shadows(cache, wanted.sonames, below, settings, preload)
    if wanted.present and not (check_mode and changed):
        _check(resolves, cache, wanted, found)
    return Outcome(changed, before, after, resolves, tuple(found), temporary)


def _of_text(text: str | None) -> tuple[str, ...]:
    return tuple(line.strip() for line in (text or "").splitlines() if line.startswith("/"))


def _write(path: Path, text: str | None) -> None:
    try:
        if text is None:
            path.unlink()
        else:
            write_atomic(path, text)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LlmetalError(
            what="the loader's file cannot be written",
            where=str(path),
            why=error.strerror or str(error),
            fix="run it as root",
        ) from error


def _check(
    resolves: Mapping[str, str | None],
    cache: Mapping[str, Sequence[str]],
    wanted: Wanted,
    found: Iterable[loader.Shadow],
) -> None:
    """Fail where a library is not found, or not where it should be."""
    missing = [name for name, path in resolves.items() if path is None]
    if missing:
        raise LlmetalError(
            what=f"the loader does not find {', '.join(missing)}",
            where=", ".join(wanted.folders),
            why="; ".join(loader.explain_missing(one, cache, wanted.folders) for one in missing),
            fix="install the toolkit of that CUDA major (llmetal_cuda.version or .also)",
        )
    wrong = [row for row in found if row.soname in resolves and row.path == resolves[row.soname]]
    if wrong:
        raise LlmetalError(
            what=f"the loader takes another {wrong[0].soname}",
            where=wrong[0].path,
            why=wrong[0].why,
            fix=wrong[0].fix,
        )
