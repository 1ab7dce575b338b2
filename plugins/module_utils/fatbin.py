# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""For which GPU architectures a file has code: the fat binaries in its ELF sections.

nvcc puts device code into the sections `.nv_fatbin` (linked) and `__nv_relfatbin` (still to be
linked), as containers one behind the other. A container has a header of 16 bytes and entries; an
entry says its kind (PTX or machine code), its architecture, and in its flags whether it is for an
architecture's own features (`90a`) or a family's (`100f`). Layout and flags were read off objects
of nvcc 13.0 and 13.5 and libraries of CUDA 12.9, beside what `cuobjdump` says of them.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Buffer = bytes | mmap.mmap

_ELF = b"\x7fELF"
_ELF64_LITTLE = b"\x02\x01"
_CUDA_MACHINE = 190
_SECTIONS = frozenset({".nv_fatbin", "__nv_relfatbin"})
_MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI8xI")
"""Kind, version, size of the header, of the payload; architecture; flags."""
_PTX, _CODE = 1, 2
_OWN_FEATURES, _FAMILY = 0x100000, 0x200000
_NO_BITS = 8
_EXTENSIONS = ("*.so", "*.so.*", "*.cubin", "*.fatbin")
_VERSIONED_ABI = 8
_BEHIND = "a container of device code ends behind its section"
_NO_SIZE = "an entry of device code has no size"


@dataclass(frozen=True)
class Code:
    """The device code of a file."""

    cubin: tuple[str, ...] = ()
    """Architectures with machine code, as `80` and `90a`, in order."""
    ptx: tuple[str, ...] = ()
    """Those of its PTX, which the driver compiles for later GPUs."""

    @property
    def is_empty(self) -> bool:
        """Whether the file has no device code."""
        return not self.cubin and not self.ptx

    def as_dict(self) -> dict[str, list[str]]:
        """As a module returns it."""
        return {
            "cubin": [f"sm_{name}" for name in self.cubin],
            "ptx": [f"compute_{name}" for name in self.ptx],
        }

    def lacks(self, wanted: Iterable[str]) -> list[str]:
        """Those of the wanted architectures that the file has no machine code for."""
        return [name for name in wanted if name not in self.cubin]


def architecture(text: str) -> str:
    """`80` of `8.0`, `sm_80`, `compute_80` or `80`; `90a` of `9.0a`.

    Raises:
        LlmetalError: it is no architecture.
    """
    bare = text.strip().lower().removeprefix("sm_").removeprefix("compute_").replace(".", "")
    digits = bare[:-1] if bare[-1:] in {"a", "f"} else bare
    if not digits.isdigit() or len(digits) not in {2, 3}:
        raise LlmetalError(
            what=f"{text} is no GPU architecture",
            fix="write it as 8.9, 9.0a or sm_89",
        )
    return bare


def order(name: str) -> tuple[int, str]:
    """How architectures are put in order."""
    return int(name.rstrip("af")), name


def read(path: Path) -> Code | None:
    """The device code of a file; None where it is no ELF file and no fat binary.

    Raises:
        LlmetalError: it cannot be read, or is cut off.
    """
    try:
        with path.open("rb") as stream:
            if not stream.read(1):
                return None
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return read_bytes(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise LlmetalError(
            what="the file is cut off or damaged",
            where=str(path),
            why=str(error),
            fix="build or install it again",
        ) from error
    except (OSError, ValueError) as error:
        raise LlmetalError(
            what="the file cannot be read", where=str(path), why=str(error)
        ) from error


def read_bytes(data: Buffer) -> Code | None:
    """As `read`, of a file's content."""
    found: set[tuple[int, str]] = set()
    if data[:4] == _MAGIC_BYTES:
        found.update(_containers(data, 0, len(data)))
    elif data[:4] != _ELF or data[4:6] != _ELF64_LITTLE:
        return None
    elif struct.unpack_from("<H", data, 18)[0] == _CUDA_MACHINE:
        found.add((_CODE, _of_cubin(data)))
    else:
        for start, size in _sections(data):
            found.update(_containers(data, start, start + size))
    return Code(
        cubin=tuple(sorted((name for kind, name in found if kind == _CODE), key=order)),
        ptx=tuple(sorted((name for kind, name in found if kind == _PTX), key=order)),
    )


def _of_cubin(data: Buffer) -> str:
    """The architecture of machine code that is a file of its own.

    Its flags have it in the second byte, in files of an older ABI in the first.
    """
    flags = int(struct.unpack_from("<I", data, 48)[0])
    return str(flags >> 8 & 0xFF if data[8] >= _VERSIONED_ABI else flags & 0xFF)


def _sections(data: Buffer) -> Iterator[tuple[int, int]]:
    """Where the sections with device code lie: offset and size."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if not table:
        return
    rows = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
    at = rows[names][4]
    for name, kind, _flags, _address, offset, length in rows:
        end = data.find(b"\0", at + name)
        if data[at + name : end].decode() in _SECTIONS and kind != _NO_BITS:
            yield offset, length


def _containers(data: Buffer, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Kind and architecture of every entry between two offsets."""
    while (start := data.find(_MAGIC_BYTES, start, end)) >= 0:
        _magic, version, header, size = _HEADER.unpack_from(data, start)
        if version != 1 or header != _HEADER.size:
            start += len(_MAGIC_BYTES)
            continue
        at, stop = start + header, start + header + size
        if stop > end:
            raise struct.error(_BEHIND)
        while at < stop:
            kind, _version, length, payload, arch, flags = _ENTRY.unpack_from(data, at)
            if kind in {_PTX, _CODE}:
                suffix = "a" if flags & _OWN_FEATURES else "f" if flags & _FAMILY else ""
                yield kind, f"{arch}{suffix}"
            if not length:
                raise struct.error(_NO_SIZE)
            at += length + payload
        start = stop


def files_in(paths: Iterable[str]) -> Iterator[Path]:
    """The files that are named, and in folders the libraries and files of device code.

    Raises:
        LlmetalError: one is not there.
    """
    for name in paths:
        path = Path(name)
        if path.is_dir():
            found = {one for pattern in _EXTENSIONS for one in path.rglob(pattern)}
            yield from sorted(one for one in found if one.is_file() and not one.is_symlink())
        elif path.is_file():
            yield path
        else:
            raise LlmetalError(
                what="there is no such file or folder",
                where=name,
                fix="name a file of device code, or a folder with such files",
            )


def survey(paths: Iterable[str], expect: Iterable[str]) -> dict[str, Any]:
    """What a module returns of files: the code of each, and what is lacking where.

    Files in a folder without any device code are left out; a file that is named is not.

    Raises:
        LlmetalError: a path is not there, a file damaged, an architecture none.
    """
    wanted = [architecture(one) for one in expect]
    named = set(paths)
    rows, lacking = [], []
    for path in files_in(paths):
        code = read(path)
        if code is None or code.is_empty:
            if str(path) not in named:
                continue
            code = Code()
        rows.append({"path": str(path), **code.as_dict()})
        if missing := code.lacks(wanted):
            lacking.append({"path": str(path), "missing": [f"sm_{one}" for one in missing]})
    return {"files": rows, "lacking": lacking}
