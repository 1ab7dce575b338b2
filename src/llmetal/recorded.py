# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan --facts`: the hosts of an inventory planned from recorded facts, in this process.

No host is contacted and no playbook is run, so that a fleet is planned in seconds. What hosts have
in common is read once: most get their variables from their groups.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleError
from ansible.template import Templar
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    candidates,
    hub,
    planning,
    site,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.canonical import canonical
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    Compat,
    load_compat,
    load_yaml,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.inventory_variables import (
    Inventory,
    has_template,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain
from ansible_collections.llmetal.inference.plugins.plugin_utils.request import site_options
from ansible_collections.llmetal.inference.plugins.plugin_utils.validate import (
    Problem,
    open_inventory,
    validate_inventory,
)
from yaml import YAMLError

from llmetal.stages import inventories
from llmetal.validate import load_variables, make_loader, vault_options
from llmetal.variables import check_extra_vars, check_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_WORTH_A_JOB = 100
"""Hosts for which another process is worth its start."""
_MOST_JOBS = 2
"""Each has its own memory."""
_CHUNK = 20
"""Hosts that a process is given at once."""

MODELS = "models"
"""The folder beside the facts that has a folder for each model: its config.json at least."""
_SUFFIXES = (".json", ".yml", ".yaml")
_MAGIC = ("group_names", "inventory_dir")
"""Ansible's own variables that a plan needs."""


def load(arguments: argparse.Namespace) -> Fleet:
    """The hosts that the arguments name, with their variables.

    Raises:
        LlmetalError: an argument is wrong, or names nothing.
    """
    paths = [str(path) for path in inventories(arguments)]
    folder: Path = arguments.facts
    if not folder.is_dir():
        raise LlmetalError(
            what="there is no such folder",
            where=f"--facts {folder}",
            fix="write one with `llmetal survey -i INVENTORY --save DIR`",
        )
    check_words(arguments.ansible)
    check_extra_vars(arguments.extra_vars)
    loader = make_loader(vault_options(arguments.ansible))
    mode = "upgrade" if arguments.upgrade else "compare"
    words = [json.dumps({"llmetal_plan_lock": mode}), *arguments.extra_vars]
    extra = load_variables(loader, words)
    inventory = open_inventory(paths, extra, loader)
    problems = validate_inventory(paths, extra, loader, inventory)
    if problems:
        return Fleet(folder, problems=problems)
    if arguments.limit is not None:
        try:
            inventory.manager.subset(arguments.limit)
        except AnsibleError as error:
            raise _no_limit(arguments.limit, str(error)) from error
    hosts = [str(host.name) for host in inventory.manager.get_hosts()]
    if not hosts:
        raise _no_limit(str(arguments.limit), "no host of the inventory is meant")
    return Fleet(folder, hosts, Variables(inventory))


@dataclass
class Fleet:
    """The hosts of an inventory, and where their facts are."""

    folder: Path
    hosts: list[str] = field(default_factory=list)
    variables: Variables | None = None
    problems: list[Problem] = field(default_factory=list)
    """What is wrong with the inventory; then there are no hosts."""
    compat: Compat = field(default_factory=load_compat)
    requests: dict[str, HostRequest] = field(default_factory=dict)
    """What hosts with the same variables ask."""
    models: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """What is known of each model; None where nobody recorded it."""

    def plan(self, host: str) -> dict[str, Any]:
        """The plan of a host, as `--format json` prints it.

        Raises:
            LlmetalError: there are no facts of it, or its variables cannot be read.
        """
        if self.variables is None:  # pragma: no cover - then there are no hosts
            raise KeyError(host)
        facts = read_facts(self.folder, host)
        variables = self.variables.of(host)
        key = canonical(variables)
        request = self.requests.get(key)
        if request is None:
            try:
                request = site.host_request(host, variables)
            except LlmetalError:  # it becomes a refusal, with all that belongs to one
                return planning.plan_variables(host, variables, facts, None, self.compat).as_dict()
            self.requests[key] = request
        mine = request if request.name == host else replace(request, name=host)
        known = {model.name: self._model(model.name) for model in mine.used_models}
        answers = {"models": {name: row for name, row in known.items() if row is not None}}
        done = planning.plan_request(mine, variables, facts, answers, self.compat).as_dict()
        # Nobody was asked what exists now, so that nothing is known of what would change.
        return {**done, "changes": []}

    def _model(self, name: str) -> dict[str, Any] | None:
        """What the folder `models` beside the facts has of a model."""
        if name not in self.models:
            folder = self.folder / MODELS / name
            self.models[name] = None
            if folder.is_dir():
                try:
                    self.models[name] = candidates.of_metadata(hub.read_folder(folder))
                except LlmetalError as error:
                    self.models[name] = candidates.of_error(error)
        return self.models[name]


@dataclass(frozen=True)
class Done:
    """What became of a host."""

    digest: Any = None
    """What is printed of its plan."""
    refused: bool = False
    failure: dict[str, Any] | None = None
    """Why there is no plan."""


@dataclass(frozen=True)
class _Work:
    """What is done for every host."""

    fleet: Fleet
    digest: Callable[[str, Mapping[str, Any]], Any]

    def __call__(self, host: str) -> Done:
        try:
            plan = self.fleet.plan(host)
        except LlmetalError as error:
            parts = {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
            return Done(failure={"host": host, "status": "failed", **parts})
        return Done(self.digest(host, plan), plan["status"] != "ok")


_work: _Work | None = None
"""The work of this process, where it is one of several; inherited, and not sent."""


def plan_all(
    fleet: Fleet, digest: Callable[[str, Mapping[str, Any]], Any], jobs: int | None = None
) -> Iterator[Done]:
    """Plan every host, in their order; many of them by several processes.

    Args:
        fleet: the hosts.
        digest: what is kept of a plan, in whichever process makes it.
        jobs: how many processes; by default as many as the processors and the hosts are worth.
    """
    work = _Work(fleet, digest)
    if jobs is None:
        jobs = min(len(os.sched_getaffinity(0)), _MOST_JOBS, len(fleet.hosts) // _WORTH_A_JOB)
    if jobs < 2:  # noqa: PLR2004 - one process is this one
        yield from map(work, fleet.hosts)
        return
    with multiprocessing.get_context("fork").Pool(jobs, _begin, (work,)) as pool:
        yield from pool.imap(_do, fleet.hosts, chunksize=_CHUNK)


def _begin(work: _Work) -> None:
    """Begin a process; an interrupt is the parent's to handle."""
    global _work  # noqa: PLW0603 - what a process has inherited has no other place
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _do(host: str) -> Done:
    if _work is None:  # pragma: no cover - _begin has run
        raise RuntimeError(host)
    return _work(host)


class Variables:
    """The variables of hosts; those that a plan needs."""

    def __init__(self, inventory: Inventory) -> None:
        """Take them from this inventory."""
        self._inventory = inventory

    def of(self, host: str) -> dict[str, Any]:
        """The variables of a host, templated.

        Raises:
            LlmetalError: one of them cannot be.
        """
        raw = self._inventory.raw(host)
        mine = {name: raw[name] for name in (*site_options(), *_MAGIC) if name in raw}
        try:
            found: dict[str, Any] = plain(mine)
            if not has_template(found):
                return found
            templar = Templar(loader=self._inventory.loader, variables=dict(raw))
            return {name: plain(templar.template(value)) for name, value in mine.items()}
        except AnsibleError as error:
            raise LlmetalError(
                what="a variable cannot be templated",
                where=host,
                why=" ".join(str(error).split()),
                fix="see `llmetal validate`",
            ) from error


def read_facts(folder: Path, host: str) -> dict[str, Any]:
    """The recorded facts of a host.

    Raises:
        LlmetalError: there are none, or they cannot be read.
    """
    again = f"survey the host: llmetal survey -i INVENTORY -l {host} --save {folder}"
    for suffix in _SUFFIXES:
        path = folder / f"{host}{suffix}"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            what = "the recorded facts cannot be read"
            raise LlmetalError(what=what, where=str(path), why=str(error), fix=again) from error
        return _facts(content, path, again)
    raise LlmetalError(
        what="there are no recorded facts of the host",
        where=str(folder / f"{host}.json"),
        fix=again,
    )


def _facts(content: bytes, path: Path, again: str) -> dict[str, Any]:
    form = "JSON" if path.suffix == ".json" else "YAML"
    try:
        found = json.loads(content) if form == "JSON" else load_yaml(content)
    except (ValueError, YAMLError, RecursionError) as error:
        what = f"the recorded facts are no {form}"
        why = " ".join(str(error).split())
        raise LlmetalError(what=what, where=str(path), why=why, fix=again) from error
    inner = found.get("facts", found) if isinstance(found, dict) else None
    if not isinstance(inner, dict):
        raise LlmetalError(
            what="the recorded facts are no mapping",
            where=str(path),
            why="it has to hold what the module survey returns",
            fix=again,
        )
    return inner


def _no_limit(limit: str, why: str) -> LlmetalError:
    return LlmetalError(
        what="no host is left to plan",
        where=f"--limit {limit}",
        why=" ".join(why.split()),
        fix="name hosts or groups of the inventory",
    )
