# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal sandbox`: hosts that boot on this machine, and ways to break them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import paths
from llmetal.cli import common_options
from llmetal.progress import EXIT_DONE

if TYPE_CHECKING:
    import argparse

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

_INVENTORY = paths.INVENTORY / "sandbox"
_FILES = paths.ROOT / "roles" / "sandbox" / "files"
_STATES = {"up": "started", "down": "absent", "reset": "reset"}
_COLUMNS = ("host", "os", "address", "scenario", "state", "faults")


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add the command and its verbs."""
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary in (
        ("up", "bring the hosts of an inventory up"),
        ("down", "take them down; with the last one, all that the sandbox made"),
        ("reset", "throw away what hosts hold and start them anew"),
    ):
        one = verbs.add_parser(verb, help=summary, parents=[common_options()])
        one.add_argument("hosts", nargs="+" if verb == "reset" else "*", metavar="HOST")
        one.add_argument(
            "-i",
            "--inventory",
            type=Path,
            default=_INVENTORY,
            metavar="PATH",
            help="whose hosts (default: inventory/sandbox)",
        )
        if verb == "down":
            one.add_argument(
                "--all", action="store_true", help="every sandbox host of this machine"
            )
        one.set_defaults(handler=change)
    one = verbs.add_parser("list", help="show the hosts", parents=[common_options()])
    one.set_defaults(handler=show)
    one = verbs.add_parser("ssh", help="log in, or run a command", parents=[common_options()])
    one.add_argument("host", metavar="HOST")
    one.add_argument("words", nargs="*", metavar="COMMAND", help="behind `--`; a shell by default")
    one.set_defaults(handler=login)
    one = verbs.add_parser(
        "break", help="switch a fault on, or off again", parents=[common_options()]
    )
    one.add_argument("host", nargs="?", metavar="HOST")
    one.add_argument("faults", nargs="*", metavar="FAULT", help="with --fix and none: all of them")
    one.add_argument("--fix", action="store_true", help="switch off instead of on")
    one.add_argument("--list", action="store_true", help="show what can be broken, and end")
    one.set_defaults(handler=break_host)
    for one in verbs.choices.values():
        one.add_argument("--state-dir", type=Path, help="where the sandbox keeps its hosts")


def change(arguments: argparse.Namespace) -> int:
    """Bring hosts up or down, or reset them; the exit status."""
    if arguments.verb == "down" and arguments.all:
        return _remove_all(arguments)
    from llmetal import stages  # noqa: PLC0415 - not needed for the other verbs
    from llmetal.display import make  # noqa: PLC0415 - likewise
    from llmetal.runner import Request  # noqa: PLC0415 - slow to import

    if not arguments.inventory.exists():
        return _usage(
            LlmetalError(what="there is no such inventory", where=str(arguments.inventory)),
            arguments,
        )
    variables = {"sandbox_state": _STATES[arguments.verb]}
    if arguments.state_dir:
        variables["sandbox_state_dir"] = str(arguments.state_dir.absolute())
    request = Request(
        playbooks=(paths.playbook("sandbox"),),
        inventories=(arguments.inventory.absolute(),),
        limit=",".join(arguments.hosts) or None,
        extra_vars=(json.dumps(variables),),
        verbosity=arguments.verbose,
        report=False,
    )
    display = make(as_json=arguments.json, verbosity=arguments.verbose)
    heading = f"llmetal sandbox {arguments.verb} -i {arguments.inventory}"
    return stages.run(request, display, heading).exit_code


def show(arguments: argparse.Namespace) -> int:
    """Print the hosts of this machine."""
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (  # noqa: PLC0415 - not needed for help
        hosts,
    )

    found = hosts.everyone(_settings(arguments))
    if arguments.json:
        sys.stdout.write(json.dumps({"hosts": found}) + "\n")
        return EXIT_DONE
    if not found:
        sys.stdout.write("no sandbox hosts; `llmetal sandbox up` makes those of an inventory\n")
        return EXIT_DONE
    rows = [
        [
            host["name"],
            host["os"],
            host["address"],
            host["scenario"] or "-",
            host["state"],
            ", ".join(host["faults"]) or "-",
        ]
        for host in found
    ]
    _print_table([list(_COLUMNS), *rows])
    return EXIT_DONE


def login(arguments: argparse.Namespace) -> int:
    """Log in over ssh; its exit status."""
    settings = _settings(arguments)
    try:
        _known(settings, arguments.host)
    except LlmetalError as error:
        return _usage(error, arguments)
    argv = ["ssh", "-F", str(settings.ssh / "ssh_config")]
    if not arguments.words and sys.stdin.isatty():
        argv.append("-t")
    argv += [arguments.host, "--", *arguments.words] if arguments.words else [arguments.host]
    sys.stdout.flush()
    return subprocess.run(argv, check=False).returncode


def break_host(arguments: argparse.Namespace) -> int:
    """Switch faults on or off; the exit status."""
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (  # noqa: PLC0415 - not needed for help
        hosts,
        scenario,
    )

    if arguments.list:
        faults = [scenario.load_fault(_FILES, name) for name in scenario.names(_FILES / "faults")]
        if arguments.json:
            sys.stdout.write(json.dumps({fault.name: fault.what for fault in faults}) + "\n")
        else:
            _print_table([[fault.name, fault.what] for fault in faults])
        return EXIT_DONE
    settings = _settings(arguments)
    if not arguments.host or not (arguments.faults or arguments.fix):
        return _usage(
            LlmetalError(
                what="name a host and a fault",
                fix="llmetal sandbox break HOST FAULT; `--list` shows the faults",
            ),
            arguments,
        )
    try:
        _known(settings, arguments.host)
        named = {name: scenario.load_fault(_FILES, name) for name in arguments.faults}
    except LlmetalError as error:
        return _usage(error, arguments)
    active = hosts.break_host(settings, arguments.host, sorted(named), fix=arguments.fix)
    if arguments.json:
        sys.stdout.write(json.dumps({"host": arguments.host, "faults": active}) + "\n")
        return EXIT_DONE
    sys.stdout.write(f"{arguments.host}: {', '.join(active) or 'nothing is broken'}\n")
    if not arguments.fix and any(fault.reboot for fault in named.values()):
        sys.stdout.write(f"it shows after a reboot: llmetal sandbox ssh {arguments.host} reboot\n")
    return EXIT_DONE


def _remove_all(arguments: argparse.Namespace) -> int:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (  # noqa: PLC0415 - not needed for help
        hosts,
    )

    settings = _settings(arguments)
    for host in hosts.everyone(settings):
        hosts.remove(settings, host["name"])
        if not arguments.json:
            sys.stdout.write(f"{host['name']}: gone\n")
    if arguments.json:
        sys.stdout.write(json.dumps({"hosts": hosts.everyone(settings)}) + "\n")
    return EXIT_DONE


def _settings(arguments: argparse.Namespace) -> Settings:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (  # noqa: PLC0415 - not needed for help
        Settings,
    )

    if arguments.state_dir:
        return Settings(files=_FILES, state=arguments.state_dir.absolute())
    return Settings(files=_FILES)


def _known(settings: Settings, name: str) -> None:
    """Refuse a name that is no host's."""
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (  # noqa: PLC0415 - not needed for help
        hosts,
    )

    names = [host["name"] for host in hosts.everyone(settings)]
    if name not in names:
        raise LlmetalError(
            what=f"there is no sandbox host {name}",
            fix=f"use one of {', '.join(names)}" if names else "`llmetal sandbox up` makes some",
        )


def _usage(error: LlmetalError, arguments: argparse.Namespace) -> int:
    from llmetal.stages import usage  # noqa: PLC0415 - not needed where all is well

    return usage(error, arguments)


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
