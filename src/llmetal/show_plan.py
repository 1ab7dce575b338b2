# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `llmetal plan` answers: one JSON document, or tables with the refusals below them.

Hosts are taken one after the other, so that a thousand of them need no memory: of each, a table
keeps a line, and JSON nothing. What is printed of a host is made of its plan by itself (`digest`),
so that other processes can do it. The tables are our own: rich takes seconds for so many lines.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from llmetal.progress import EXIT_REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_WIDTH = 110
"""Columns where there is no terminal to ask."""

_NARROWEST = 8
_MANY = 10
"""Up to so many hosts are named where only fields are listed; refusals name all of theirs."""

_GAP = "  "
_NONE = "-"
_GB = 10**9
_STYLES = {"bold": "1", "green": "32", "red": "1;31", "yellow": "33", "dim": "2"}
_MARKS = {"ok": "✓", "refused": "✗"}
_SECTIONS = (
    "driver",
    "fabric",
    "nvlink",
    "toolkit",
    "container",
    "python",
    "engines",
    "models",
    "instances",
)
_SINGULAR = {"engines": "engine", "models": "model", "instances": "instance"}

HOST_COLUMNS = ("host", "plan", "system", "GPUs", "driver", "CUDA", "engine", "torch")
INSTANCE_COLUMNS = (
    "host",
    "instance",
    "model",
    "layout",
    "weights",
    "KV tokens",
    "context",
    "longest",
    "at once",
    "FP8",
)
_NUMBERS = frozenset({"weights", "KV tokens", "context", "longest", "at once"})
_UNBROKEN = _NUMBERS | {"memory", "host"}
"""Columns whose cells are no words."""
_LEGEND = (
    "KV tokens: in each replica; at once: requests of the context (else the longest) in all"
    " replicas together"
)
_LABEL = 14
"""Columns in front of what a finding says."""


class Answer(Protocol):
    """Where plans go."""

    def digest(self, host: str, plan: Mapping[str, Any]) -> Any:  # noqa: ANN401 - its own form
        """What is printed of a host, from its plan: status, lock, refusals, warnings, changes."""

    def take(self, digest: Any) -> None:  # noqa: ANN401 - likewise
        """Print it, or keep it for the end."""

    def end(self, exit_code: int, failures: Sequence[Mapping[str, Any]]) -> None:
        """Finish, with what failed before there could be a plan."""


def make(*, as_json: bool, explain: str | None = None) -> Answer:
    """The answer in the asked form."""
    return JsonAnswer(explain) if as_json else TextAnswer(Screen(), explain)


class JsonAnswer:
    """One JSON document, written as the plans come."""

    def __init__(self, explain: str | None = None) -> None:
        """Begin the document; with a host whose reasons stand in it by themselves."""
        self._explain = explain
        self._reasons: dict[str, list[str]] | None = None
        self._count = 0
        self._terminal = sys.stdout.isatty()

    def digest(self, host: str, plan: Mapping[str, Any]) -> tuple[str, dict[str, list[str]] | None]:
        """The member of the document, and the reasons where they are asked."""
        said = dict(reasons(plan.get("lock") or {})) if host == self._explain else None
        return f"{json.dumps(host)}: {self._json(plan, 4)}", said

    def take(self, digest: tuple[str, dict[str, list[str]] | None]) -> None:
        """Write the plan of a host."""
        text, said = digest
        self._reasons = self._reasons or said
        between = ",\n    " if self._terminal else ", "
        sys.stdout.write((between if self._count else self._first()) + text)
        self._count += 1

    def end(self, exit_code: int, failures: Sequence[Mapping[str, Any]]) -> None:
        """Close the document; what failed is said on standard error too."""
        rest: dict[str, Any] = {"failures": list(failures), "exit_code": exit_code}
        if self._reasons is not None:
            rest["explain"] = {self._explain: self._reasons}
        last = "\n  },\n  " if self._terminal else "}, "
        start = "" if self._count else self._first()
        sys.stdout.write(f"{start}{last}{self._json(rest, 0)[1:].lstrip()}\n")
        for failure in failures:
            sys.stderr.write(f"llmetal: {_one_line(failure)}\n")

    def _first(self) -> str:
        """What the document begins with."""
        return '{\n  "hosts": {\n    ' if self._terminal else '{"hosts": {'

    def _json(self, content: Mapping[str, Any], depth: int) -> str:
        """A part of the document; on a terminal, over several lines."""
        if not self._terminal:
            return json.dumps(content, default=str)
        return json.dumps(content, default=str, indent=2).replace("\n", "\n" + " " * depth)


class TextAnswer:
    """A line for each host, one for each instance, and below them all that has to be said."""

    def __init__(self, screen: Screen, explain: str | None = None) -> None:
        """Print on a screen; with a host, print why it gets what it gets instead of the tables."""
        self._screen = screen
        self._explain = explain
        self._hosts: list[tuple[str, ...]] = []
        self._instances: list[tuple[str, ...]] = []
        self._refusals = _Grouped()
        self._warnings = _Grouped()
        self._unresolved = _Grouped()
        self._changes: list[tuple[str, tuple[str, ...]]] = []
        self._reasons: list[tuple[str, list[str]]] | None = None
        self._written: list[str] = []

    def digest(self, host: str, plan: Mapping[str, Any]) -> Digest:
        """The lines of a host."""
        lock: Mapping[str, Any] = plan.get("lock") or {}
        return Digest(
            host=host,
            cells=tuple(host_cells(host, plan)),
            instances=tuple(map(tuple, instance_rows(host, lock))),
            refusals=tuple(map(_parts, plan.get("refusals") or [])),
            warnings=tuple(map(_parts, plan.get("warnings") or [])),
            kept=bool(plan.get("kept")),
            changes=tuple(map(change_text, plan.get("changes") or [])),
            unresolved=tuple(fields_of(lock.get("unresolved") or [])),
            reasons=list(reasons(lock)) if host == self._explain else None,
            written=str(plan.get("written") or ""),
        )

    def take(self, digest: Digest) -> None:
        """Keep what is printed of a host."""
        if self._explain not in {None, digest.host}:
            return
        self._hosts.append(digest.cells)
        self._instances += digest.instances
        for row in digest.refusals:
            self._refusals.add(digest.host, row)
        for row in digest.warnings:
            self._warnings.add(digest.host, row)
        if digest.unresolved:
            self._unresolved.add(digest.host, digest.unresolved)
        if digest.changes:
            said = "a lock made anew would change" if digest.kept else "its lock changes"
            self._changes.append((f"{digest.host}: {said}", digest.changes))
        if digest.reasons is not None:
            self._reasons = digest.reasons
        if digest.written:
            self._written.append(digest.written)

    def end(self, exit_code: int, failures: Sequence[Mapping[str, Any]]) -> None:
        """Print all of it."""
        if self._reasons is not None:
            self._explanation(self._reasons)
        else:
            self._tables()
        self._findings(self._refusals, "✗", "red")
        self._findings(self._warnings, "!", "yellow")
        self._would_change()
        for fields, hosts in self._unresolved.items():
            whom = ", ".join(hosts) if len(hosts) <= _MANY else f"{len(hosts)} hosts"
            self._screen.line(f"not resolved for {whom}: {', '.join(fields)}", "dim", indent=2)
        for path in self._written:
            self._screen.line(f"written: {path}")
        for failure in failures:
            self._screen.line(f"✗ {_one_line(failure)}", "red", indent=2)
        self._screen.line(self._summary(exit_code, len(failures)), "red" if exit_code else "green")

    def _tables(self) -> None:
        if self._hosts:
            self._screen.table(HOST_COLUMNS, self._hosts)
        if self._instances:
            self._screen.line("")
            spare = _spare(self._instances)
            self._screen.table(INSTANCE_COLUMNS, self._instances, spare=spare, whole=True)
            self._screen.line(_LEGEND, "dim")
        self._screen.line("")

    def _explanation(self, sections: Iterable[tuple[str, list[str]]]) -> None:
        self._screen.line(f"Why {self._explain} gets what it gets", "bold")
        said = False
        for title, lines in sections:
            said = True
            self._screen.line(f"  {title}", "bold")
            for line in lines:
                self._screen.line(f"    - {line}", indent=6)
        if not said:
            self._screen.line("  there is no lock that could say so")
        self._screen.line("")

    def _findings(self, findings: _Grouped, mark: str, style: str) -> None:
        for (rule, reason, fix, source, hosts), facts in findings.merged():
            self._screen.line(f"{mark} {', '.join(hosts)}: {reason} [{rule}]", style, indent=2)
            labels = ["found", *[""] * (len(facts) - 1), "what to do", "source"]
            for label, text in zip(labels, (*facts, fix, source), strict=True):
                head = f"{label}:" if label else ""
                self._screen.line(f"  {head:{_LABEL - 2}}{text}", indent=_LABEL)
            self._screen.line("")

    def _would_change(self) -> None:
        for heading, rows in self._changes:
            self._screen.line(heading, "yellow")
            for row in rows:
                self._screen.line(f"  {row}")
            self._screen.line("")

    def _summary(self, exit_code: int, failed: int) -> str:
        refused = sum(row[1].startswith(_MARKS["refused"]) for row in self._hosts)
        parts = [f"{len(self._hosts) - refused} planned"]
        if refused or exit_code == EXIT_REFUSED:
            parts.append(f"{refused} refused")
        if failed:
            parts.append(f"{failed} failed")
        return ", ".join(parts)


@dataclass(frozen=True)
class Digest:
    """What the tables say of a host."""

    host: str
    cells: tuple[str, ...]
    instances: tuple[tuple[str, ...], ...]
    refusals: tuple[tuple[str, ...], ...]
    warnings: tuple[tuple[str, ...], ...]
    kept: bool
    changes: tuple[str, ...]
    unresolved: tuple[str, ...]
    reasons: list[tuple[str, list[str]]] | None
    written: str


@dataclass
class _Grouped:
    """What is true of several hosts, said once."""

    rows: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def add(self, host: str, row: tuple[str, ...]) -> None:
        self.rows.setdefault(row, []).append(host)

    def items(self) -> Iterable[tuple[tuple[str, ...], list[str]]]:
        return self.rows.items()

    def merged(self) -> Iterable[tuple[tuple[str, str, str, str, tuple[str, ...]], list[str]]]:
        """Findings with what they have in common (rule, reason, fix, source, hosts) said once."""
        found: dict[tuple[str, str, str, str, tuple[str, ...]], list[str]] = {}
        for (rule, fact, reason, fix, source), hosts in self.rows.items():
            found.setdefault((rule, reason, fix, source, tuple(hosts)), []).append(fact)
        return found.items()


class Screen:
    """Standard output: coloured and as wide as the terminal, where there is one."""

    def __init__(self) -> None:
        """Look at what standard output is."""
        self._terminal = sys.stdout.isatty()
        dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
        self._colours = self._terminal and not dumb
        size = shutil.get_terminal_size((_WIDTH, 24)).columns
        self._width = size if self._terminal or "COLUMNS" in os.environ else _WIDTH

    def line(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Print a line whole: on a terminal over several lines, else on one."""
        text = _printable(text)
        if self._terminal and len(text) > self._width:
            room = max(self._width, indent + _NARROWEST)
            text = "\n".join(_wrapped(text, room, " " * indent))
        sys.stdout.write(self._styled(text, style) + "\n")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        spare: Sequence[str] = (),
        whole: bool = False,
    ) -> None:
        """Print a table; cells that are too wide for it go on in the next line.

        Args:
            columns: the headings.
            rows: the cells.
            spare: columns that are left out, one after the other, where there is no room.
            whole: whether no word may be broken: where there is no room, rows become lists.
        """
        cells = [[_printable(cell) for cell in row] for row in rows]
        widths = _widths(columns, cells, self._width, _least(columns, cells))
        for name in spare:
            if _is_within(widths, self._width):
                break
            at = columns.index(name)
            columns = [*columns[:at], *columns[at + 1 :]]
            cells = [[*row[:at], *row[at + 1 :]] for row in cells]
            widths = _widths(columns, cells, self._width, _least(columns, cells))
        if not _is_within(widths, self._width):
            if whole:
                self._lists(columns, cells)
                return
            widths = _widths(columns, cells, self._width, [_NARROWEST] * len(columns))
        right = [name in _NUMBERS for name in columns]
        for line in _folded(columns, widths):
            self.line(_aligned(line, widths, right), "bold")
        for row in cells:
            style = "red" if row[1].startswith(_MARKS["refused"]) else ""
            for line in _folded(row, widths):
                sys.stdout.write(self._styled(_aligned(line, widths, right), style) + "\n")

    def _lists(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print each row as a list of its cells with their headings."""
        for row in rows:
            line = ""
            for name, cell in zip(columns, row, strict=True):
                part = f"{name}: {cell}"
                if line and len(line) + len(part) + 2 > self._width:
                    sys.stdout.write(f"{line},\n")
                    line = f"  {part}"
                else:
                    line = f"{line}, {part}" if line else part
            sys.stdout.write(line + "\n")

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and self._colours else text


def host_cells(host: str, plan: Mapping[str, Any]) -> Iterator[str]:
    """The line of a host: the system, and the versions that a person asks for first."""
    lock: Mapping[str, Any] = plan.get("lock") or {}
    refused = plan.get("status") != "ok"
    yield host
    yield f"{_MARKS['refused']} refused" if refused else _MARKS["ok"]
    yield _text(_get(lock, "host", "os") or _get(plan, "about", "os"))
    yield _gpus(
        lock or {"host": {"gpus": [{"name": n} for n in _get(plan, "about", "gpus") or ()]}}
    )
    yield _text(_get(lock, "driver", "version") or _get(lock, "driver", "branch"))
    yield _text(_get(lock, "toolkit", "version"))
    engines = [row for row in lock.get("engines") or [] if isinstance(row, dict)]
    yield _joined(f"{row.get('name')} {row.get('version')}" for row in engines)
    yield _joined(str(row["torch"]) for row in engines if row.get("torch"))


def instance_rows(host: str, lock: Mapping[str, Any]) -> Iterator[list[str]]:
    """The lines of a host's instances: how each is laid out, and what fits into its memory."""
    for row in lock.get("instances") or []:
        memory = row.get("memory") or {}
        yield [
            host,
            _text(row.get("name")),
            _model(lock, row),
            _layout(row),
            _weights(memory),
            _count(memory.get("kv_tokens")),
            _count(row.get("context")),
            _count(memory.get("longest_context")),
            _count(memory.get("concurrency")),
            _text(_get(row, "fp8", "path")),
        ]


def reasons(lock: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The sections of a lock that say why, each with its title."""
    for key in _SECTIONS:
        section = lock.get(key)
        for row in section if isinstance(section, list) else [section]:
            if isinstance(row, dict) and row.get("why"):
                yield _title(key, row), [str(line) for line in row["why"]]
            if isinstance(row, dict) and key == "python":
                for one in row.get("environments") or []:
                    if why := one.get("why") or _get(one, "python", "why"):
                        yield _title("environment", one), [str(line) for line in why]


def fields_of(unresolved: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The fields that are not resolved; several of one thing are counted."""
    counts: dict[str, list[str]] = {}
    for row in unresolved:
        name = str(row.get("field"))
        # The name of a model may have dots, and so may that of a package.
        thing = name.rpartition(".")[0] if name.startswith("models.") else ""
        counts.setdefault(thing or ".".join(name.split(".", 2)[:2]), []).append(name)
    for thing, names in counts.items():
        yield names[0] if len(names) == 1 else f"{thing} ({len(names)})"


def change_text(row: Mapping[str, Any]) -> str:
    """A change on one line."""
    from ansible_collections.llmetal.inference.plugins.plugin_utils.lock_diff import (  # noqa: PLC0415 - rarely needed
        Change,
    )

    return Change(str(row["path"]), row.get("before"), row.get("after")).as_text()


def print_known(known: Mapping[str, Sequence[Mapping[str, Any]]], *, as_json: bool) -> None:
    """Print the GPUs and systems that a question may name."""
    if as_json:
        sys.stdout.write(json.dumps(known, indent=2 if sys.stdout.isatty() else None) + "\n")
        return
    screen = Screen()
    columns = ("key", "model", "memory", "compute", "FP8", "architecture", "host")
    rows = [
        (
            str(row["key"]),
            str(row["model"]),
            _memory(row.get("memory_gb")),
            str(row["compute_capability"]),
            str(row["fp8"]),
            str(row["architecture"]),
            f"{row['host_arch']}{'' if row['installable'] else ' *'}",
        )
        for row in known["gpus"]
    ]
    screen.table(columns, rows, spare=("architecture", "compute"))
    screen.line("")
    if not all(row["installable"] for row in known["gpus"]):
        screen.line("* this release installs on hosts of x86_64 only: such a host is refused")
    screen.line("operating systems: " + ", ".join(str(row["key"]) for row in known["os"]))


def _title(key: str, row: Mapping[str, Any]) -> str:
    parts = (_SINGULAR.get(key, key), row.get("name"), row.get("version"))
    return " ".join(str(part) for part in parts if part)


def _layout(row: Mapping[str, Any]) -> str:
    """How an instance is spread over its GPUs: TP x PP x DP, and EP where experts are."""
    layout = row.get("layout") or {}
    if not layout:
        gpus = row.get("gpus") or []
        return f"{len(gpus)} GPU" if gpus else _text(row.get("device"))
    parts = [
        f"{name}{layout[key]}"
        for name, key in (("TP", "tensor"), ("PP", "pipeline"), ("DP", "data"))
        if (layout.get(key) or 1) > 1
    ]
    expert = layout.get("expert")
    if expert:
        parts.append("EP" if expert is True else f"EP{expert}")
    return " x ".join(parts) or "1 GPU"


def _model(lock: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The name of an instance's model; where only a question was asked, what the question said."""
    if _get(lock, "host", "name") == "planned":
        for model in lock.get("models") or []:
            path = str(_get(model, "source", "path") or "").rstrip("/")
            if path[:1] not in {"/", "~", "."}:
                path = path.partition("@")[0]  # a repository's revision may have slashes
            return _text(path.rpartition("/")[2])
        return _NONE
    return _text(row.get("model"))


def _weights(memory: Mapping[str, Any]) -> str:
    """What the weights take of a GPU; with a sign in front where only config.json was read."""
    size = memory.get("weights_bytes")
    if size is None:
        return _NONE
    about = "~" if memory.get("weights_counted") else ""
    return f"{about}{size / _GB:.1f} GB"


def _gpus(lock: Mapping[str, Any]) -> str:
    names = [str(row.get("name") or row.get("id")) for row in _get(lock, "host", "gpus") or []]
    return _joined(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _memory(gigabytes: object) -> str:
    if isinstance(gigabytes, list):
        return "/".join(str(one) for one in dict.fromkeys(gigabytes)) + " GB"
    return _NONE if gigabytes is None else f"{gigabytes} GB"


def _parts(finding: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(finding.get(key) or "") for key in ("rule", "fact", "reason", "fix", "source"))


def _one_line(failure: Mapping[str, Any]) -> str:
    parts = (str(failure.get(key) or "") for key in ("host", "what", "where", "why", "fix"))
    return ": ".join(dict.fromkeys(part for part in parts if part))


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts)) or _NONE


def _text(value: object) -> str:
    return _NONE if value in (None, "") else str(value)


def _count(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else _text(value)


def _printable(text: str) -> str:
    """A text without control characters: names come from hosts and files."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " for one in text)


def _spare(rows: Sequence[Sequence[str]]) -> list[str]:
    """The columns of instances that say nothing new, in the order in which they can be left out."""
    found = ["instance"] if all(row[0] == row[1] for row in rows) else []
    if len({row[0] for row in rows}) == 1:
        found.append("host")
    empty = [all(row[at] == _NONE for row in rows) for at in range(len(INSTANCE_COLUMNS))]
    return found + [one for one, is_so in zip(INSTANCE_COLUMNS, empty, strict=True) if is_so]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """A text over several lines, none of whose words is broken."""
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _least(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """How wide each column is at least: as its longest word, or number with its unit."""
    return [
        max(
            (
                len(word)
                for number, cell in enumerate((name, *(row[index] for row in rows)))
                for word in ([cell] if number and name in _UNBROKEN else cell.split())
            ),
            default=0,
        )
        for index, name in enumerate(columns)
    ]


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], most: int, least: Sequence[int]
) -> list[int]:
    """How wide each column is: as its widest cell, the widest ones less where there is no room."""
    widths = [
        max(len(name), *(len(row[index]) for row in rows)) if rows else len(name)
        for index, name in enumerate(columns)
    ]
    while not _is_within(widths, most):
        wide = [at for at, width in enumerate(widths) if width > least[at]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _is_within(widths: Sequence[int], most: int) -> bool:
    return sum(widths) + len(_GAP) * (len(widths) - 1) <= most


def _folded(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    if all(len(cell) <= width for cell, width in zip(row, widths, strict=True)):
        yield list(row)
        return
    cells = [
        textwrap.wrap(cell, width, break_on_hyphens=any(len(one) > width for one in cell.split()))
        or [""]
        for cell, width in zip(row, widths, strict=True)
    ]
    for index in range(max(map(len, cells))):
        yield [lines[index] if index < len(lines) else "" for lines in cells]


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    done = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return _GAP.join(done).rstrip()


def _get(content: object, *keys: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value below some keys, or None where one of them is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content
