# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages and the index of a flat repository, written without any tool."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EPOCH = 1_700_000_000
"""The time of every file in a package, so that the same input is the same package."""


@dataclass(frozen=True)
class File:
    """One file of a package."""

    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    """One symbolic link of a package."""

    target: str


@dataclass(frozen=True)
class Package:
    """A binary package."""

    name: str
    version: str
    description: str
    depends: str = ""
    architecture: str = "amd64"
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, File | Link] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """The name of its file in a repository."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.architecture}.deb"

    def control(self) -> str:
        """Its control paragraph, without a final blank line."""
        first, _, rest = self.description.partition("\n")
        size = sum(len(f.data) for f in self.files.values() if isinstance(f, File))
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "The llmetal developers <sandbox@invalid>",
            "Installed-Size": str(-(-size // 1024)),
            "Depends": self.depends,
            **self.fields,
            "Section": "sandbox",
            "Priority": "optional",
            "Description": first + "".join(f"\n {line or '.'}" for line in rest.splitlines()),
        }
        return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


def build(package: Package) -> bytes:
    """The package's file."""
    scripts = {name: File(text.encode(), 0o755) for name, text in package.scripts.items()}
    conffiles = [f"/{path}" for path in sorted(package.files) if path.startswith("etc/")]
    control: dict[str, File | Link] = {"control": File(package.control().encode()), **scripts}
    if conffiles:
        control["conffiles"] = File("".join(f"{path}\n" for path in conffiles).encode())
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", _tar(control)),
        ("data.tar.gz", _tar(package.files)),
    ]
    return b"!<arch>\n" + b"".join(_member(name, data) for name, data in members)


def index(packages: Sequence[tuple[Package, bytes]], folder: str = "") -> str:
    """The text of a repository's Packages file."""
    paragraphs = []
    for package, data in packages:
        control = package.control()
        head, _, description = control.partition("Description: ")
        paragraphs.append(
            f"{head}Filename: {folder}{package.filename}\nSize: {len(data)}\n"
            f"MD5sum: {hashlib.md5(data).hexdigest()}\n"  # noqa: S324 - a field of the format
            f"SHA256: {hashlib.sha256(data).hexdigest()}\nDescription: {description}"
        )
    return "\n".join(paragraphs)


def release(files: Mapping[str, bytes], *, origin: str, label: str, date: str) -> str:
    """The text of a repository's Release file over its index files."""
    lines = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n"
        for name, data in sorted(files.items())
    )
    return (
        f"Origin: {origin}\nLabel: {label}\nArchitectures: amd64\nDate: {date}\n"
        f"Description: made by the llmetal sandbox, for tests only\nSHA256:\n{lines}"
    )


def compress(data: bytes) -> bytes:
    """Gzip without a time stamp."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{_EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return head + data + (b"\n" if len(data) % 2 else b"")


def _tar(files: Mapping[str, File | Link]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = {"."}
        for path in files:
            parts = path.split("/")[:-1]
            folders |= {"./" + "/".join(parts[: i + 1]) for i in range(len(parts))}
        for folder in sorted(folders):
            entry = _entry(f"{folder}/")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, item in sorted(files.items()):
            entry = _entry(f"./{path}")
            if isinstance(item, Link):
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, item.target, 0o777
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(item.data), item.mode
                archive.addfile(entry, io.BytesIO(item.data))
    return compress(stream.getvalue())


def _entry(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mtime = _EPOCH
    entry.uname = entry.gname = "root"
    return entry
