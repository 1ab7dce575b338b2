# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files written whole or not at all, and what they hash to."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_CHUNK = 1 << 20


def sha256_file(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file's content, in hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - unbuffered read into one block
        block = memoryview(bytearray(_CHUNK))
        while size := stream.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


def read_text(path: str | os.PathLike[str]) -> str | None:
    """The text of a file, or None where there is none that can be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def write_atomic(path: str | os.PathLike[str], data: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Args:
        path: where; its folder must exist.
        data: the whole content.
        mode: the permission bits of the new file.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the old file is then whole.
    """
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)  # noqa: PTH101 - the temporary name is a string
        os.replace(name, target)  # noqa: PTH105 - likewise
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - likewise
        raise
