# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal validate`: an inventory checked without any host."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal.cli import common_options
from llmetal.progress import EXIT_DONE, EXIT_USAGE
from llmetal.stages import add_inventory_option, inventories, usage

if TYPE_CHECKING:
    import argparse


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add the command."""
    parser = commands.add_parser(
        name,
        help=text,
        parents=[common_options()],
        description="Check names, types and references of an inventory; contact no host.",
    )
    add_inventory_option(parser)
    parser.set_defaults(handler=validate)


def validate(arguments: argparse.Namespace) -> int:
    """Check an inventory; the exit status."""
    try:
        paths = inventories(arguments)
    except LlmetalError as error:
        return usage(error)
    from ansible_collections.llmetal.inference.plugins.plugin_utils.validate import (  # noqa: PLC0415 - imports Ansible
        as_text,
        validate_inventory,
    )

    problems = validate_inventory([str(path) for path in paths])
    if arguments.json:
        document = {"problems": [problem.as_dict() for problem in problems]}
        sys.stdout.write(json.dumps(document) + "\n")
    elif problems:
        sys.stderr.write(as_text(problems) + "\n")
    else:
        names = " ".join(str(path) for path in arguments.inventory)
        sys.stdout.write(f"{names}: no problem; no host was connected to\n")
    return EXIT_USAGE if problems else EXIT_DONE
