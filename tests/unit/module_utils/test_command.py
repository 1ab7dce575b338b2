# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that end, that are not there, that hang, and that not even a kill ends."""

from __future__ import annotations

import subprocess
import time

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.command import NOT_FOUND, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError


def test_what_a_program_says() -> None:
    """Both streams, the status, its input and the C locale."""
    done = run(["sh", "-c", "cat; echo $LC_ALL; echo no >&2; exit 3"], timeout=10, stdin="in ")
    assert (done.rc, done.stdout, done.stderr) == (3, "in C\n", "no\n")


def test_no_program() -> None:
    """A status as a shell's, and no exception."""
    assert run(["/nowhere/program"], timeout=1).rc == NOT_FOUND
    assert run(["/"], timeout=1).rc == NOT_FOUND - 1


def test_a_program_that_hangs_is_ended_though_a_child_keeps_its_streams() -> None:
    """The wait ends at its time, not at that of the child."""
    started = time.monotonic()
    with pytest.raises(LlmetalError, match=r"did not end within 0\.5 s"):
        run(["sh", "-c", "sleep 8 & wait"], timeout=0.5)
    assert time.monotonic() - started < 6


def test_a_program_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvidia-smi on a GPU that hangs in the driver: nobody waits for it for ever."""
    wait = subprocess.Popen.wait
    seen: list[subprocess.Popen[str]] = []

    def never(self: subprocess.Popen[str], timeout: float | None = None) -> int:
        seen.append(self)
        raise subprocess.TimeoutExpired(self.args, timeout or 0)

    monkeypatch.setattr(subprocess.Popen, "wait", never)
    with pytest.raises(LlmetalError, match=r"process \d+ cannot be killed: it waits for a device"):
        run(["sleep", "8"], timeout=0.2)
    monkeypatch.undo()
    assert wait(seen[0], timeout=5)
