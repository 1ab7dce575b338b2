#!/usr/bin/python3 -I
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the locks of apt and dpkg, as another apt does, until it is ended."""

from __future__ import annotations

import fcntl
import signal
from pathlib import Path

LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock")


def main() -> None:
    """Take them and wait."""
    held = [Path(name).open("w", encoding="ascii") for name in LOCKS]  # noqa: SIM115 - held
    for lock in held:
        fcntl.lockf(lock, fcntl.LOCK_EX)
    signal.pause()


if __name__ == "__main__":
    main()
