# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that outlive a module run, and the end of only those."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import locks

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL = 0.05


def start_detached(argv: Sequence[str], *, pid_file: Path, log: Path, memory_mib: int = 0) -> None:
    """Start a program of ours in its own session and wait until it holds its pid file's lock.

    Where systemd runs the machine, the program gets a scope of its own, so that it neither
    counts to the session that started it nor ends with it.

    Raises:
        LlmetalError: it ended at once.
    """
    command = list(argv)
    if Path("/run/systemd/system").is_dir():
        scope = ["--scope", "--quiet", "--collect", "--slice=machine.slice"]
        if memory_mib:
            scope.append(f"--property=MemoryMax={memory_mib}M")
        command = ["systemd-run", *scope, "--property=Delegate=yes", *command]
    with log.open("ab") as stream:
        process = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd="/",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    deadline = time.monotonic() + 20
    while not locks.is_held(pid_file):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (read_text(log) or "").strip().splitlines()[-3:]
            raise LlmetalError(
                what=f"`{' '.join(command[:3])} ...` did not start",
                where=str(log),
                why=" | ".join(tail) or f"it ended with status {process.poll()}",
            )
        time.sleep(_POLL)


def is_alive(pid_file: Path) -> bool:
    """Whether the process of a pid file lives: it holds the lock on that file while it does."""
    return locks.is_held(pid_file)


def in_root(root: Path) -> list[int]:
    """The processes whose file system begins at a folder: those of a guest."""
    try:
        wanted = root.stat()
    except OSError:
        return []
    own = Path("/").stat()
    if (wanted.st_dev, wanted.st_ino) == (own.st_dev, own.st_ino):
        return []
    found = []
    for path in Path("/proc").glob("[0-9]*/root"):
        try:
            has = path.stat()
        except OSError:
            continue
        if (has.st_dev, has.st_ino) == (wanted.st_dev, wanted.st_ino):
            found.append(int(path.parent.name))
    return found


def kill_in_root(root: Path, *, timeout: float) -> None:
    """End what is left of a guest whose supervisor was killed.

    Raises:
        LlmetalError: it does not end.
    """
    deadline = time.monotonic() + timeout
    while pids := in_root(root):
        if time.monotonic() > deadline:
            raise LlmetalError(
                what="processes of a sandbox host do not end",
                where=str(root),
                why=", ".join(str(pid) for pid in pids[:5]),
                fix="see what they wait for (`cat /proc/PID/stack`), then run again",
            )
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)


def stop(pid_file: Path, *, timeout: float) -> bool:
    """End the process of a pid file; first by asking, at last by force.

    Returns:
        Whether there was one.
    """
    if not is_alive(pid_file):
        return False
    text = read_text(pid_file) or ""
    if not text.strip().isdigit():
        return False
    pid = int(text)
    for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, 10.0)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return True
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not is_alive(pid_file):
                return True
            time.sleep(_POLL)
    raise LlmetalError(
        what=f"process {pid} of the sandbox does not end",
        where=str(pid_file),
        fix="see what it waits for (`cat /proc/PID/stack`), then run again",
    )
