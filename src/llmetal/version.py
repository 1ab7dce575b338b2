# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal version`: what to say in a bug report."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from typing import TYPE_CHECKING

from llmetal import __version__, paths

if TYPE_CHECKING:
    import argparse

_PACKAGES = ("ansible-core", "ansible-runner")


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add the command."""
    from llmetal.cli import common_options  # noqa: PLC0415 - cli imports this module

    parser = commands.add_parser(name, help=text, parents=[common_options()])
    parser.set_defaults(handler=version)


def versions() -> dict[str, str]:
    """The versions of this program and of what it stands on."""
    found = {"llmetal": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        found[package] = importlib.metadata.version(package)
    return {**found, "checkout": str(paths.ROOT), "cache": str(paths.cache())}


def version(arguments: argparse.Namespace) -> int:
    """Print the versions."""
    found = versions()
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.writelines(f"{name:<15} {text}\n" for name, text in found.items())
    return 0
