# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal site`, `survey` and `prove`: the stages of site.yml, all or some.

`llmetal plan` (plan.py) runs its stages from here too.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import paths
from llmetal.cli import common_options
from llmetal.progress import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE, Progress
from llmetal.variables import check_extra_vars, check_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from llmetal.display import Display
    from llmetal.runner import Request

_STAGES = {
    "site": ("site",),
    "survey": ("validate", "survey"),
    "plan": ("validate", "survey", "resolve", "plan"),
    "prove": ("validate", "survey", "resolve", "plan", "prove", "report"),
}
"""The playbooks of a command, in their order."""


@dataclass(frozen=True)
class Run:
    """A run that is over."""

    exit_code: int
    state: Progress
    report: Path | None
    seconds: float


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add one of the commands."""
    parser = commands.add_parser(
        name,
        help=text,
        parents=[common_options()],
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="What follows `--` is handed to ansible-playbook as it is.",
    )
    add_inventory_option(parser)
    parser.add_argument("-l", "--limit", help="only these hosts (an Ansible pattern)")
    add_extra_vars_option(parser)
    if name == "site":
        parser.add_argument("-C", "--check", action="store_true", help="change nothing, say what")
        parser.add_argument("-D", "--diff", action="store_true", help="show what changes in files")
    if name == "survey":
        parser.add_argument(
            "--save",
            type=Path,
            metavar="DIR",
            help="write DIR/<host>.json, from which `llmetal plan --facts DIR` plans",
        )
    parser.add_argument("ansible", nargs="*", metavar="-- ARGUMENT", help="for ansible-playbook")
    parser.set_defaults(handler=site if name in {"site", "prove"} else look)


def add_inventory_option(parser: argparse._ActionsContainer, *, required: bool = True) -> None:
    """Add `-i`."""
    parser.add_argument(
        "-i",
        "--inventory",
        action="append",
        required=required,
        type=Path,
        metavar="PATH",
        help="the inventory, a folder or a file; may be given more than once",
    )


def add_extra_vars_option(parser: argparse._ActionsContainer) -> None:
    """Add `-e`."""
    parser.add_argument(
        "-e", "--extra-vars", action="append", default=[], help="variables, as for ansible-playbook"
    )


def inventories(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """The inventories as absolute paths.

    Raises:
        LlmetalError: there is none at a path.
    """
    for path in arguments.inventory:
        if not path.exists():
            raise LlmetalError(
                what="there is no such inventory",
                where=str(path),
                fix=f"name one of yours, or one of {', '.join(known_inventories())}",
            )
    return tuple(path.absolute() for path in arguments.inventory)


def known_inventories() -> list[str]:
    """The inventories of the checkout."""
    folders = paths.INVENTORY.iterdir() if paths.INVENTORY.is_dir() else ()
    return sorted(f"inventory/{folder.name}" for folder in folders if folder.is_dir())


def site(arguments: argparse.Namespace) -> int:
    """Run the playbooks of a command that changes or proves; its exit status."""
    try:
        request = make_request(arguments)
    except LlmetalError as error:
        return usage(error, arguments)
    from llmetal.display import make  # noqa: PLC0415 - not needed to print help

    display = make(as_json=arguments.json, verbosity=arguments.verbose)
    return run(request, display, title(arguments)).exit_code


def look(arguments: argparse.Namespace) -> int:
    """Run the playbooks of a command that only looks, and print what was found."""
    try:
        request = make_request(arguments)
    except LlmetalError as error:
        return usage(error, arguments)
    from llmetal import show  # noqa: PLC0415 - not needed to print help
    from llmetal.display import make  # noqa: PLC0415 - likewise

    if arguments.json:
        done = run(request, Silent(), title(arguments))
        document = show.document(done.state)
        sys.stdout.write(json.dumps({"exit_code": done.exit_code, **document}) + "\n")
    else:
        display = make(as_json=False, verbosity=arguments.verbose)
        done = run(request, display, title(arguments), brief=True)
        if done.exit_code == EXIT_DONE:
            show.print_found(done.state)
    if arguments.save is not None:
        show.save(arguments.save, show.facts_of(done.state))
    return done.exit_code


def usage(error: LlmetalError, arguments: argparse.Namespace) -> int:
    """Print an error that lies in the arguments; the exit status for it."""
    from llmetal.cli import complain  # noqa: PLC0415 - cli imports this module

    complain(error)
    if arguments.json:
        parts = {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
        document: dict[str, Any] = {"exit_code": EXIT_USAGE, "failures": [parts]}
        if arguments.command in {"site", "prove"}:  # its output is a line for each event
            document = {"event": "run_end", "elapsed": 0.0, **document}
        sys.stdout.write(json.dumps(document) + "\n")
    return EXIT_USAGE


def title(arguments: argparse.Namespace) -> str:
    """What a run is called in its first line."""
    where = " ".join(str(path) for path in arguments.inventory)
    check = " --check" if getattr(arguments, "check", False) else ""
    return f"llmetal {arguments.command}{check} -i {where}"


def make_request(arguments: argparse.Namespace) -> Request:
    """What to run for a command.

    Raises:
        LlmetalError: there is no such inventory, or another argument is wrong.
    """
    check_words(arguments.ansible)
    check_extra_vars(arguments.extra_vars)
    from llmetal.runner import Request  # noqa: PLC0415 - slow to import, not needed for help

    looks = arguments.command == "plan"
    extra: list[str] = []
    if looks:
        mode = "upgrade" if arguments.upgrade else "compare"
        extra = [json.dumps({"llmetal_plan_lock": mode})]
    return Request(
        playbooks=tuple(paths.playbook(name) for name in _STAGES[arguments.command]),
        inventories=inventories(arguments),
        limit=arguments.limit,
        check=getattr(arguments, "check", looks and not arguments.write),
        diff=getattr(arguments, "diff", False),
        extra_vars=(*extra, *arguments.extra_vars),
        verbosity=arguments.verbose,
        extra_args=tuple(arguments.ansible),
        report=arguments.command in {"site", "prove"},
    )


def run(request: Request, display: Display, heading: str, *, brief: bool = False) -> Run:
    """Run playbooks and show it.

    Args:
        request: what to run.
        display: where to show it.
        heading: the first line.
        brief: whether to leave out the tables of stages and hosts where it ends well.
    """
    from llmetal import runner  # noqa: PLC0415 - slow to import, not needed for help

    state = Progress(check=request.check)
    started, wall = time.monotonic(), time.time()

    def elapsed() -> float:
        return round(time.monotonic() - started, 3)

    def take(raw: Mapping[str, Any]) -> None:
        for event in state.take(raw, elapsed()):
            display.show(event, state)

    display.begin(heading)
    try:
        outcome = runner.run(request, take, lambda: display.tick(state, elapsed()))
        rc = None if outcome.rc == 0 and request.only_lists() else outcome.rc
        for event in state.end(elapsed(), interrupted=outcome.signal is not None, rc=rc):
            display.show(event, state)
        code = EXIT_DONE if rc is None else state.exit_code(rc, outcome.signal)
        report = newest_report(wall) if request.report and rc is not None else None
        result = {
            "elapsed": elapsed(),
            "exit_code": code,
            "check": request.check,
            "report": str(report) if report else None,
            "summary": summary(state, code, elapsed(), outcome.signal),
            "hosts": {host: vars(count) for host, count in sorted(state.hosts.items())},
            "stages": [vars(stage) for stage in state.stages],
            "changes": [change.as_json() for change in state.changes],
            "failures": [failure.as_json() for failure in state.failures],
            "proofs": [proof.as_json() for proof in state.proofs],
        }
        display.end(state, result, brief=brief)
    finally:
        display.close()
    return Run(code, state, report, elapsed())


def summary(state: Progress, code: int, seconds: float, number: int | None) -> str:
    """The last line of a run."""
    took = f"{seconds:.1f} s"
    if number is not None:
        name = signal.Signals(number).name
        return f"interrupted ({name}) after {took}; the next run goes on from here"
    if code == EXIT_DONE:
        changed = sum(count.changed for count in state.hosts.values())
        proved = sum(proof.ok for proof in state.proofs)
        parts = [count(len(state.hosts), "host"), count(changed, "change")]
        if state.check:
            parts[-1] += " to make, none made"
        elif state.proofs:
            parts.append(f"{proved} of {count(len(state.proofs), 'proof')}")
        return f"done in {took}: " + ", ".join(parts)
    if not state.stages:
        return f"the run could not begin; no host was contacted ({took})"
    if code == EXIT_USAGE:
        idle = not state.has_results and not state.explained
        cause = "no task ran on any host" if idle else "the inventory or the arguments are wrong"
        return f"{cause}; nothing was touched ({took})"
    if code == EXIT_REFUSED:
        return f"refused, before any change to any host ({took})"
    hosts = sorted({failure.host for failure in state.failures})
    return f"failed after {took}" + (f" on {', '.join(hosts)}" if hosts else "")


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def newest_report(since: float) -> Path | None:
    """The folder of the report that a run wrote, if it wrote one."""
    if not paths.reports().is_dir():
        return None
    fresh = [
        folder
        for folder in paths.reports().iterdir()
        if (folder / "report.json").is_file()
        and (folder / "report.json").stat().st_mtime >= since - 1
    ]
    return max(fresh, key=lambda folder: (folder / "report.json").stat().st_mtime, default=None)


class Silent:
    """A display that shows nothing: the result is printed whole, at the end."""

    def begin(self, title: str) -> None:
        """Show nothing."""

    def show(self, event: object, state: Progress) -> None:
        """Show nothing."""

    def tick(self, state: Progress, elapsed: float) -> None:
        """Show nothing."""

    def end(self, state: Progress, result: Mapping[str, Any], *, brief: bool = False) -> None:
        """Say on standard error why it failed; standard output carries JSON only."""
        del brief
        for failure in state.failures:
            text = ": ".join(x for x in (failure.host, failure.what, failure.why, failure.fix) if x)
            sys.stderr.write(f"llmetal: {text}\n")
        if result["exit_code"]:
            sys.stderr.write(f"llmetal: {result['summary']}\n")

    def close(self) -> None:
        """Nothing was taken."""
