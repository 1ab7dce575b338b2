# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package database of dpkg: one question, every answer."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FIELDS = ("Package", "Architecture", "Version", "db:Status-Want", "db:Status-Status")
_FORMAT = "\t".join(f"${{{name}}}" for name in _FIELDS) + "\n"
_KERNEL_IMAGE = re.compile(r"linux-image-(?:unsigned-)?(\d.*)")
_SETTLED = {"installed", "config-files", "not-installed"}
_TRIGGERS = {"triggers-pending", "triggers-awaited"}
UPDATES = Path("/var/lib/dpkg/updates")


@dataclass(frozen=True)
class Package:
    """One package that dpkg knows."""

    name: str
    architecture: str
    version: str
    want: str
    status: str

    @property
    def installed(self) -> bool:
        """Whether it is there and configured."""
        return self.status == "installed" or self.status in _TRIGGERS

    @property
    def held(self) -> bool:
        """Whether a person or a role has put it on hold."""
        return self.want == "hold"

    @property
    def broken(self) -> bool:
        """Whether an interrupted or failed transaction left it half done."""
        return self.status not in _SETTLED


@dataclass(frozen=True)
class Database:
    """All packages, by name; of one name in two architectures the installed one counts."""

    packages: dict[str, Package]

    def version(self, name: str) -> str | None:
        """The version of an installed, configured package."""
        found = self.packages.get(name)
        return found.version if found and found.installed else None

    def held(self, name: str) -> bool:
        """Whether a package is on hold."""
        found = self.packages.get(name)
        return bool(found and found.held)

    @property
    def broken(self) -> list[str]:
        """Names of half-done packages."""
        return sorted(name for name, package in self.packages.items() if package.broken)

    @property
    def half_installed(self) -> list[str]:
        """Names of packages whose files are half there: only unpacking them again helps."""
        return sorted(name for name, p in self.packages.items() if p.status == "half-installed")

    @property
    def holds(self) -> list[str]:
        """Names of packages on hold."""
        return sorted(name for name, package in self.packages.items() if package.held)

    def installed(self) -> dict[str, str]:
        """Name and version of everything installed."""
        return {name: p.version for name, p in self.packages.items() if p.installed}


def parse(lines: Iterable[str]) -> Database:
    """Read what `dpkg-query -W` printed in our format."""
    packages: dict[str, Package] = {}
    for line in lines:
        values = line.rstrip("\n").split("\t")
        if len(values) != len(_FIELDS):
            continue
        package = Package(*values)
        known = packages.get(package.name)
        if known is None or (package.installed and not known.installed):
            packages[package.name] = package
    return Database(packages)


def query(names: Sequence[str] = (), *, timeout: float = 60) -> Database:
    """Ask dpkg for some packages, or for all."""
    told = run(["dpkg-query", "-W", f"-f={_FORMAT}", *names], timeout=timeout)
    return parse(told.stdout.splitlines())


def interrupted(folder: Path = UPDATES) -> bool:
    """Whether a dpkg was killed in the middle: its journal is then not empty."""
    try:
        return any(entry.name.isdigit() for entry in folder.iterdir())
    except OSError:
        return False


def _order(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256


def _compare_part(left: str, right: str) -> int:
    """Compare upstream versions or revisions as dpkg does: text and numbers in turn."""
    while left or right:
        texts = [(re.match(r"\D*", part) or [""])[0] for part in (left, right)]
        for index in range(max(map(len, texts))):
            orders = [_order(text[index]) if index < len(text) else 0 for text in texts]
            if orders[0] != orders[1]:
                return -1 if orders[0] < orders[1] else 1
        left, right = left[len(texts[0]) :], right[len(texts[1]) :]
        numbers = [(re.match(r"\d*", part) or [""])[0] for part in (left, right)]
        values = [int(number or "0") for number in numbers]
        if values[0] != values[1]:
            return -1 if values[0] < values[1] else 1
        left, right = left[len(numbers[0]) :], right[len(numbers[1]) :]
    return 0


def compare_versions(left: str, right: str) -> int:
    """Negative, zero or positive, as `left` is older than, as old as or newer than `right`."""

    def parts(version: str) -> tuple[int, str, str]:
        epoch, colon, rest = version.partition(":")
        if not colon:
            epoch, rest = "0", version
        upstream, dash, revision = rest.rpartition("-")
        if not dash:
            upstream, revision = rest, ""
        return int(epoch) if epoch.isdigit() else 0, upstream, revision

    (epoch_l, upstream_l, revision_l), (epoch_r, upstream_r, revision_r) = parts(left), parts(right)
    if epoch_l != epoch_r:
        return -1 if epoch_l < epoch_r else 1
    return _compare_part(upstream_l, upstream_r) or _compare_part(revision_l, revision_r)


version_key = functools.cmp_to_key(compare_versions)
"""Sorting key for versions of Debian packages."""


def kernels(database: Database, boot: str = "/boot") -> list[str]:
    """The kernels that can be booted, oldest first."""
    names = (_KERNEL_IMAGE.fullmatch(name) for name in database.installed())
    found = {match[1] for match in names if match and not match[1].endswith("-dbg")}
    found |= {path.name.partition("-")[2] for path in Path(boot).glob("vmlinuz-*")}
    return sorted(found, key=version_key)
