# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan`: what hosts, or hardware that is not there yet, would get, or why not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import show_plan
from llmetal.cli import common_options
from llmetal.progress import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, Failure
from llmetal.stages import add_extra_vars_option, add_inventory_option, usage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from llmetal.display import Display
    from llmetal.progress import Event, Progress

_ACTION = "llmetal.inference.plan"

_OF_INVENTORY = ("limit", "facts", "write", "upgrade", "extra_vars", "ansible")
_OF_HARDWARE = (
    "os",
    "driver",
    "cuda",
    "ram_gb",
    "disk_gb",
    "engine",
    "model",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
    "context",
    "concurrency",
    "engine_option",
)
_PLANNED = "planned"
"""What a host is called that there is not yet."""

_EPILOG = """\
examples:
  llmetal plan -i inventory/lab
  llmetal plan -i inventory/lab --facts facts --format json
  llmetal plan --gpus 8xa100_sxm4_80 --os ubuntu2204 --model Qwen/Qwen3-32B --context 32768

exit status: 0 all planned, 2 usage or inventory, 3 something is refused, 4 failed or unreachable

What follows `--` is handed to ansible-playbook as it is.
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add the command."""
    import argparse  # noqa: PLC0415 - its types alone are needed above

    parser = commands.add_parser(
        name,
        help=text,
        parents=[common_options()],
        description="Say what hosts would get, or why they are refused; change nothing on them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="for people, or for machines"
    )
    parser.add_argument("--explain", metavar="HOST", help="say why a host gets these versions")
    _add_inventory_options(parser.add_argument_group("hosts of an inventory"))
    _add_hardware_options(parser.add_argument_group("hardware that is not there yet"))
    parser.add_argument("ansible", nargs="*", metavar="-- ARGUMENT", help="for ansible-playbook")
    parser.set_defaults(handler=plan)


def _add_inventory_options(group: argparse._ArgumentGroup) -> None:
    add_inventory_option(group, required=False)
    group.add_argument("-l", "--limit", help="only these hosts (an Ansible pattern)")
    group.add_argument(
        "--facts",
        type=Path,
        metavar="DIR",
        help="plan from DIR/<host>.json, as `llmetal survey --save DIR` wrote it; contact no host",
    )
    group.add_argument(
        "--write",
        action="store_true",
        help="write the locks that are not there, beside the inventory",
    )
    group.add_argument(
        "--upgrade",
        action="store_true",
        help="plan anew, without regard to the locks; with --write, replace them",
    )
    add_extra_vars_option(group)


def _add_hardware_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--gpus", metavar="NxGPU", help="such as 8xa100_sxm4_80; several, with commas, are one host"
    )
    group.add_argument(
        "--list-gpus", action="store_true", help="print the names of GPUs and operating systems"
    )
    group.add_argument("--os", metavar="OS", help="such as ubuntu2204")
    group.add_argument("--driver", metavar="V", help="a driver branch or release: 580, 580.95.05")
    group.add_argument("--cuda", metavar="V", help="a CUDA toolkit: 13.0, 12.9.1")
    group.add_argument("--ram-gb", metavar="N", help="memory of the host")
    group.add_argument("--disk-gb", metavar="N", help="free disk of the host")
    group.add_argument("--engine", metavar="ENGINE[==V]", help="by default vllm, in its release")
    group.add_argument("--model", metavar="REPO|DIR", help="OWNER/NAME[@REVISION], or a folder")
    group.add_argument("--tensor-parallel", metavar="N", help="GPUs that share each layer")
    group.add_argument("--pipeline-parallel", metavar="N", help="groups that have some layers each")
    group.add_argument("--data-parallel", metavar="N", help="copies of the model")
    group.add_argument("--expert-parallel", action="store_true", help="spread the experts")
    group.add_argument("--context", metavar="N", help="longest prompt and answer, in tokens")
    group.add_argument("--concurrency", metavar="N", help="how many of these must fit at once")
    group.add_argument(
        "--engine-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the engine itself; may be given more than once",
    )


def plan(arguments: argparse.Namespace) -> int:
    """Plan what the arguments name; the exit status."""
    arguments.json = arguments.json or arguments.format == "json"
    try:
        _check(arguments)
        if arguments.list_gpus:
            return _list(arguments)
        if arguments.gpus is not None:
            return _plan_hardware(arguments)
        if arguments.facts is not None:
            return _plan_recorded(arguments)
        return _plan_inventory(arguments)
    except MisusedError as error:
        return usage(error, arguments)


class MisusedError(LlmetalError):
    """An argument that is wrong, or the inventory; the exit status is that of wrong usage."""


def misused(error: LlmetalError) -> MisusedError:
    """An error that lies in what the person gave us."""
    return MisusedError(what=error.what, where=error.where, why=error.why, fix=error.fix)


def _check(arguments: argparse.Namespace) -> None:
    """See that the options belong together."""
    chosen = {
        "-i": bool(arguments.inventory),
        "--gpus": arguments.gpus is not None,
        "--list-gpus": arguments.list_gpus,
    }
    named = [name for name, given in chosen.items() if given]
    _check_words(arguments, named)
    if len(named) != 1:
        found = f"{' and '.join(named)} exclude each other" if named else "nothing to plan is named"
        raise MisusedError(
            what=found, fix="give one of -i INVENTORY, --gpus NxGPU --os OS, or --list-gpus"
        )
    foreign = _OF_HARDWARE if arguments.inventory else (*_OF_INVENTORY, *_only_with_gpus(arguments))
    for name in foreign:
        if getattr(arguments, name) not in (None, False, []):
            option = {"ansible": "--", "extra_vars": "-e"}.get(name, f"--{name.replace('_', '-')}")
            raise MisusedError(
                what=f"{option} does not go with {named[0]}",
                where=option,
                fix="leave it out"
                if arguments.list_gpus
                else _INSTEAD.get(name, "set it in the inventory")
                if arguments.inventory
                else "it is for an inventory: -i",
            )
    for name in ("limit", "explain"):
        if getattr(arguments, name) == "":
            raise MisusedError(
                what=f"--{name} is empty", where=f"--{name}", fix="name a host, or leave it out"
            )
    if arguments.facts is not None and arguments.write:
        raise MisusedError(
            what="--write does not go with --facts",
            why="from recorded facts nothing is resolved: such a lock could not be installed",
            fix="leave one of the two out",
        )


def _check_words(arguments: argparse.Namespace, named: Sequence[str]) -> None:
    """See that there is no word without an option; with an inventory, its own check is done."""
    words = arguments.ansible
    if not words or words[0].startswith("-") or named == ["-i"]:
        return
    raise MisusedError(
        what=f"a word that belongs to no option: {words[0]}",
        where=" ".join(words),
        fix="leave it out; what has blanks in it needs quotes"
        if named
        else f"did you mean -i {words[0]} or --gpus {words[0]}?",
    )


_INSTEAD = {"os": "the survey finds it out: leave it out"}


def _only_with_gpus(arguments: argparse.Namespace) -> tuple[str, ...]:
    return (*_OF_HARDWARE, "explain") if arguments.list_gpus else ()


def _list(arguments: argparse.Namespace) -> int:
    from llmetal import hardware  # noqa: PLC0415 - reads the data

    show_plan.print_known(hardware.known(), as_json=arguments.json)
    return EXIT_DONE


def _plan_hardware(arguments: argparse.Namespace) -> int:
    from llmetal import hardware  # noqa: PLC0415 - imports the planner

    try:
        question = hardware.read(arguments)
    except LlmetalError as error:
        raise misused(error) from error
    _explained(arguments, [_PLANNED])
    done = hardware.plan(question)
    answer = show_plan.make(as_json=arguments.json, explain=arguments.explain)
    answer.take(answer.digest(done.host, done.as_dict()))
    code = EXIT_DONE if done.lock is not None else EXIT_REFUSED
    answer.end(code, [])
    return code


def _plan_recorded(arguments: argparse.Namespace) -> int:
    from llmetal import recorded  # noqa: PLC0415 - imports Ansible

    try:
        fleet = recorded.load(arguments)
    except LlmetalError as error:
        raise misused(error) from error
    if fleet.problems:
        return _problems(fleet.problems, arguments)
    _explained(arguments, fleet.hosts)
    answer = show_plan.make(as_json=arguments.json, explain=arguments.explain)
    failures: list[dict[str, Any]] = []
    refused = False
    for done in recorded.plan_all(fleet, answer.digest):
        if done.failure is not None:
            failures.append(done.failure)
            continue
        refused = refused or done.refused
        answer.take(done.digest)
    code = EXIT_REFUSED if refused else EXIT_FAILED if failures else EXIT_DONE
    answer.end(code, failures)
    return code


def _plan_inventory(arguments: argparse.Namespace) -> int:
    from llmetal import stages  # noqa: PLC0415 - with the rest, not needed for help

    try:
        request = stages.make_request(arguments)
    except LlmetalError as error:
        raise misused(error) from error
    from llmetal.display import make  # noqa: PLC0415 - not for planned hardware

    quiet = stages.Silent()
    display = (
        quiet if arguments.json else _Planning(make(as_json=False, verbosity=arguments.verbose))
    )
    done = stages.run(request, display, stages.title(arguments), brief=True)
    plans = dict(plans_of(done.state))
    # A refused host is no failure here: its refusals stand in its plan.
    failures = [one.as_json() for one in done.state.failures if not (plans and _is_refusal(one))]
    if plans:
        _explained(arguments, list(plans))
    elif not arguments.json:
        return done.exit_code
    answer = show_plan.make(as_json=arguments.json, explain=arguments.explain)
    for host, content in plans.items():
        answer.take(answer.digest(host, content))
    answer.end(done.exit_code, failures)
    if arguments.write:
        _say_unwritten(plans)
    return done.exit_code


def _say_unwritten(plans: Mapping[str, Mapping[str, Any]]) -> None:
    """Say why a lock that was asked for was not written."""
    if any(one["status"] != "ok" for one in plans.values()):
        sys.stderr.write("llmetal: no lock was written: a host is refused\n")
        return
    for host, one in plans.items():
        if not one["kept"] and one["lock"]["unresolved"]:
            sys.stderr.write(f"llmetal: {host}: no lock was written: not all of it is resolved\n")


def plans_of(state: Progress) -> Iterator[tuple[str, dict[str, Any]]]:
    """The plan of each host of a run (the action plans all hosts in one task)."""
    found: dict[str, dict[str, Any]] = {}
    for result in state.results.get(_ACTION, {}).values():
        taken = result.get("hosts") or {}
        for host, planned in (result.get("plans") or {}).items():
            content = dict(planned)
            if _got(taken, host, "lock_written"):
                content["written"] = _got(taken, host, "lock_file")
            found[host] = content
    yield from sorted(found.items())


def _got(taken: Mapping[str, Any], host: str, key: str) -> Any:  # noqa: ANN401 - any JSON value
    return (taken.get(host) or {}).get(key)


def _explained(arguments: argparse.Namespace, hosts: Sequence[str]) -> None:
    """See that the host to explain is one that is planned."""
    if arguments.explain is None or arguments.explain in hosts:
        return
    raise MisusedError(
        what=f"no host {arguments.explain} is planned",
        where="--explain",
        fix=f"name one of {', '.join(hosts) or 'the hosts of the inventory'}",
    )


def _problems(problems: Sequence[Any], arguments: argparse.Namespace) -> int:
    """Print what is wrong with an inventory, as `llmetal validate` does."""
    from ansible_collections.llmetal.inference.plugins.plugin_utils.validate import (  # noqa: PLC0415 - imports Ansible
        as_text,
    )

    if arguments.json:
        failures = [_of_problem(one.as_dict()) for one in problems]
        show_plan.JsonAnswer().end(EXIT_USAGE, failures)
    else:
        sys.stderr.write(as_text(problems) + "\n")
    return EXIT_USAGE


def _of_problem(row: Mapping[str, Any]) -> dict[str, Any]:
    where = f"{row['file']}:{row['line']}" if row["line"] else str(row["file"])
    why = "; ".join(
        f"{name} {row[key]}"
        for name, key in (("found", "found"), ("allowed is", "allowed"))
        if row[key]
    )
    what = f"{row['key']} {row['why']}".strip()
    return {"host": row["host"], "what": what, "where": where, "why": why, "fix": row["fix"]}


def _is_refusal(failure: Failure) -> bool:
    return failure.status == "refused"


class _Planning:
    """A display of a run whose refusals are printed with the plans, and not by it."""

    def __init__(self, inner: Display) -> None:
        self._inner = inner

    def begin(self, title: str) -> None:
        """Say what is going to run."""
        self._inner.begin(title)

    def show(self, event: Event, state: Progress) -> None:
        """Show an event, unless the plans say it."""
        if not (isinstance(event, Failure) and _is_refusal(event)):
            self._inner.show(event, state)

    def tick(self, state: Progress, elapsed: float) -> None:
        """Show that time passes."""
        self._inner.tick(state, elapsed)

    def end(self, state: Progress, result: Mapping[str, Any], *, brief: bool = False) -> None:
        """Show how it ended, where there are no plans that say so."""
        if state.results.get(_ACTION):
            self.close()
        else:
            self._inner.end(state, result, brief=brief)

    def close(self) -> None:
        """Give the terminal back."""
        self._inner.close()
