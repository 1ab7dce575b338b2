# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal test`: lint, types, unit tests, and tests on sandbox hosts; what `.ci/run` calls."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import bootstrap, paths, system
from llmetal.cli import EXIT_FAILED, common_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

GROUPS = ("lint", "types", "unit", "molecule", "faults")
READING = frozenset({"lint", "types", "unit"})
"""They run side by side."""

ON_HOSTS = frozenset({"molecule", "faults"})
"""They need sandbox hosts. Each has its own and mostly waits for them, so two run at a time."""

_LANES = 2

BY_HAND = frozenset({"test_driver_faults.py"})
"""Fault tests that are run by a command of their own (docs/testing.md)."""

_STILL = 60.0
"""A line says that a step still runs after each so many seconds."""

_GRACE = 60.0
"""Seconds that a step has to clean up after an interrupt."""


@dataclass(frozen=True)
class Step:
    """Something to run; it counts as one test, or as many as its JUnit file names."""

    group: str
    name: str
    argv: tuple[str, ...]
    timeout: float = 600.0
    junit: Path | None = None
    clean_up: tuple[str, ...] = ()
    """What to run when it was killed."""

    @property
    def id(self) -> str:
        """How `--only` names it."""
        return f"{self.group}/{self.name}"

    @property
    def log(self) -> Path:
        """Where its output is kept."""
        return paths.LOGS / f"{self.group}-{self.name}.log"


@dataclass
class Result:
    """How a step ended."""

    step: Step
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing in it failed."""
        return not self.failed


@dataclass
class Tally:
    """All results, and the steps that were left out with the reason."""

    results: list[Result] = field(default_factory=list)
    left_out: dict[str, list[Step]] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """How many tests passed."""
        return sum(result.passed for result in self.results)

    @property
    def failed(self) -> int:
        """How many tests failed."""
        return sum(result.failed for result in self.results)


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add the command."""
    parser = commands.add_parser(
        name,
        help=text,
        parents=[common_options()],
        description="Run lint, types, unit tests, and (as root) the tests on sandbox hosts.",
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help=f"some of {', '.join(GROUPS)}, or single steps as --list names them; with commas",
    )
    parser.add_argument("--list", action="store_true", help="list the steps and run none")
    parser.set_defaults(handler=test)


def steps() -> list[Step]:
    """Every step there is, in the order in which they run."""
    playbooks = sorted(
        str(p.relative_to(paths.ROOT)) for p in (paths.ROOT / "playbooks").glob("*.yml")
    )
    reading = [
        Step("lint", "ruff", ("ruff", "check")),
        Step("lint", "format", ("ruff", "format", "--check")),
        Step("lint", "yamllint", ("yamllint", "--strict", ".")),
        Step("lint", "ansible-lint", ("ansible-lint",), timeout=900),
        Step(
            "lint",
            "syntax",
            ("ansible-playbook", "--syntax-check", "-i", "localhost,", "site.yml", *playbooks),
        ),
        Step("lint", "changelog", ("antsibull-changelog", "lint")),
        Step("types", "mypy", ("mypy",)),
        Step("types", "mypy-others", ("mypy", "tests", "tools", *scripts())),
        pytest("unit", "pytest", timeout=900),
    ]
    hosts = [
        Step(
            "molecule",
            scenario,
            ("molecule", "test", "--scenario-name", scenario),
            timeout=1200,
            clean_up=("molecule", "destroy", "--scenario-name", scenario),
        )
        for scenario in scenarios()
    ]
    faults = [
        pytest("faults", file.stem.removeprefix("test_"), f"tests/faults/{file.name}", timeout=1800)
        for file in sorted((paths.ROOT / "tests/faults").glob("test_*.py"))
        if file.name not in BY_HAND
    ]
    # The longest first, so that none of them runs alone at the end.
    return [*reading, *faults, *hosts]


def pytest(group: str, name: str, *where: str, timeout: float) -> Step:
    """A step that runs pytest, by default on what its configuration names."""
    junit = paths.LOGS / f"{group}-{name}.xml"
    return Step(group, name, ("pytest", "-q", f"--junitxml={junit}", *where), timeout, junit)


def scripts() -> list[str]:
    """The Python files that are neither in the package nor in the collection's plugins."""
    found = [*paths.ROOT.glob("roles/*/files/**/*.py"), *paths.ROOT.glob("molecule/**/*.py")]
    return sorted(str(path.relative_to(paths.ROOT)) for path in found)


def scenarios() -> list[str]:
    """The molecule scenarios of the checkout."""
    return sorted(path.parent.name for path in (paths.ROOT / "molecule").glob("*/molecule.yml"))


def select(found: Sequence[Step], only: str | None) -> list[Step]:
    """The steps that `--only` asks for.

    Raises:
        LlmetalError: it names something that is neither a group nor a step.
    """
    if only is None:
        return list(found)
    names = {name.strip() for name in only.split(",") if name.strip()}
    known = {*GROUPS, *(step.id for step in found)}
    if unknown := sorted(names - known):
        raise LlmetalError(
            what=f"there are no such tests: {', '.join(unknown)}",
            where="--only",
            fix=f"name some of {', '.join(GROUPS)}, or steps that --list shows",
        )
    return [step for step in found if step.group in names or step.id in names]


def test(arguments: argparse.Namespace) -> int:
    """Run the steps; the exit status."""
    from llmetal.stages import usage  # noqa: PLC0415 - brings Ansible's events, not needed for help

    try:
        chosen = select(steps(), arguments.only)
    except LlmetalError as error:
        return usage(error, arguments)
    if arguments.list:
        for step in chosen:
            say(step.id)
        return 0
    try:
        bootstrap.set_up_dev(paths.ROOT)
    except bootstrap.BootstrapError as error:
        bootstrap.say(str(error))
        return EXIT_FAILED
    started = time.monotonic()
    tally = run_all(chosen)
    say(f"took {time.monotonic() - started:.0f} s")
    report(tally, as_json=arguments.json)
    return 1 if tally.failed else 0


def run_all(chosen: Sequence[Step]) -> Tally:
    """Run steps side by side: first those that only read, then those that need hosts."""
    paths.LOGS.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    obstacle = None
    if any(step.group in ON_HOSTS for step in chosen):
        obstacle = system.sandbox_obstacle()
    reading = [step for step in chosen if step.group in READING]
    on_hosts = [step for step in chosen if step.group in ON_HOSTS]
    if obstacle and on_hosts:
        tally.left_out[obstacle] = on_hosts
        on_hosts = []
    runner = Runner()
    for together, lanes in ((reading, os.cpu_count() or 1), (on_hosts, _LANES)):
        with runner.interruptible(), ThreadPoolExecutor(max_workers=lanes) as pool:
            for future in as_completed([pool.submit(runner.run, step) for step in together]):
                add(tally, future.result())
    return tally


class Runner:
    """Runs steps, each in a process group of its own, so that an end reaches all of it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._interrupted = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """On Ctrl-C or SIGTERM, end the steps that run, let them clean up, and go no further."""

        def stop(_number: int, _frame: object) -> None:
            self._interrupted = True
            for process in list(self._running):
                send(process, signal.SIGINT)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._interrupted:
            raise KeyboardInterrupt

    def run(self, step: Step) -> Result:
        """Run a step to its end, or to the end of its time."""
        started = time.monotonic()
        if self._interrupted:
            return Result(step, 0.0, failed=1, why="interrupted")
        if step.junit is not None:
            step.junit.unlink(missing_ok=True)
        with step.log.open("wb") as log:
            try:
                process = start(step.argv, log)
            except OSError as error:
                log.write(f"{error}\n".encode())
                return Result(step, 0.0, failed=1, why=f"it cannot be run: {error}")
            self._running.add(process)
            try:
                why = self._wait(step, process, started)
            finally:
                self._running.discard(process)
            if why and step.clean_up:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    start(step.clean_up, log).wait(timeout=300)
        seconds = time.monotonic() - started
        return judge(step, process.returncode, seconds, why)

    def _wait(self, step: Step, process: subprocess.Popen[bytes], started: float) -> str:
        """Wait for a step; why it was killed, or nothing."""
        told = 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                return "interrupted" if self._interrupted else ""
            elapsed = time.monotonic() - started
            if elapsed > step.timeout or self._interrupted:
                end(process)
                if self._interrupted:
                    return "interrupted"
                return f"it took longer than {step.timeout:.0f} s"
            if elapsed - told >= _STILL:
                told = elapsed
                say(f"  ...    {step.id} still running ({elapsed:.0f} s)")


def start(argv: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program of .venv at the top of the checkout, in a process group of its own."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "NO_COLOR": "1",
        "PY_COLORS": "0",
        "PATH": f"{paths.ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        list(argv),
        cwd=paths.ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all of a step."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a step: an interrupt, time to clean up, then by force."""
    send(process, signal.SIGINT)
    try:
        process.wait(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        send(process, signal.SIGKILL)
        process.wait()


def judge(step: Step, status: int, seconds: float, why: str) -> Result:
    """Count what a step shows."""
    result = Result(step, seconds, why=why)
    if step.junit is not None and step.junit.is_file():
        result.passed, result.failed, result.skipped = count_junit(step.junit)
        if (status or why) and not result.failed:
            result.failed = 1
    elif status or why:
        result.failed = 1
    else:
        result.passed = 1
    if result.failed and not why:
        result.why = f"exit status {status}"
    return result


def count_junit(path: Path) -> tuple[int, int, int]:
    """The numbers of passed, failed and skipped tests of a JUnit file."""
    suites = ET.parse(path).getroot().iter("testsuite")  # noqa: S314 - written by our own pytest
    passed = failed = skipped = 0
    for suite in suites:
        bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        left = int(suite.get("skipped", "0"))
        failed, skipped = failed + bad, skipped + left
        passed += int(suite.get("tests", "0")) - bad - left
    return passed, failed, skipped


def add(tally: Tally, result: Result) -> None:
    """Keep a result and print its line; of a failure, all that it printed."""
    tally.results.append(result)
    count = f", {result.passed} passed, {result.failed} failed" if result.step.junit else ""
    skipped = f", {result.skipped} skipped" if result.skipped else ""
    word = "ok" if result.ok else "FAILED"
    say(f"  {word:<6} {result.step.id} ({result.seconds:.1f} s{count}{skipped})")
    if not result.ok:
        say(f"--- {result.step.id}: {result.why}; {' '.join(result.step.argv)}")
        say(result.step.log.read_text(encoding="utf-8", errors="replace").rstrip())
        say(f"--- end of {result.step.id}")


def report(tally: Tally, *, as_json: bool) -> None:
    """Print what was left out and what failed; the last line is the count of all."""
    for reason, left in tally.left_out.items():
        say(f"left out, because {reason}: {', '.join(step.id for step in left)}")
    bad = [result for result in tally.results if not result.ok]
    for result in bad:
        say(f"failed: {result.step.id}, {result.why}; log: {result.step.log}")
    if as_json:
        say(json.dumps(list(as_rows(tally.results))))
    say(f"{tally.passed} passed, {tally.failed} failed")


def as_rows(results: Iterable[Result]) -> Iterator[dict[str, object]]:
    """The results for machines."""
    for result in results:
        row: dict[str, object] = {"step": result.step.id, "seconds": round(result.seconds, 1)}
        counts = {"passed": result.passed, "failed": result.failed, "skipped": result.skipped}
        yield {**row, **counts, "why": result.why, "log": str(result.step.log)}


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
