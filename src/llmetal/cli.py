# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: which commands there are, and the exit status of each.

A command's module is imported only when that command is asked for, so that a start stays cheap.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILED = 4
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_EPILOG = """\
exit status: 0 done, 2 usage or inventory, 3 refused, 4 failed or unreachable, 130 interrupted

examples:
  ./llmetal demo                              everything, on this machine
  ./llmetal plan -i inventory/lab             what each host would get; touches nothing
  ./llmetal site -i inventory/lab --check     what a run would change
  ./llmetal site -i inventory/lab             converge and prove
"""


_ERRORS = "llmetal.replace"
_PLAIN = str.maketrans(
    {"✓": "+", "✗": "x", "▶": ">", "…": ".", "─": "-", "━": "-", "•": "*", "·": "."}
)
"""What stands for our marks where standard output cannot have them."""


class _Parser(argparse.ArgumentParser):
    """A parser, of a command too, to which an empty path is none (`Path` has it for `.`)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(*arguments, **options)
        self.register("type", Path, _path)


def _path(text: str) -> Path:
    if not text:
        message = "the path is empty: name a folder or a file"
        raise argparse.ArgumentTypeError(message)
    return Path(text)


@dataclass(frozen=True)
class Command:
    """A command of the command line: its name, one line of help, and the module that has it."""

    name: str
    help: str
    module: str


COMMANDS = (
    Command("site", "converge a site and prove it (site.yml)", "llmetal.stages"),
    Command("validate", "check an inventory; contacts no host", "llmetal.validate"),
    Command("survey", "show what the hosts are", "llmetal.stages"),
    Command("plan", "show what hosts would get, or why not", "llmetal.plan"),
    Command("prove", "prove again what stands on the hosts", "llmetal.stages"),
    Command("demo", "the whole way on this machine, with a real model", "llmetal.demo"),
    Command("test", "lint, types, unit tests and scenarios", "llmetal.testing"),
    Command("sandbox", "hosts that boot on this machine", "llmetal.sandbox"),
    Command("version", "print the versions", "llmetal.version"),
)


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; the arguments of a command are known only where it is the chosen one."""
    parser = _Parser(
        prog="llmetal",
        description="From bare Ubuntu and Debian GPU hosts to proved LLM endpoints.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"llmetal {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        if command.name == chosen:
            importlib.import_module(command.module).add_parser(commands, command.name, command.help)
        else:
            commands.add_parser(command.name, help=command.help)
    return parser


def common_options() -> argparse.ArgumentParser:
    """The options that every command takes too, behind its name."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=argparse.SUPPRESS,
        help="say more; -vv: Ansible's -v",
    )
    parent.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines"
    )
    return parent


def chosen_command(argv: Sequence[str]) -> str | None:
    """The command that the arguments name: the first that is no option."""
    return next((word for word in argv if not word.startswith("-")), None)


def complain(error: LlmetalError) -> None:
    """Print an error so that a person sees what, where, why, and what to do."""
    lines = [f"llmetal: {error.what}"]
    for label, text in (("where", error.where), ("why", error.why), ("what to do", error.fix)):
        if text:
            indented = text.replace("\n", "\n    ")
            lines.append(f"  {label}: {indented}")
    sys.stderr.write("\n".join(lines) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the shell (>&-)
        return _cannot_write("it is closed")
    _write_what_can_be(sys.stdout)
    try:
        status = _handle(words)
    except LlmetalError as error:
        complain(error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("llmetal: interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_PIPE
    except OSError as error:
        if error.filename is not None or not _is_broken(sys.stdout):
            raise
        _drop_output()
        return _cannot_write(error.strerror or str(error))
    return status


def _handle(words: Sequence[str]) -> int:
    """Run a command and write all that it prints; its exit status."""
    try:
        arguments = make_parser(chosen_command(words)).parse_args(words)
        status: int = arguments.handler(arguments)
    except SystemExit:  # argparse, after help or a wrong option
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


def _write_what_can_be(stream: TextIO) -> None:
    """Let a stream of another encoding have something like it for what it cannot have."""
    codecs.register_error(_ERRORS, _replaced)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks: as many, and all of them ASCII."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(one if one.isascii() else "?" for one in found), error.end


def _is_broken(stream: TextIO) -> bool:
    """Whether a stream cannot be written: what is left in it, or nothing more, fails to go out."""
    try:
        stream.write("\n")
        stream.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Let the interpreter's own flush at exit find an open file: whoever read us is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cannot_write(why: str) -> int:
    """Say that standard output cannot be written, if that can be said; the exit status."""
    if sys.stderr is not None:
        sys.stderr.write(f"llmetal: standard output cannot be written: {why}\n")
    return EXIT_FAILED
