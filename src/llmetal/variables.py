# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `-e` and the words behind `--` say, checked before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FORMS = "write -e name=value, -e '{\"name\": value}' or -e @file.yml"
_VAULT = b"$ANSIBLE_VAULT"


class _AnyTag(yaml.SafeLoader):
    """YAML whose own tags (`!vault`, `!unsafe`) are let pass: Ansible reads them."""


_AnyTag.add_multi_constructor("!", lambda *_arguments: None)


def check_extra_vars(items: Iterable[str]) -> None:
    """Look at the variables of the command line as Ansible will.

    Raises:
        LlmetalError: one of them cannot be read.
    """
    for item in items:
        if item.startswith("@"):
            _check_file(item)
        elif item.startswith(("{", "[")):
            _check_mapping("-e", item.encode())
        elif item:
            _check_pairs(item)


def check_words(words: Sequence[str]) -> None:
    """See that what is handed to ansible-playbook was put behind `--`: its options are.

    Raises:
        LlmetalError: the first is no option.
    """
    if words and not words[0].startswith("-"):
        raise LlmetalError(
            what=f"a word that belongs to no option: {words[0]}",
            why="what is meant for ansible-playbook are options, behind --",
            fix=f"did you mean -l {words[0]}?",
        )


def _check_file(item: str) -> None:
    path = Path(item[1:]).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LlmetalError(
            what="the file of variables cannot be read",
            where=f"-e {item}",
            why=f"{path.absolute()}: {error.strerror or error}",
            fix="name a file, from the folder that you are in",
        ) from error
    if not content.startswith(_VAULT):
        _check_mapping(f"-e {item}", content)


def _check_mapping(where: str, content: bytes) -> None:
    try:
        found = yaml.load(content, _AnyTag)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LlmetalError(
            what="the variables are no YAML or JSON", where=where, why=_why(error), fix=_FORMS
        ) from error
    if not isinstance(found, dict):
        raise LlmetalError(
            what="the variables are no mapping of names to values", where=where, fix=_FORMS
        )


def _why(error: Exception) -> str:
    """What is wrong with a text, and where in it, without the text: it may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return type(error).__name__
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _check_pairs(item: str) -> None:
    from ansible.errors import AnsibleError  # noqa: PLC0415 - slow to import
    from ansible.parsing.splitter import parse_kv  # noqa: PLC0415 - likewise

    if item[0] in "/.":
        raise LlmetalError(
            what="a file of variables is named with @ before it",
            where=f"-e {item}",
            fix=f"write -e @{item}",
        )
    try:
        bare = parse_kv(item).get("_raw_params")
    except AnsibleError as error:
        raise LlmetalError(
            what="the variables cannot be read",
            where="-e",
            why="a quote or a brace is not closed",
            fix=_FORMS,
        ) from error
    if bare:
        raise LlmetalError(what=f"a variable without a value: {bare}", where="-e", fix=_FORMS)
