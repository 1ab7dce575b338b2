# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fingerprints of recorded keys, as gpg says them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.openpgp import (
    dearmor,
    fingerprints,
    require_fingerprint,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "openpgp"
CASES = sorted(path.name for path in FIXTURES.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_fingerprints(name: str) -> None:
    """Armored or binary, the fingerprints are those of the recording."""
    key = (FIXTURES / name / "key.asc").read_text()
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    assert fingerprints(key) == expected
    assert fingerprints(key.replace("\n", "\r\n")) == expected
    assert fingerprints(dearmor(key)) == expected


def test_several_keys() -> None:
    """Every key of a file counts: a foreign one beside the right one is refused."""
    keys = [(FIXTURES / name / "key.asc").read_text() for name in CASES]
    (first,) = fingerprints(keys[0])
    assert fingerprints("".join(keys))[0] == first
    require_fingerprint(keys[0], first.lower(), where="x")
    with pytest.raises(LlmetalError, match="is not the expected one"):
        require_fingerprint("".join(keys), first, where="x")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "no public key block"),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----", "no public"),
        (
            "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nA*=\n-----END PGP PUBLIC KEY BLOCK-----",
            "damaged armor",
        ),
        (b"\x99\x01", "ends in the middle"),
        (b"\x99\xff\xff\x04", "ends in the middle"),
        (b"\xc6\x01\x03", "version 3"),
        (b"\xc6\xe0", "partial length"),
        (b"\xcd\x00\x00", "no OpenPGP packet"),
    ],
)
def test_damaged(key: str | bytes, why: str) -> None:
    """What is no key says why."""
    with pytest.raises(LlmetalError, match=why):
        fingerprints(key)


def test_newer_version() -> None:
    """A key of version 6 has a longer fingerprint."""
    body = b"\x06" + bytes(40)
    packet = b"\xc6" + bytes([len(body)]) + body
    text = base64.b64encode(packet).decode()
    armored = (
        f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{text}\n-----END PGP PUBLIC KEY BLOCK-----\n"
    )
    (found,) = fingerprints(armored)
    assert len(found) == 64
