# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks: the only file that knows ansible-runner."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible_runner

from llmetal import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    RawEvent = Mapping[str, Any]

_TICK = 0.2
_GRACE = 20.0
"""Seconds that Ansible has to end by itself after an interrupt."""

_AGAIN = 3.0
"""Seconds after which it is interrupted again: it can lose one while it starts a task."""

_LISTING = frozenset({"--list-hosts", "--list-tags", "--list-tasks", "--syntax-check"})

_STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Request:
    """One Ansible run: the playbooks in their order, and what ansible-playbook is told."""

    playbooks: tuple[Path, ...]
    inventories: tuple[Path, ...]
    limit: str | None = None
    check: bool = False
    diff: bool = False
    extra_vars: tuple[str, ...] = ()
    verbosity: int = 0
    extra_args: tuple[str, ...] = ()
    report: bool = True
    """Whether the run's report is kept."""

    def arguments(self) -> list[str]:
        """The arguments of ansible-playbook, without inventories and playbooks."""
        argv: list[str] = []
        if self.limit is not None:
            argv += ["--limit", self.limit]
        if self.check:
            argv.append("--check")
        if self.diff:
            argv.append("--diff")
        for item in self.extra_vars:
            argv += ["--extra-vars", item]
        if self.verbosity > 1:
            argv.append("-" + "v" * (self.verbosity - 1))
        return [*argv, *self.extra_args]

    def only_lists(self) -> bool:
        """Whether Ansible is only to list or to parse, so that no task is to run."""
        return not _LISTING.isdisjoint(self.extra_args)

    def plays(self) -> list[dict[str, str]]:
        """A playbook that imports the asked ones, so that what one finds the next one knows."""
        return [{"ansible.builtin.import_playbook": str(path)} for path in self.playbooks]


@dataclass(frozen=True)
class Outcome:
    """How ansible-playbook ended."""

    rc: int
    signal: int | None = None
    """The signal that ended it, where a person or the system sent one."""


class _Stop:
    """Which signals came, and Ansible's process group to pass them on to."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.times = 0
        self.since = 0.0
        self.passed_on = 0.0
        self.pid: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal: the first asks Ansible to end, a later one kills it."""
        self.number = self.number or number
        self.times += 1
        if self.times == 1:
            self.since = time.monotonic()
            self.pass_on()

    def pass_on(self) -> None:
        """Interrupt Ansible as a terminal would."""
        self.passed_on = time.monotonic()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(self.pid), signal.SIGINT)

    def remind(self) -> None:
        """Interrupt Ansible again, where it has not ended for a while."""
        if self.times and time.monotonic() - self.passed_on > _AGAIN:
            self.pass_on()

    def end(self, worker: threading.Thread) -> None:
        """Wait for Ansible's thread; where it still runs, interrupt Ansible first."""
        if worker.is_alive() and not self.times:
            self.times, self.since = 1, time.monotonic()
            self.pass_on()
        while worker.is_alive():
            worker.join(_TICK)
            self.remind()

    def must_kill(self) -> bool:
        """Whether to wait no longer: asked twice, too slow, or not started yet."""
        if not self.times:
            return False
        late = time.monotonic() - self.since > _GRACE
        return self.pid is None or self.times > 1 or late


@contextlib.contextmanager
def _handling(stop: _Stop) -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in _STOPPED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    request: Request,
    on_event: Callable[[RawEvent], None],
    on_tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run playbooks and hand on each of Ansible's events as it comes, in this thread.

    A first Ctrl-C (or SIGTERM, or a closed terminal) interrupts Ansible and waits for it; a second
    kills it.

    Args:
        request: what to run.
        on_event: called with each event of ansible-runner; those of `no_log` tasks are censored.
        on_tick: called a few times a second, for a display that shows elapsed time.
    """
    events: queue.SimpleQueue[RawEvent] = queue.SimpleQueue()
    stop = _Stop()

    def take(event: RawEvent) -> bool:
        if stop.pid is None and "pid" in event:
            stop.pid = int(event["pid"])
        events.put(event)
        return False  # keep no copy in a file

    with tempfile.TemporaryDirectory(prefix="llmetal-run-", ignore_cleanup_errors=True) as folder:
        runner = ansible_runner.interface.init_runner(
            private_data_dir=folder,
            project_dir=str(Path.cwd()),  # where Ansible runs: its paths are those of the caller
            playbook=request.plays(),
            inventory=[str(path) for path in request.inventories],
            cmdline=shlex.join(request.arguments()),
            envvars={**_environment(request, folder), **_leash(Path(folder))},
            settings={"pexpect_timeout": 1, "suppress_output_file": True},
            fact_cache_type="memory",
            quiet=True,
            event_handler=take,
            cancel_callback=stop.must_kill,
        )
        worker = threading.Thread(target=runner.run, name="ansible", daemon=True)
        with _handling(stop):
            worker.start()
            try:
                while worker.is_alive() or not events.empty():
                    with contextlib.suppress(queue.Empty):
                        on_event(events.get(timeout=_TICK))
                    on_tick()
                    stop.remind()
            finally:  # where the display failed, Ansible ends before its folder goes
                stop.end(worker)
    rc = runner.rc if isinstance(runner.rc, int) else 250
    return Outcome(rc, stop.number)


def _leash(folder: Path) -> dict[str, str]:
    """A PATH whose ansible-playbook is interrupted when this process dies, even by SIGKILL."""
    if shutil.which("setpriv") is None:
        return {}
    script = folder / "bin" / "ansible-playbook"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\nPATH=${PATH#*:}\nexec setpriv --pdeathsig INT ansible-playbook "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    return {"PATH": f"{script.parent}:{os.environ['PATH']}"}


def _config() -> str:
    """The configuration, by its absolute path: relative paths in it are taken from its folder."""
    named = os.environ.get("ANSIBLE_CONFIG") or paths.ROOT / "ansible.cfg"
    return str(Path(named).expanduser().absolute())


def _environment(request: Request, folder: str) -> dict[str, str]:
    """What ansible-runner would set in its own way, and where our report goes."""
    return {
        "LLMETAL_REPORT_DIR": str(paths.reports()) if request.report else folder,
        "ANSIBLE_CONFIG": _config(),
        "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
        "ANSIBLE_FORCE_COLOR": "False",
        "ANSIBLE_NOCOLOR": "True",
    }
