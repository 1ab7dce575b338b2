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
_MOST_NODES = 100_000
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
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


@dataclass(frozen=True)
class Flaw:
    """A key that should not be there, in a file that can be read."""

    file: Path
    line: int
    key: str
    found: str
    allowed: str
    why: str
    fix: str


@dataclass
class Sources:
    """What the files of an inventory define."""

    definitions: list[Definition] = field(default_factory=list)
    hosts: dict[str, tuple[Path, int]] = field(default_factory=dict)
    owners: dict[tuple[str, bool], Path] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
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
        for file in _inventory_files(path, sources):
            _read_inventory(file, sources)
        for kind, of_host in (("group_vars", False), ("host_vars", True)):
            for owner, file in _variable_files(folder / kind):
                sources.owners.setdefault((owner, of_host), file)
                _read_variables(file, owner, sources, of_host=of_host)
    return sources


def _inventory_files(path: Path, sources: Sources, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    whole = path.resolve() if path.is_dir() else None
    if whole is None or whole in above:
        why = "it is neither a file nor a folder" if whole is None else "the folder is in itself"
        sources.broken.append(Broken(path, 0, why))
        return
    for entry in sorted(path.iterdir()):
        ignored = entry.name.startswith(".") or entry.name.endswith("~")
        if ignored or entry.name in _IGNORED or entry.suffix in _IGNORED_SUFFIXES:
            continue
        yield from _inventory_files(entry, sources, (*above, whole))


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
    node, line, why = None, 1, ""
    try:
        node = _parsed(file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        why = " ".join(part for part in (error.context, error.problem) if part)
    except RecursionError:
        why = "its values lie too deep in each other"
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = str(error)
    if why:
        sources.broken.append(Broken(file, line, why))
    elif node is not None:
        sources.flaws += _twice(node, file, set())
    return node


def _parsed(file: Path) -> yaml.Node | None:
    """The values of a file; none of one that the vault keeps.

    Raises:
        ValueError: it is no file, or far larger than it looks.
    """
    if not file.is_file():
        what = "it is no file"
        raise ValueError(what)
    text = file.read_text(encoding="utf-8")
    if text.startswith("$ANSIBLE_VAULT"):
        return None
    node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    if node is not None and _size(node, {}) > _MOST_NODES:
        what = f"with its aliases filled in it has more than {_MOST_NODES} values"
        raise ValueError(what)
    return node


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node has with its aliases filled in; each node is looked at once.

    A node that is in itself has more than any limit.
    """
    if id(node) not in sizes:
        sizes[id(node)] = _MOST_NODES + 1
        sizes[id(node)] = 1 + sum(_size(one, sizes) for one in _children(node))
    return sizes[id(node)]


def _no_text(key: yaml.Node, file: Path) -> Flaw:
    name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
    found = name or ("nothing" if isinstance(key, yaml.ScalarNode) else "a list or a dictionary")
    fix = "give it a name, in quotes where it has to be"
    why = "is a key that is not a text"
    return Flaw(file, key.start_mark.line + 1, name, found, "a text", why, fix)


def _twice(node: yaml.Node, file: Path, seen: set[int]) -> Iterator[Flaw]:
    """Keys that stand twice in one mapping: YAML takes the last and forgets the others."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                yield _no_text(key, file)
                continue
            if key.tag == _MERGE:
                continue
            line, same = key.start_mark.line + 1, (key.tag, str(key.value))
            if same in lines:
                why = f"stands there twice: line {lines[same]} has it too"
                yield Flaw(
                    file, line, same[1], same[1], "each key once", why, "leave one of them out"
                )
            lines.setdefault(same, line)
    for one in _children(node):
        yield from _twice(one, file, seen)


def _read_variables(file: Path, owner: str, sources: Sources, *, of_host: bool) -> None:
    node = _compose(file, sources)
    _take_variables(node, owner, file, sources, of_host=of_host)


def _take_variables(
    node: yaml.Node | None, owner: str, file: Path, sources: Sources, *, of_host: bool
) -> None:
    for key, value in _items(node):
        line = key.start_mark.line + 1
        name = str(key.value)
        if key.tag != _TEXT:
            sources.flaws.append(_no_text(key, file))
            continue
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
            if isinstance(key, yaml.ScalarNode) and key.tag == _MERGE:
                for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from _items(one)
            elif isinstance(key, yaml.ScalarNode):
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
