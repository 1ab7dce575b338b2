# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two smallest ELF files that other programs accept: a kernel module and a shared library."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_X86_64 = 62
_ET_REL, _ET_DYN = 1, 3
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<QQ")
_SYMBOL_SIZE = 24
_IDENT = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)


def kernel_module(info: Mapping[str, str]) -> bytes:
    """A relocatable file whose only content is what `modinfo` reads."""
    modinfo = b"".join(f"{key}={value}".encode() + b"\0" for key, value in info.items())
    names = b"\0.modinfo\0.symtab\0.strtab\0.shstrtab\0"
    symbols = bytes(_SYMBOL_SIZE)
    start = _HEADER.size
    at_symbols = start + len(modinfo)
    at_names = at_symbols + len(symbols)
    at_sections = at_names + len(names) + 1
    strings, symtab, alloc = 3, 2, 2

    def name(text: bytes) -> int:
        return names.index(b"\0" + text + b"\0") + 1

    sections = [
        bytes(_SECTION.size),
        _SECTION.pack(name(b".modinfo"), 1, alloc, 0, start, len(modinfo), 0, 0, 1, 0),
        _SECTION.pack(
            name(b".symtab"), symtab, 0, 0, at_symbols, len(symbols), 3, 1, 8, _SYMBOL_SIZE
        ),
        _SECTION.pack(name(b".strtab"), strings, 0, 0, at_names + len(names), 1, 0, 0, 1, 0),
        _SECTION.pack(name(b".shstrtab"), strings, 0, 0, at_names, len(names), 0, 0, 1, 0),
    ]
    header = _HEADER.pack(
        _IDENT,
        _ET_REL,
        _X86_64,
        1,
        0,
        0,
        at_sections,
        0,
        _HEADER.size,
        0,
        0,
        _SECTION.size,
        len(sections),
        len(sections) - 1,
    )
    return header + modinfo + symbols + names + b"\0" + b"".join(sections)


def shared_library(soname: str, *, loads: bool = False) -> bytes:
    """A shared library without a symbol: the loader and ldconfig take it for what it says it is.

    Args:
        soname: its name.
        loads: whether programs load it: the C library of 2.41 and newer refuses one that does not
            say that it needs no executable stack.
    """
    strings = b"\0" + soname.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    count = 3 if loads else 2
    start = _HEADER.size + count * _SEGMENT.size
    at_symbols = start + len(strings)
    at_hash = at_symbols + _SYMBOL_SIZE
    table = struct.pack("<IIII", 1, 1, 0, 0)
    at_dynamic = at_hash + len(table)
    dt_null, dt_hash, dt_strtab, dt_symtab, dt_strsz, dt_syment, dt_soname = 0, 4, 5, 6, 10, 11, 14
    dynamic = b"".join(
        _DYNAMIC.pack(tag, value)
        for tag, value in (
            (dt_soname, 1),
            (dt_hash, at_hash),
            (dt_strtab, start),
            (dt_symtab, at_symbols),
            (dt_strsz, len(strings)),
            (dt_syment, _SYMBOL_SIZE),
            (dt_null, 0),
        )
    )
    size = at_dynamic + len(dynamic)
    load, dynamic_segment, read_write = 1, 2, 6
    segments = _SEGMENT.pack(load, read_write, 0, 0, 0, size, size, 0x1000)
    segments += _SEGMENT.pack(
        dynamic_segment,
        read_write,
        at_dynamic,
        at_dynamic,
        at_dynamic,
        len(dynamic),
        len(dynamic),
        8,
    )
    header = _HEADER.pack(
        _IDENT,
        _ET_DYN,
        _X86_64,
        1,
        0,
        _HEADER.size,
        0,
        0,
        _HEADER.size,
        _SEGMENT.size,
        count,
        0,
        0,
        0,
    )
    if loads:
        stack = 0x6474E551
        segments += _SEGMENT.pack(stack, read_write, 0, 0, 0, 0, 0, 16)
    return header + segments + strings + bytes(_SYMBOL_SIZE) + table + dynamic
