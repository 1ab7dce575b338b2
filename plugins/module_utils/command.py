# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run another program: a list of arguments, the C locale, never a shell, always a time limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND = 127
"""The exit status that stands for a program which is not there, as in a shell."""
_GRACE = 5.0
"""Seconds that a killed program has to be gone."""


@dataclass(frozen=True)
class CommandResult:
    """What a program left behind."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether the program ended with status 0."""
        return self.rc == 0

    def tail(self, lines: int = 5) -> str:
        """The last lines of what it said (standard error first), for an error message."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-lines:])


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: str | None = None,
) -> CommandResult:
    """Run a program to its end.

    Args:
        argv: the program and its arguments.
        timeout: seconds after which it is killed and `LlmetalError` raised.
        env: variables added to this process's own.
        cwd: the folder to run in.
        stdin: text for its standard input; none by default.

    Returns:
        What it printed and its exit status; status 127 where there is no such program.

    Raises:
        LlmetalError: it did not end in time.
    """
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C", **(env or {})}
    try:
        process = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
            list(argv),
            cwd=cwd,
            encoding="utf-8",
            env=environment,
            errors="replace",
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    except FileNotFoundError:
        return CommandResult(tuple(argv), NOT_FOUND, "", f"{argv[0]}: not found")
    except OSError as error:
        why = f"{argv[0]} cannot be run: {error.strerror or error}"
        return CommandResult(tuple(argv), NOT_FOUND - 1, "", why)
    try:
        out, err = process.communicate(stdin if stdin is not None else "", timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise LlmetalError(
            what=f"`{' '.join(argv)}` did not end within {timeout:g} s",
            why=_kill(process),
            fix="see what it waits for (a lock, a disk, a mirror), then run again",
        ) from error
    except BaseException:
        _kill(process)
        raise
    return CommandResult(tuple(argv), process.returncode, out, err)


def _kill(process: subprocess.Popen[str]) -> str:
    """End a program; why it may still be there: one that waits in a driver cannot be killed."""
    process.kill()
    # Not waited for to its end, and its pipes are dropped: a child of it may keep them open.
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            if stream:
                stream.close()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return f"process {process.pid} cannot be killed: it waits for a device or a disk"

    return ""
