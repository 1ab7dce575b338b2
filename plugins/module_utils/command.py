# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run another program: a list of arguments, the C locale, never a shell, always a time limit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND = 127
"""The exit status that stands for a program which is not there, as in a shell."""


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
        done = subprocess.run(  # noqa: S603 - a list of arguments, no shell
            list(argv),
            check=False,
            capture_output=True,
            cwd=cwd,
            encoding="utf-8",
            env=environment,
            errors="replace",
            input=stdin if stdin is not None else "",
            timeout=timeout,
        )
    except FileNotFoundError:
        return CommandResult(tuple(argv), NOT_FOUND, "", f"{argv[0]}: not found")
    except PermissionError as error:
        return CommandResult(tuple(argv), NOT_FOUND - 1, "", str(error))
    except subprocess.TimeoutExpired as error:
        raise LlmetalError(
            what=f"`{' '.join(argv)}` did not end within {timeout:g} s",
            fix="see what it waits for (a lock, a disk, a mirror), then run again",
        ) from error
    return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)
