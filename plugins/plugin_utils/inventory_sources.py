# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an inventory defines what: file and line of every variable and host in its YAML and INI.

Ansible says what a variable is in the end; only its sources say where a person has to look.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML = frozenset({".yml", ".yaml", ".json"})
_IGNORED = frozenset({"group_vars", "host_vars", "vars_plugins", "locks"})
_IGNORED_SUFFIXES = frozenset(
    {".bak", ".cfg", ".md", ".orig", ".pyc", ".retry", ".rpm", ".rst", ".swp", ".txt"}
)
_SECTION = re.compile(r"\[(?P<name>[^:\]]+)(:(?P<kind>\w+))?\]\s*(#.*)?$")
_ASSIGNED = re.compile(r"(?<![\w'\"])([A-Za-z_]\w*)\s*=")


@dataclass(frozen=True)
class Definition:
    """One variable, set for a host or a group somewhere."""

    name: str
    owner: str
    of_host: bool
    file: Path
    line: int
    node: yaml.Node | None = None


@dataclass(frozen=True)
class Broken:
    """A file that cannot be read."""

    file: Path
    line: int
    why: str


@dataclass
class Sources:
    """What the files of an inventory define."""

    definitions: list[Definition] = field(default_factory=list)
    hosts: dict[str, tuple[Path, int]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)

    def where(
        self, host: str, groups: Sequence[str], path: Sequence[str | int]
    ) -> tuple[Path, int] | None:
        """File and line of a value of a host, as deep as the file goes.

        Args:
            host: the host.
            groups: its groups, the strongest first.
            path: the variable, and what follows into its value.
        """
        owners = {(host, True): -1, **{(name, False): n for n, name in enumerate(groups)}}
        found = [
            definition
            for definition in self.definitions
            if definition.name == path[0] and (definition.owner, definition.of_host) in owners
        ]
        if not found:
            return None
        best = min(found, key=lambda one: owners[one.owner, one.of_host])
        line = best.line if best.node is None else _line_of(best.node, path[1:], best.line)
        return best.file, line


def read(paths: Iterable[str | Path]) -> Sources:
    """Read the files of inventories: what `-i` names, and the variables beside it."""
    sources = Sources()
    for name in paths:
        path = Path(name)
        if not path.exists():
            sources.missing.append(path)
            continue
        folder = path if path.is_dir() else path.parent
        for file in _inventory_files(path):
            _read_inventory(file, sources)
        for kind, of_host in (("group_vars", False), ("host_vars", True)):
            for owner, file in _variable_files(folder / kind):
                _read_variables(file, owner, sources, of_host=of_host)
    return sources


def _inventory_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for entry in sorted(path.iterdir()):
        ignored = entry.name.startswith(".") or entry.name.endswith("~")
        if ignored or entry.name in _IGNORED or entry.suffix in _IGNORED_SUFFIXES:
            continue
        yield from _inventory_files(entry)


def _variable_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a group_vars or host_vars folder, with the group or host each is about."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name.endswith("~"):
            continue
        if entry.is_dir():
            for file in sorted(entry.rglob("*")):
                if file.is_file() and file.suffix in _YAML | {""}:
                    yield entry.name, file
        elif entry.suffix in _YAML:
            yield entry.stem, entry
        elif not entry.suffix:
            yield entry.name, entry


def _compose(file: Path, sources: Sources) -> yaml.Node | None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sources.broken.append(Broken(file, 1, str(error)))
        return None
    if text.startswith("$ANSIBLE_VAULT"):
        return None
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        sources.broken.append(Broken(file, mark.line + 1 if mark else 1, why))
        return None
    except yaml.YAMLError as error:
        sources.broken.append(Broken(file, 1, str(error)))
        return None
    return node


def _read_variables(file: Path, owner: str, sources: Sources, *, of_host: bool) -> None:
    node = _compose(file, sources)
    _take_variables(node, owner, file, sources, of_host=of_host)


def _take_variables(
    node: yaml.Node | None, owner: str, file: Path, sources: Sources, *, of_host: bool
) -> None:
    for key, value in _items(node):
        line = key.start_mark.line + 1
        name = str(key.value)
        sources.definitions.append(Definition(name, owner, of_host, file, line, value))


def _read_inventory(file: Path, sources: Sources) -> None:
    if file.suffix in _YAML:
        root = _compose(file, sources)
        names = {str(key.value) for key, _ in _items(root)}
        if "plugin" not in names:
            for key, value in _items(root):
                _read_group(str(key.value), value, file, sources)
        return
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if not text.startswith("#!"):
        _read_ini(text, file, sources)


def _read_group(name: str, node: yaml.Node, file: Path, sources: Sources) -> None:
    for key, value in _items(node):
        part = str(key.value)
        if part == "vars":
            _take_variables(value, name, file, sources, of_host=False)
        elif part == "hosts":
            for host, variables in _items(value):
                line = host.start_mark.line + 1
                sources.hosts.setdefault(str(host.value), (file, line))
                _take_variables(variables, str(host.value), file, sources, of_host=True)
        elif part == "children":
            for child, inner in _items(value):
                _read_group(str(child.value), inner, file, sources)


def _read_ini(text: str, file: Path, sources: Sources) -> None:
    section, kind = "ungrouped", ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if found := _SECTION.match(line):
            section, kind = found["name"].strip(), found["kind"] or ""
            continue
        if kind == "children":
            continue
        owner, of_host = (section, False) if kind == "vars" else (line.split()[0], True)
        if of_host:
            sources.hosts.setdefault(owner, (file, number))
        names = _ASSIGNED.findall(line)
        for name in names[:1] if kind == "vars" else names:
            sources.definitions.append(Definition(name, owner, of_host, file, number))


def _items(node: yaml.Node | None) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key, value


def _line_of(node: yaml.Node, path: Sequence[str | int], line: int) -> int:
    """The line of a value below a node; that of the deepest part which is there."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(node, yaml.SequenceNode) or step >= len(node.value):
                return line
            node = node.value[step]
            line = node.start_mark.line + 1
            continue
        inner = {str(key.value): (key, value) for key, value in _items(node)}
        if step not in inner:
            return line
        key, node = inner[step]
        line = key.start_mark.line + 1
    return line
