# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal validate`: an inventory checked without any host."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal.cli import common_options
from llmetal.progress import EXIT_DONE, EXIT_USAGE
from llmetal.stages import add_extra_vars_option, add_inventory_option, inventories, usage
from llmetal.variables import check_extra_vars, check_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible.parsing.dataloader import DataLoader


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
    add_extra_vars_option(parser)
    parser.add_argument(
        "ansible",
        nargs="*",
        metavar="-- ARGUMENT",
        help="the vault options of ansible-playbook, such as --vault-password-file",
    )
    parser.set_defaults(handler=validate)


def validate(arguments: argparse.Namespace) -> int:
    """Check an inventory; the exit status."""
    try:
        paths = inventories(arguments)
        check_words(arguments.ansible)
        check_extra_vars(arguments.extra_vars)
        vault = vault_options(arguments.ansible)
        loader = make_loader(vault)
        extra = load_variables(loader, arguments.extra_vars)
    except LlmetalError as error:
        return usage(error, arguments)
    from ansible_collections.llmetal.inference.plugins.plugin_utils.validate import (  # noqa: PLC0415 - imports Ansible
        as_text,
        validate_inventory,
    )

    problems = validate_inventory([str(path) for path in paths], extra, loader)
    if arguments.json:
        document = {"problems": [problem.as_dict() for problem in problems]}
        sys.stdout.write(json.dumps(document) + "\n")
    elif problems:
        sys.stderr.write(as_text(problems) + "\n")
    else:
        names = " ".join(str(path) for path in arguments.inventory)
        sys.stdout.write(f"{names}: no problem; no host was connected to\n")
    return EXIT_USAGE if problems else EXIT_DONE


def vault_options(words: Sequence[str]) -> argparse.Namespace:
    """The vault options among the words behind `--`; others say nothing about an inventory.

    Raises:
        LlmetalError: one of them lacks its value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(
        "--vault-password-file", "--vault-pass-file", action="append", default=[], dest="files"
    )
    parser.add_argument("--vault-id", action="append", default=[], dest="ids")
    parser.add_argument(
        "-J", "--ask-vault-password", "--ask-vault-pass", action="store_true", dest="ask"
    )
    try:
        return parser.parse_known_args(words)[0]
    except argparse.ArgumentError as error:
        raise LlmetalError(what="the options behind -- cannot be read", why=str(error)) from error


def make_loader(vault: argparse.Namespace) -> DataLoader:
    """Ansible's reader of files, with the vault's passwords.

    Raises:
        LlmetalError: a password cannot be read.
    """
    from ansible import constants  # noqa: PLC0415 - slow to import
    from ansible.cli import CLI  # noqa: PLC0415 - likewise
    from ansible.errors import AnsibleError  # noqa: PLC0415 - likewise
    from ansible.parsing.dataloader import DataLoader  # noqa: PLC0415 - likewise
    from ansible.plugins.loader import init_plugin_loader  # noqa: PLC0415 - likewise
    from ansible.utils.collection_loader import (  # noqa: PLC0415 - likewise
        AnsibleCollectionConfig,
    )

    if AnsibleCollectionConfig.collection_finder is None:  # without it, no `ansible.builtin.env`
        for name in ("", ".llmetal", ".llmetal.inference"):  # Ansible is to load them its own way
            sys.modules.pop(f"ansible_collections{name}", None)
        init_plugin_loader()
        importlib.import_module("ansible_collections.llmetal.inference")
    loader = DataLoader()
    try:
        loader.set_vault_secrets(
            CLI.setup_vault_secrets(
                loader,
                vault_ids=[*constants.DEFAULT_VAULT_IDENTITY_LIST, *vault.ids],
                vault_password_files=list(vault.files),
                ask_vault_pass=vault.ask,
                auto_prompt=False,
            )
        )
    except AnsibleError as error:
        raise LlmetalError(what="the vault's password cannot be read", why=str(error)) from error
    return loader


def load_variables(loader: DataLoader, items: Sequence[str]) -> Mapping[str, Any]:
    """The variables of the command line, as Ansible reads them.

    Raises:
        LlmetalError: it cannot.
    """
    from ansible import context  # noqa: PLC0415 - slow to import
    from ansible.errors import AnsibleError  # noqa: PLC0415 - likewise
    from ansible.module_utils.common.collections import ImmutableDict  # noqa: PLC0415 - likewise
    from ansible.utils.vars import load_extra_vars  # noqa: PLC0415 - likewise
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import (  # noqa: PLC0415 - likewise
        plain,
    )

    context.CLIARGS = ImmutableDict({**context.CLIARGS, "extra_vars": tuple(items)})
    load_extra_vars.extra_vars = None  # it keeps those of an earlier call
    try:
        return dict(plain(load_extra_vars(loader)))
    except AnsibleError as error:
        raise LlmetalError(
            what="the variables cannot be read", where="-e", why=str(error)
        ) from error
