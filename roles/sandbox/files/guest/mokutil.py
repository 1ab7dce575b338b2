#!/usr/bin/python3 -I
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands for mokutil where the fault secure_boot is on; else the real one answers, if there is one.

A certificate that was imported waits; `mokutil.py at-console` is the step that a person does on the
console at the next boot.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

HARDWARE = Path("/usr/lib/sandbox-hardware")
NEW = HARDWARE / "mok/new"
ENROLLED = HARDWARE / "mok/enrolled"


def fingerprint(path: Path) -> str:
    """The SHA-1 of a certificate."""
    return hashlib.sha1(path.read_bytes()).hexdigest()  # noqa: S324 - what mokutil shows


def listing(folder: Path) -> str:
    """The certificates of a list, as mokutil prints the beginning of each."""
    lines = []
    for number, path in enumerate(sorted(folder.glob("*")), start=1):
        mark = path.name
        pairs = ":".join(mark[i : i + 2] for i in range(0, len(mark), 2))
        lines.append(f"[key {number}]\nSHA1 Fingerprint: {pairs}\n")
    return "\n".join(lines) or "MokListRT is empty\n"


def main() -> int:
    """Answer the few questions that matter."""
    words = sys.argv[1:]
    for folder in (NEW, ENROLLED):
        folder.mkdir(parents=True, exist_ok=True)
    if words == ["at-console"]:
        for path in NEW.glob("*"):
            path.replace(ENROLLED / path.name)
        return 0
    if not (HARDWARE / "faults/secure_boot").exists():
        return without_efi(words)
    text, status = answer(words)
    sys.stdout.write(text)
    return status


def without_efi(words: list[str]) -> int:
    """What the real one says, or what it would say."""
    real = Path("/usr/bin/mokutil")
    if real.exists():
        os.execv(real, [str(real), *words])  # noqa: S606 - that is the point
    sys.stderr.write("EFI variables are not supported on this system\n")
    return 1


def answer(words: list[str]) -> tuple[str, int]:
    """With Secure Boot."""
    action = words[0] if words else ""
    answers = {
        "--sb-state": "SecureBoot enabled\n",
        "--list-enrolled": listing(ENROLLED),
        "-l": listing(ENROLLED),
        "--list-new": listing(NEW),
        "-N": listing(NEW),
    }
    if action in answers:
        return answers[action], 0
    paths = [Path(word) for word in words[1:] if Path(word).is_file()]
    if action in {"--test-key", "-t"} and paths:
        return test_key(paths[0])
    if action in {"--import", "-i"} and paths:
        shutil.copyfile(paths[0], NEW / fingerprint(paths[0]))
        return "", 0
    return "Usage: mokutil OPTIONS [ARGS...] (simulated)\n", 1


def test_key(path: Path) -> tuple[str, int]:
    """Whether a certificate is on one of the lists."""
    mark = fingerprint(path)
    if (ENROLLED / mark).exists():
        return f"{path} is already enrolled\n", 1
    if (NEW / mark).exists():
        return f"{path} is already in the enrollment request\n", 1
    return f"{path} is not enrolled\n", 0


if __name__ == "__main__":
    sys.exit(main())
