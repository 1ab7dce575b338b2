# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the dynamic loader would take for a library, and what stands before the right one.

The loader's cache is read by `ldconfig -p`: of several files of a name the first one is taken. Its
own format differs between releases of the C library, what it prints does not.
"""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_ENTRY = re.compile(r"^\s+(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>/.*)$")
_PROGRAMS = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_TIMEOUT = 60
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_LOAD, _DYNAMIC = 1, 2
_STRINGS, _SONAME = 5, 14
_OF_CUDA = re.compile(
    r"lib(?:cudart|nvrtc|cublas|cublasLt|nvJitLink|nvrtc-builtins)\.so\.(?P<major>\d+)(?:\.\d+)?"
)
"""Libraries whose version begins with the CUDA major; libcusparse and libcurand count their own."""
DRIVER = "libcuda.so.1"


@dataclass(frozen=True)
class Shadow:
    """A file that is taken before the right one."""

    soname: str
    path: str
    kind: str
    """`stub`, `compat`, `other_major`, `other`, `ld_library_path`, `preload`."""
    why: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """As a module returns it."""
        return asdict(self)


def parse(text: str, machine: str = "x86-64") -> dict[str, list[str]]:
    """The files of each library name, the one that is taken first, of what `ldconfig -p` prints."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        row = _ENTRY.match(line)
        if row and machine in row["kind"]:
            found.setdefault(row["name"], []).append(row["path"])
    return found


def ldconfig(*arguments: str) -> str:
    """Run ldconfig; what it printed.

    Raises:
        LlmetalError: it is not there or failed.
    """
    for program in _PROGRAMS:
        done = run([program, *arguments], timeout=_TIMEOUT)
        if done.ok:
            return done.stdout
        if Path(program).exists():
            raise LlmetalError(
                what="ldconfig failed",
                where=" ".join([program, *arguments]),
                why=done.tail(3),
                fix="run it as root, on a file system with room",
            )
    raise LlmetalError(
        what="there is no ldconfig", where=_PROGRAMS[0], fix="install the package libc-bin"
    )


def cuda_major(soname: str) -> int | None:
    """The CUDA major that a library is of, by its name; None where the name does not say it."""
    found = _OF_CUDA.fullmatch(soname)
    return int(found["major"]) if found else None


def soname_of(path: Path) -> str | None:
    """The name under which the loader knows a library; None for a file that is none."""
    try:
        with path.open("rb") as stream:
            return _soname(stream)
    except (OSError, struct.error, IndexError):
        return None


def _soname(stream: BinaryIO) -> str | None:
    """Read the dynamic segment alone: libraries may have a GB."""
    head = stream.read(64)
    if head[:6] != _ELF64_LITTLE:
        return None
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    stream.seek(table)
    headers = stream.read(size * count)
    segments = [struct.unpack_from("<IIQQQQ", headers, index * size) for index in range(count)]
    entries: dict[int, int] = {}
    for kind, _flags, offset, _address, _physical, length in segments:
        if kind == _DYNAMIC:
            stream.seek(offset)
            data = stream.read(length)
            entries = dict(struct.iter_unpack("<qQ", data[: len(data) // 16 * 16]))
    if _SONAME not in entries or _STRINGS not in entries:
        return None
    at = entries[_STRINGS]
    for kind, _flags, offset, address, _physical, length in segments:
        if kind == _LOAD and address <= at < address + length:
            stream.seek(at - address + offset + entries[_SONAME])
            return stream.read(256).partition(b"\0")[0].decode(errors="replace")
    return None


def sonames_in(folder: str) -> set[str]:
    """The names of the libraries in a folder, as ldconfig would enter them."""
    files = [path for path in Path(folder).glob("lib*.so*") if path.is_file()]
    found = {soname_of(path) for path in files if not path.is_symlink() or _leads_away(path)}
    return {name for name in found if name}


def _leads_away(path: Path) -> bool:
    return path.resolve().parent != path.parent.resolve()


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a file lies in one of the folders, by its own path or by where links lead."""
    places = {*folders, *(str(Path(folder).resolve()) for folder in folders)}
    names = (path, str(Path(path).parent.resolve() / Path(path).name))
    return any(name.startswith(f"{place.rstrip('/')}/") for place in places for name in names)


def shadows(
    cache: Mapping[str, Sequence[str]],
    sonames: Iterable[str],
    folders: Sequence[str],
    settings: Iterable[Mapping[str, str]] = (),
    preload: str = "",
) -> list[Shadow]:
    """What a process would load instead of the libraries that are wanted.

    Args:
        cache: the loader's cache.
        sonames: the libraries that are wanted.
        folders: where they should come from; none for anywhere.
        settings: LD_LIBRARY_PATH in files, as `toolkits.collect` returns them.
        preload: the text of /etc/ld.so.preload.
    """
    wanted = list(sonames)
    found = list(_in_cache(cache, wanted, folders))
    for row in settings:
        if row["name"] == "LD_LIBRARY_PATH":
            found += _in_setting(row, [*wanted, DRIVER], folders)
    for word in preload.split():
        name = Path(word).name
        if name.startswith(("libcuda", "libnv", "libcublas")):
            found.append(
                Shadow(
                    name,
                    word,
                    "preload",
                    "/etc/ld.so.preload puts it before every other library, in every process",
                    "take it out of /etc/ld.so.preload",
                )
            )
    return found


def _in_cache(
    cache: Mapping[str, Sequence[str]], wanted: Sequence[str], folders: Sequence[str]
) -> Iterator[Shadow]:
    first = next(iter(cache.get(DRIVER, ())), "")
    if "/stubs/" in first:
        yield _stub(DRIVER, first)
    elif first and ("/compat/" in first or "/compat/" in str(Path(first).resolve())):
        yield Shadow(
            DRIVER,
            first,
            "compat",
            "the libcuda of a cuda-compat package is taken before the driver's own: CUDA error 803 "
            "where the driver is as new, 804 on GPUs that it does not serve",
            "take its folder out of /etc/ld.so.conf.d and run ldconfig; set it for the one service "
            "that needs it",
        )
    for soname in wanted:
        path = next(iter(cache.get(soname, ())), "")
        if "/stubs/" in path:
            yield _stub(soname, path)
        elif path and folders and not is_below(path, folders):
            yield Shadow(
                soname,
                path,
                "other",
                f"the cache has it before that of {', '.join(folders)}",
                "remove the other toolkit's file in /etc/ld.so.conf.d, or give ours a name that "
                "comes before it",
            )


def _stub(soname: str, path: str) -> Shadow:
    return Shadow(
        soname,
        path,
        "stub",
        "a stub is for linking only: every call of it fails",
        "take the folder stubs out of /etc/ld.so.conf.d and LD_LIBRARY_PATH, then run ldconfig",
    )


def _in_setting(
    row: Mapping[str, str], wanted: Sequence[str], folders: Sequence[str]
) -> Iterator[Shadow]:
    seen = set()
    for folder in row["value"].split(":"):
        if not folder.startswith("/"):
            continue
        for soname in wanted:
            path = Path(folder) / soname
            if soname in seen or not path.exists():
                continue
            seen.add(soname)
            if "/stubs" in folder:
                yield _stub(soname, str(path))
            elif soname == DRIVER or not folders or not is_below(str(path), folders):
                compat = soname == DRIVER and "/compat" in folder
                yield Shadow(
                    soname,
                    str(path),
                    "compat" if compat else "ld_library_path",
                    f"LD_LIBRARY_PATH in {row['file']} is searched before the cache"
                    + (" (CUDA errors 803 and 804)" if compat else ""),
                    f"take {folder} out of {row['file']}",
                )


def explain_missing(soname: str, cache: Mapping[str, Sequence[str]], folders: Sequence[str]) -> str:
    """Why a library does not resolve, and what would bring it."""
    major = cuda_major(soname)
    if major is None:
        return f"no folder that the loader searches has {soname}"
    stem = soname.partition(".so.")[0]
    others = sorted(
        {
            f"{name} ({paths[0]})"
            for name, paths in cache.items()
            if name.startswith(f"{stem}.so.") and cuda_major(name) not in {None, major}
        }
    )
    text = f"{soname} is of CUDA {major}: the toolkit cuda-toolkit-{major}-x, or the wheels of CUDA"
    text += f" {major}, bring it"
    if others:
        text += (
            f"; the loader knows {', '.join(others)}, which cannot serve for it, and neither a "
            "link to it nor `ldconfig` of its folder makes it so"
        )
    there = [folder for folder in folders if (Path(folder) / soname).exists()]
    if there:
        text += f"; it lies in {there[0]}, which the cache does not have"
    return text


def read_cache() -> dict[str, list[str]]:
    """The loader's cache as it is now.

    Raises:
        LlmetalError: ldconfig cannot be asked.
    """
    return parse(ldconfig("-p"))


def read_preload(root: str = "/") -> str:
    """What every process loads first."""
    return read_text(Path(root) / "etc/ld.so.preload") or ""
