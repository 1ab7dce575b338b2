# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fingerprints of public keys, without gpg: a minimal host has none."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARMOR = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)
_PUBLIC_KEY = 6
_V4, _V6 = 4, 6


def _bad(*, why: str) -> LlmetalError:
    return LlmetalError(
        what="the key of the package source cannot be read",
        why=why,
        fix="give the armored public key (-----BEGIN PGP PUBLIC KEY BLOCK-----)",
    )


def dearmor(key: str | bytes) -> bytes:
    """The packets of a key, armored or not; several blocks are joined.

    Raises:
        LlmetalError: the armor is damaged.
    """
    raw = key.encode() if isinstance(key, str) else key
    if raw[:1] and raw[0] & 0x80:
        return raw
    blocks = _ARMOR.findall(raw.decode("ascii", "replace").replace("\r\n", "\n"))
    if not blocks:
        raise _bad(why="there is no public key block in it")
    packets = b""
    for block in blocks:
        lines = block.split("\n")
        body = [line.strip() for line in lines if ":" not in line]
        text = "".join(line for line in body if line and not line.startswith("="))
        try:
            packets += base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise _bad(why=f"damaged armor: {error}") from error
    return packets


def _old_length(data: bytes, position: int, kind: int) -> tuple[int, int]:
    """Length and start of the body of a packet in the old format."""
    size = (1, 2, 4)[kind] if kind < 3 else 0  # noqa: PLR2004 - kind 3: up to the end
    if not size:
        return len(data) - position, position
    return int.from_bytes(data[position : position + size], "big"), position + size


def _new_length(data: bytes, position: int) -> tuple[int, int]:
    """Length and start of the body of a packet in the new format (keys are never partial)."""
    first = data[position]
    if first < 192:  # noqa: PLR2004 - RFC 9580, 4.2.1
        return first, position + 1
    if first < 224:  # noqa: PLR2004 - RFC 9580, 4.2.1
        return ((first - 192) << 8) + data[position + 1] + 192, position + 2
    if first == 255:  # noqa: PLR2004 - RFC 9580, 4.2.1
        return int.from_bytes(data[position + 1 : position + 5], "big"), position + 5
    raise _bad(why="a packet of partial length")


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        head = data[position]
        if not head & 0x80:
            raise _bad(why="this is no OpenPGP packet")
        try:
            if head & 0x40:
                tag = head & 0x3F
                length, start = _new_length(data, position + 1)
            else:
                tag = (head >> 2) & 0x0F
                length, start = _old_length(data, position + 1, head & 3)
        except IndexError as error:
            raise _bad(why="the key ends in the middle") from error
        if start + length > len(data):
            raise _bad(why="the key ends in the middle")
        yield tag, data[start : start + length]
        position = start + length


def _fingerprint(body: bytes) -> str:
    version = body[0] if body else 0
    if version == _V4:
        # The format fixes SHA-1 for keys of version 4; it identifies the key, it signs nothing.
        prefix = b"\x99" + len(body).to_bytes(2, "big")
        return hashlib.sha1(prefix + body).hexdigest().upper()  # noqa: S324 - the format's own
    if version == _V6:
        prefix = b"\x9b" + len(body).to_bytes(4, "big")
        return hashlib.sha256(prefix + body).hexdigest().upper()
    raise _bad(why=f"a key of version {version}")


def fingerprints(key: str | bytes) -> list[str]:
    """The fingerprints of the primary keys, in capitals without spaces.

    Raises:
        LlmetalError: there is no key in it.
    """
    found = [_fingerprint(body) for tag, body in _packets(dearmor(key)) if tag == _PUBLIC_KEY]
    if not found:
        raise _bad(why="there is no public key in it")
    return found


def require_fingerprint(key: str, expected: str, *, where: str) -> None:
    """Refuse a key file that holds another key than the expected one, or one more.

    Raises:
        LlmetalError: the file holds anything but that one key.
    """
    wanted = expected.replace(" ", "").upper()
    found = fingerprints(key)
    if set(found) != {wanted}:
        raise LlmetalError(
            what="the key of the package source is not the expected one",
            where=where,
            why=f"its fingerprint is {', '.join(found)}, expected {wanted}",
            fix="compare both with what the maker of the repository publishes; trust neither as is",
        )
