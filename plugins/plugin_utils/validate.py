# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a whole inventory before any connection: names, types, groups and references.

Every problem is found in one go, each with file, line, key, what was found and what is allowed.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    argument_spec,
    inventory_sources,
    words,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
    DATA,
    load_compat,
    load_yaml,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.inventory_variables import (
    Inventory,
    has_template,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain
from ansible_collections.llmetal.inference.plugins.plugin_utils.request import (
    site_groups,
    site_options,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import branch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.argument_spec import Issue
    from ansible_collections.llmetal.inference.plugins.plugin_utils.inventory_sources import Sources

ROLES = Path(__file__).resolve().parents[2] / "roles"
COMMAND_LINE = "the command line (-e)"
_OPERATIONS = DATA / "operation_variables.yml"

_FREE = ("ansible_", "site_")
_SECRET = re.compile(r"password|passwd|passphrase|token|secret|credential|key", re.IGNORECASE)
_HIDDEN = "(hidden)"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_UNREADABLE = "set it right, or take it out of the inventory"
_NAMES = "a variable of docs/inventory.md, a documented one of a role, ansible_* or site_*"


@dataclass(frozen=True)
class Problem:
    """Something in an inventory that is not as it should be."""

    file: str
    line: int
    key: str
    host: str
    found: str
    allowed: str
    why: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The problem as JSON has it."""
        return asdict(self)

    def as_text(self) -> str:
        """The problem as people read it, over several lines."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{where}: {self.key} {self.why}".rstrip()
        if self.host:
            text += f" (host {self.host})"
        for name, value in (
            ("found", self.found),
            ("allowed", self.allowed),
            ("what to do", self.fix),
        ):
            if value:
                text += f"\n  {name + ':':12}{value}"
        return text


def as_text(problems: Sequence[Problem]) -> str:
    """All problems of an inventory, with a line in front that counts them."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    head = f"{count} in the inventory; no host was connected to."
    return "\n\n".join([head, *(problem.as_text() for problem in problems)])


def validate_inventory(
    paths: Sequence[str],
    extra_vars: Mapping[str, Any] | None = None,
    loader: DataLoader | None = None,
    opened: Inventory | None = None,
) -> list[Problem]:
    """Check an inventory.

    Args:
        paths: what `-i` names.
        extra_vars: the variables of the command line.
        loader: Ansible's loader, which knows the vault's secrets; by default one that knows none.
        opened: the same inventory, for a caller that goes on with it.

    Returns:
        Everything that is wrong with it, in the order of files and lines.
    """
    sources = inventory_sources.read(path for path in paths if "," not in path)
    problems = [
        Problem(_name(path), 0, "", "", "nothing", "a file or a folder", "does not exist")
        for path in sources.missing
    ]
    problems += [
        Problem(_name(one.file), one.line, "", "", one.why, "YAML", "cannot be read", _UNREADABLE)
        for one in sources.broken
    ]
    if problems:
        return [_presentable(problem) for problem in problems]
    extra = dict(extra_vars or {})
    if opened is None:
        opened = open_inventory(paths, extra, loader or DataLoader())
    checker = _Checker(opened, sources, extra)
    found: list[Problem] = []
    whole = ", ".join(paths)
    try:
        found.extend(_presentable(problem) for problem in checker.check(whole))
    except AnsibleError as error:
        why = " ".join(f"cannot be read: {error}".split())
        found.append(_presentable(Problem(whole, 0, "", "", "", "", why, _UNREADABLE)))
    except Exception as error:  # noqa: BLE001 - whatever stands in a file, nobody gets a traceback
        why = " ".join(f"cannot be checked: {type(error).__name__}: {error}".split())
        found.append(_presentable(Problem(whole, 0, "", "", "", "", why, _UNREADABLE)))
    return sorted(dict.fromkeys(found), key=lambda problem: (problem.file, problem.line))


def open_inventory(
    paths: Sequence[str], extra_vars: Mapping[str, Any], loader: DataLoader
) -> Inventory:
    """An inventory, of which nothing is read yet."""
    names = [path if "," in path else str(Path(path).absolute()) for path in paths]
    return Inventory(loader, names, extra_vars)


def _presentable(problem: Problem) -> Problem:
    """A problem that can be printed: no credentials of a URL, no control characters."""
    texts: dict[str, Any] = {
        name: words.presentable(value) if isinstance(value, str) else value
        for name, value in asdict(problem).items()
    }
    return Problem(**texts)


@functools.cache
def role_options() -> dict[str, Any]:
    """The documented variables of all roles and operations, by name, as options without defaults.

    A role's slice of the lock is no variable of an inventory: the plan makes it.
    """
    options: dict[str, Any] = {}
    for file in (*sorted(ROLES.glob("*/meta/argument_specs.yml")), _OPERATIONS):
        for entry in (load_yaml(file.read_bytes()) or {}).get("argument_specs", {}).values():
            for name, option in (entry.get("options") or {}).items():
                if not name.endswith("_lock"):
                    dropped = {"required", "default"}
                    options[name] = {k: v for k, v in option.items() if k not in dropped}
    return options


class _Checker:
    """One inventory, looked at from all sides."""

    def __init__(self, opened: Inventory, sources: Sources, extra: Mapping[str, Any]) -> None:
        self._opened = opened
        self._loader = opened.loader
        self._sources = sources
        self._extra = extra
        self._options = {**role_options(), **site_options()}
        self._named: set[str] = set()
        self._good: set[str] = set()
        """What hosts that have no problem ask."""

    def check(self, whole: str) -> Iterator[Problem]:
        """All problems; `whole` is what the inventory is called."""
        inventory = self._opened.manager
        hosts = inventory.get_hosts()
        if not hosts:
            file = whole or "the inventory"
            fix = "name an inventory with -i, as in -i inventory/lab"
            yield Problem(file, 0, "", "", "no host", "one host at least", "has no host", fix)
            return
        yield from self._flaws()
        yield from self._owners(set(inventory.groups), {str(host.name) for host in hosts})
        yield from self._names()
        magic = self._magic()
        for host in hosts:
            if not _HOST.fullmatch(str(host.name)):
                yield self._host_name(str(host.name))
                continue
            groups = sorted(
                host.get_groups(), key=lambda g: (g.depth, g.priority, g.name), reverse=True
            )
            names = [str(group.name) for group in groups]
            yield from self._membership(str(host.name), names)
            merged = self._opened.raw(str(host.name))
            mine = {name: value for name, value in merged.items() if name not in magic}
            asked = self._asked(names, mine)
            if asked in self._good:
                continue
            problems = list(self._host(str(host.name), names, mine, merged))
            if asked and not problems:
                self._good.add(asked)
            yield from problems

    def _asked(self, groups: Sequence[str], mine: Mapping[str, Any]) -> str:
        """All that a host's check depends on; empty where it depends on the host itself."""
        values = {k: v for k, v in mine.items() if k in self._options or not self._known(k)}
        try:
            values = plain(values)
        except AnsibleError:  # a secret that cannot be read
            return ""
        return "" if has_template(values) else repr((list(groups), values))

    def _magic(self) -> set[str]:
        """The variables that Ansible itself gives to every host."""
        inventory = InventoryManager(loader=self._loader, sources=["nobody,"])
        manager = VariableManager(loader=self._loader, inventory=inventory)
        return set(manager.get_vars(host=inventory.get_host("nobody"))) - set(self._extra)

    def _flaws(self) -> Iterator[Problem]:
        for one in self._sources.flaws:
            yield Problem(
                _name(one.file), one.line, one.key, "", one.found, one.allowed, one.why, one.fix
            )

    def _owners(self, groups: set[str], hosts: set[str]) -> Iterator[Problem]:
        """Files of variables for a group or a host that there is none of: nobody reads them."""
        for (owner, of_host), file in self._sources.owners.items():
            known = hosts if of_host else groups | set(site_groups())
            if owner in known:
                continue
            kind = "host" if of_host else "group"
            close = words.nearest(owner, known)
            fix = f"did you mean {close}?" if close else "rename the file, or take it away"
            why = f"is no {kind} of the inventory"
            allowed = f"the name of a {kind}: " + ", ".join(sorted(known))
            yield Problem(_name(file), 0, owner, "", owner, allowed, why, fix)

    def _host_name(self, host: str) -> Problem:
        file, line = self._sources.hosts.get(host, (None, 0))
        return Problem(
            _name(file) if file else "the inventory",
            line,
            host,
            "",
            host,
            "letters, digits and . _ : -, with a letter or a digit in front",
            "is no name of a host",
            "rename it, and give its address as ansible_host",
        )

    def _names(self) -> Iterator[Problem]:
        """Variables that nobody knows, where they stand."""
        for one in self._sources.definitions:
            if not self._known(one.name):
                self._named.add(one.name)
                host = one.owner if one.of_host else ""
                yield self._unknown(one.name, _name(one.file), one.line, host)
        for name in self._extra:
            if not self._known(str(name)):
                self._named.add(str(name))
                yield self._unknown(str(name), COMMAND_LINE, 0, "")

    def _known(self, name: str) -> bool:
        return name in self._options or name.startswith(_FREE)

    def _unknown(self, name: str, file: str, line: int, host: str) -> Problem:
        close = words.nearest(name, self._options)
        fix = f"did you mean {close}?" if close else "rename it to site_... if it is your own"
        if name.endswith("_lock") and name.removesuffix("_lock") in _roles():
            fix = "leave it out: the plan makes it"
        return Problem(file, line, name, host, name, _NAMES, "is not known", fix)

    def _membership(self, host: str, groups: Sequence[str]) -> Iterator[Problem]:
        if set(groups) & set(site_groups()):
            return
        file, line = self._sources.hosts.get(host, (None, 0))
        own = [name for name in groups if name not in {"all", "ungrouped"}]
        yield Problem(
            _name(file) if file else "the inventory",
            line,
            host,
            host,
            "in " + (", ".join(own) or "no group"),
            "one of the groups " + ", ".join(site_groups()),
            "is in no group of a site",
            f"list it below {site_groups()[0]}, or below another of these groups",
        )

    def _host(
        self,
        host: str,
        groups: Sequence[str],
        mine: Mapping[str, Any],
        merged: Mapping[str, Any],
    ) -> Iterator[Problem]:
        """Types, ranges and references of one host's variables."""
        templar = Templar(loader=self._loader, variables=dict(merged))
        values: dict[str, Any] = {}
        bad: set[str | int] = set()
        for name, value in mine.items():
            if not self._known(name):
                if name not in self._named:
                    yield self._unknown(name, "the inventory", 0, host)
                continue
            if name not in self._options:
                continue
            try:
                values[name] = plain(templar.template(value))
            except AnsibleError as error:
                why = "cannot be templated"
                bad.add(name)
                found = _HIDDEN if _SECRET.search(name) else " ".join(str(error).split())
                yield self._problem(host, groups, argument_spec.Issue((name,), found, "", why))
        good, issues = argument_spec.check(self._options, values)
        for issue in issues:
            yield self._problem(host, groups, issue)
        bad |= {issue.path[0] for issue in issues}
        right = {k: v for k, v in good.items() if k not in bad}
        for issue in _references(right, serves=site_groups()[0] in groups):
            yield self._problem(host, groups, issue)

    def _problem(self, host: str, groups: Sequence[str], issue: Issue) -> Problem:
        name = str(issue.path[0])
        if name in self._extra:
            file, line = COMMAND_LINE, 0
        else:
            place = self._sources.where(host, groups, issue.path)
            file, line = (_name(place[0]), place[1]) if place else ("the inventory", 0)
        secret = any(_SECRET.search(str(part)) for part in issue.path)
        return Problem(
            file,
            line,
            argument_spec.shown(issue.path),
            host if file == "the inventory" else self._alone(host, name),
            _HIDDEN if secret and not issue.why.startswith("is not known") else issue.found,
            issue.allowed,
            issue.why,
            issue.fix,
        )

    def _alone(self, host: str, name: str) -> str:
        """The host, where the variable is that host's own; else empty: the file says whose."""
        own = (one for one in self._sources.definitions if one.of_host and one.name == name)
        return host if any(one.owner == host for one in own) else ""


def _references(values: Mapping[str, Any], *, serves: bool) -> Iterator[Issue]:
    """What a host's variables say about each other."""
    models = [row["name"] for row in values.get("llmetal_models", ())]
    for index, row in enumerate(values.get("llmetal_instances", ())):
        path = ("llmetal_instances", index)
        if "llmetal_models" in values and row["model"] not in models:
            close = words.nearest(row["model"], models)
            yield argument_spec.Issue(
                (*path, "model"),
                row["model"],
                "a name of llmetal_models: " + (", ".join(models) or "there is none"),
                "names no model",
                f"did you mean {close}?" if close else "add it to llmetal_models",
            )
        gpus = row.get("gpus") or []
        if twice := [str(gpu) for gpu, count in Counter(gpus).items() if count > 1]:
            why = "names a GPU twice"
            yield argument_spec.Issue((*path, "gpus"), ", ".join(twice), "each once", why)
        if row["device"] == "cpu" and gpus:
            why = "names GPUs for an instance on the CPU"
            found = ", ".join(map(str, gpus))
            yield argument_spec.Issue((*path, "gpus"), found, "nothing", why, "leave it out")
    driver = values.get("llmetal_driver") or {}
    if values.get("llmetal_scope") == "user" and driver.get("source", "none") != "none":
        why = "needs root, and llmetal_scope is user"
        where = ("llmetal_driver", "source")
        yield argument_spec.Issue(where, str(driver["source"]), "none", why)
    yield from _driver_references(driver)
    source = driver.get("source", "none")
    sets = [row for row in load_compat().package_sets if row["source"] == source]
    external = bool(sets) and all(row.get("external") for row in sets)
    if serves and values.get("llmetal_scope") != "user" and external and not driver.get("mirror"):
        where, allowed = ("llmetal_driver", "mirror"), "uri, suite, key_file and fingerprint"
        yield argument_spec.Issue(where, "nothing", allowed, f"is required for source {source}")


def _driver_references(driver: Mapping[str, Any]) -> Iterator[Issue]:
    branch, version = driver.get("branch"), driver.get("version")
    known = load_compat().branches
    if branch and branch not in known:
        yield argument_spec.Issue(
            ("llmetal_driver", "branch"), branch, ", ".join(known), "is no driver branch"
        )
    if branch and version and branch_of(version) != branch:
        yield argument_spec.Issue(
            ("llmetal_driver", "version"),
            version,
            f"a release of branch {branch}",
            "is not of the branch that is asked for",
            "leave one of the two out",
        )


@functools.cache
def _roles() -> frozenset[str]:
    return frozenset(path.name for path in ROLES.glob("*") if path.is_dir())


def _name(path: Path | str) -> str:
    """A path as people type it: relative where it is below the current folder."""
    whole = Path(path).absolute()
    here = Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def sources_of(inventory: Iterable[str] | str | None) -> list[str]:
    """The inventory sources of a run, as a list."""
    if inventory is None:
        return []
    return [inventory] if isinstance(inventory, str) else list(inventory)
