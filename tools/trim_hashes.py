#!/usr/bin/env python3
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drop the hashes that no host can use from locked requirements: other systems, other processors.

tools/trim_hashes.py FILE...   changes the files, prints their sizes before and after

What is kept: the wheels that CPython 3.11 to 3.14 on Linux x86_64 with glibc installs; the source
distribution only of a package without such a wheel; everything of a package that has neither (one
for another system). Which hash is of which file is asked of the package index that uv is
configured for, by `uv pip compile --format pylock.toml`.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import sys
import tomllib
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Files = Mapping[tuple[str, str], Mapping[str, str]]

PYTHONS = range(11, 15)
_GLIBC = range(5, 60)
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@functools.cache
def supported() -> frozenset[Tag]:
    """The wheel tags that some host can install."""
    platforms = [
        "linux_x86_64",
        *(f"manylinux{name}_x86_64" for name in ("1", "2010", "2014")),
        *(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC),
    ]
    tags: set[Tag] = set()
    for minor in PYTHONS:
        interpreter = f"cp3{minor}"
        tags |= set(cpython_tags((3, minor), abis=[interpreter], platforms=platforms))
        tags |= set(compatible_tags((3, minor), interpreter=interpreter, platforms=platforms))
    return frozenset(tags)


def fits(name: str) -> bool:
    """Whether a file is a wheel that some host can install."""
    try:
        return not parse_wheel_filename(name)[3].isdisjoint(supported())
    except InvalidWheelFilename:
        return False


def files_of(lock: str) -> Files:
    """The files of each name and version of a pylock.toml, with their sha256."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for package in tomllib.loads(lock)["packages"]:
        key = (canonicalize_name(package["name"]), str(package["version"]))
        rows = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        found.setdefault(key, {}).update((_name(row), row["hashes"]["sha256"]) for row in rows)
    return found


def _name(row: Mapping[str, Any]) -> str:
    path = str(row.get("name") or urllib.parse.urlsplit(row["url"]).path)
    return urllib.parse.unquote(path.rpartition("/")[2])


def kept(hashes: Iterable[str], files: Mapping[str, str]) -> list[str]:
    """Which hashes of a package stay, in their order."""
    there = list(hashes)
    wheels = {digest for name, digest in files.items() if fits(name)}
    sources = {digest for name, digest in files.items() if not name.endswith(".whl")}
    for wanted in (wheels, sources):
        found = [digest for digest in there if digest in wanted]
        if found:
            return found
    return there


def trim(text: str, files: Files) -> str:
    """A requirements file with the hashes that stay."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", text)
    return "".join(_block(block, files) for block in blocks)


def _block(block: str, files: Files) -> str:
    """One package of a requirements file, with its hashes on lines of their own."""
    pin, hashes = _PIN.match(block), _HASH.findall(block)
    if pin is None or not hashes:
        return block
    stay = kept(hashes, files.get((canonicalize_name(pin["name"]), pin["version"]), {}))
    head = block.partition(" \\\n")[0]
    return " \\\n".join([head, *(f"    --hash=sha256:{digest}" for digest in stay)]) + "\n"


def ask(path: Path) -> str:
    """The files of all packages of a requirements file, as uv's configured index lists them."""
    command = [
        "uv",
        *("pip", "compile", "--quiet", "--no-deps", "--universal", "--prerelease", "allow"),
        *("--python-version", f"3.{PYTHONS[0]}", "--no-header", "--format", "pylock.toml"),
        str(path),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def main(argv: list[str] | None = None) -> int:
    """Trim the files that are named."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args(argv).files:
        before = path.read_text(encoding="utf-8")
        after = trim(before, files_of(ask(path)))
        path.write_text(after, encoding="utf-8")
        print(f"{path.name}: {len(before)} bytes before, {len(after)} after")
    return 0


if __name__ == "__main__":
    sys.exit(main())
