# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a run: live on a terminal, plain lines elsewhere, JSON for machines."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Protocol

from llmetal import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from rich.console import Console, JustifyMethod, RenderableType
    from rich.live import Live
    from rich.table import Table

    from llmetal.progress import Event, Progress

_WIDTH = 110
"""Columns of the tables where there is no terminal to ask."""

_QUIET_SECONDS = 60.0
"""A line says that a task still runs after each so many seconds without another."""

_MANY = 4
"""Up to so many hosts are named; more are counted."""

_BOOKKEEPING = frozenset(
    {
        "ansible.builtin.include_role",
        "ansible.builtin.include_tasks",
        "ansible.builtin.validate_argument_spec",
    }
)
"""Actions that are worth a line only where they fail, or with -v."""

_STYLES = {
    "ok": "green",
    "changed": "yellow",
    "skipped": "dim",
    "failed": "bold red",
    "unreachable": "bold red",
    "ignored": "magenta",
}
_SPINNER_STYLE = "cyan"


class Display(Protocol):
    """Where a run is shown."""

    def begin(self, title: str) -> None:
        """Say what is going to run."""

    def show(self, event: Event, state: Progress) -> None:
        """Show an event; the state has taken it already."""

    def tick(self, state: Progress, elapsed: float) -> None:
        """Show that time passes."""

    def end(self, state: Progress, result: Mapping[str, Any], *, brief: bool = False) -> None:
        """Show how it ended; in brief, nothing of a run that ended well."""

    def close(self) -> None:
        """Give the terminal back."""


class JsonDisplay:
    """One JSON object a line on standard output, flushed."""

    def begin(self, title: str) -> None:
        """Print the event `run_start`."""
        self._print({"event": "run_start", "elapsed": 0.0, "title": title})

    def show(self, event: Event, state: Progress) -> None:
        """Print the event."""
        del state
        self._print(event.as_json())

    def tick(self, state: Progress, elapsed: float) -> None:
        """Print nothing: machines have clocks."""

    def end(self, state: Progress, result: Mapping[str, Any], *, brief: bool = False) -> None:
        """Print the event `run_end`."""
        del state, brief
        self._print({"event": "run_end", **result})

    def close(self) -> None:
        """Nothing was taken."""

    @staticmethod
    def _print(item: Mapping[str, Any]) -> None:
        encoding = (sys.stdout.encoding or "utf-8").lower().replace("_", "-")
        plain = encoding not in {"utf-8", "utf8"}  # else characters would be lost
        sys.stdout.write(json.dumps(item, ensure_ascii=plain, default=str) + "\n")
        sys.stdout.flush()


class _Text:
    """What the live and the plain display have in common."""

    def __init__(self, console: Console, verbosity: int) -> None:
        self.console = console
        self.verbosity = verbosity

    def line(self, text: str, style: str = "") -> None:
        """Print a line as it is: no markup, no wrapping inside words of a path."""
        self.console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str) -> None:
        """Say what is going to run."""
        self.line(title, "bold")

    def is_worth_a_line(self, event: progress.TaskEnded) -> bool:
        """Whether a task that is over did anything that a person looks for."""
        statuses = set(event.hosts.values())
        quiet = {"ok", "skipped"} if event.action in _BOOKKEEPING else {"skipped"}
        return bool(self.verbosity or statuses - quiet)

    def common(self, event: Event, state: Progress) -> None:
        """Print what both displays print the same way."""
        if isinstance(event, progress.TaskResult):
            if event.message and event.status in {"ok", "changed"}:
                self.line(f"  {event.host}: {event.message}")
        elif isinstance(event, progress.Diff):
            self.line(_indent(event.text))
        elif isinstance(event, progress.Note):
            if event.level in {"warning", "error"} or self.verbosity:
                style = "red" if event.level == "error" else "magenta"
                self.line(f"  {event.level}: {event.text}", style)
        elif isinstance(event, progress.Failure):
            self.failure(event)
        elif isinstance(event, progress.Proof):
            converging = bool(state.stages) and state.stages[-1].name == "Converge"
            if state.check or (event.ok and converging):
                return  # the stage Prove says it again, for all of the host
            word, style = ("proved", "green") if event.ok else ("not proved", "bold red")
            self.line(f"  {event.host}: {word}: {event.name}", style)

    def failure(self, failure: progress.Failure) -> None:
        """Print a failure: the host, the stage, the cause, what to do."""
        if failure.host and failure.status in {
            "refused",
            "invalid",
        }:  # its text names hosts, causes, ways out
            self.line(f"{failure.status} in {failure.stage}:", "bold red")
            self.line(failure.what)
            return
        if failure.host:
            title = f"{failure.role}: {failure.task}" if failure.role else failure.task
            where = f"{failure.host} in {failure.stage}, {title}"
        else:  # no task failed, but Ansible itself
            where = f"in {failure.stage}" if failure.stage else "before the first stage"
        self.line(f"{failure.status}: {where}", "bold red")
        parts = (
            ("what", failure.what),
            ("where", failure.where),
            ("why", failure.why),
            ("what to do", failure.fix),
        )
        for label, text in parts:
            if text:
                head, *rest = text.splitlines()
                self.line(f"  {label}: {head}")
                for more in rest:
                    self.line(f"    {more}")

    def end(self, state: Progress, result: Mapping[str, Any], *, brief: bool = False) -> None:
        """Print the tables and the last line."""
        if brief and not result["exit_code"]:
            return
        if state.stages:
            self.console.print()
            self.console.print(stage_table(state))
            if state.hosts:
                self.console.print(hosts_table(state))
        self._changes(state, check=bool(result.get("check")))
        if len(state.failures) > 1 or (state.failures and len(state.hosts) > 1):
            self.console.print()
            for failure in state.failures:
                self.failure(failure)
        if result.get("report"):
            self.line(f"report: {result['report']}")
        self.line(str(result["summary"]), "bold red" if result["exit_code"] else "bold green")

    def _changes(self, state: Progress, *, check: bool) -> None:
        if not state.changes or not (check or self.verbosity):
            return
        self.line("\nwould change:" if check else "\nchanged:", "bold")
        for change in state.changes:
            title = f"{change.role}: {change.task}" if change.role else change.task
            self.line(f"  {change.host}  {title}", "yellow")


class PlainDisplay(_Text):
    """Lines, for a pipe or a log: one when a stage begins, one when a task is over."""

    def __init__(self, console: Console, verbosity: int) -> None:
        """Print on this console."""
        super().__init__(console, verbosity)
        self._last = 0.0

    def begin(self, title: str) -> None:
        """Say what is going to run, and start to count."""
        super().begin(title)
        self._last = 0.0

    def show(self, event: Event, state: Progress) -> None:
        """Print a line for the event, if it is worth one."""
        self._last = event.elapsed
        if isinstance(event, progress.StageStarted):
            self.line(f"{_clock(event.elapsed)} {event.stage}", "bold")
        elif isinstance(event, progress.StageEnded):
            word = "done" if event.ok else "failed"
            self.line(f"{_clock(event.elapsed)} {event.stage} {word} in {_seconds(event.seconds)}")
        elif isinstance(event, progress.TaskEnded):
            if self.is_worth_a_line(event):
                title = f"{event.role}: {event.task}" if event.role else event.task
                self.line(
                    f"{_clock(event.elapsed)}   {title}: {outcome(event.hosts)}"
                    f" ({_seconds(event.seconds)})"
                )
        else:
            self.common(event, state)
        self.console.file.flush()

    def tick(self, state: Progress, elapsed: float) -> None:
        """Say that a long task still runs."""
        if state.task is None or elapsed - self._last < _QUIET_SECONDS:
            return
        self._last = elapsed
        hosts = ", ".join(sorted(state.task.waiting)) or "all hosts done"
        since = _seconds(elapsed - state.task.started)
        self.line(f"{_clock(elapsed)}   still running: {state.task.title} on {hosts} ({since})")
        self.console.file.flush()

    def close(self) -> None:
        """Nothing was taken."""


class LiveDisplay(_Text):
    """A terminal: what is over stands as lines, what runs is drawn again and again below them."""

    def __init__(self, console: Console, verbosity: int) -> None:
        """Draw on this console."""
        super().__init__(console, verbosity)
        self._live: Live | None = None
        self._drawn = 0.0

    def begin(self, title: str) -> None:
        """Start to draw."""
        from rich.live import Live  # noqa: PLC0415 - other displays do without it

        super().begin(title)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, event: Event, state: Progress) -> None:
        """Print a line for what is over, and draw the rest again."""
        if isinstance(event, progress.StageEnded):
            mark, style = ("✓", "green") if event.ok else ("✗", "bold red")
            self.line(f"{mark} {event.stage}  {_seconds(event.seconds)}", style)
        elif isinstance(event, progress.TaskEnded):
            statuses = set(event.hosts.values())
            if "changed" in statuses or (self.verbosity and statuses):
                title = f"{event.role}: {event.task}" if event.role else event.task
                self.line(f"  {title}: {outcome(event.hosts)} ({_seconds(event.seconds)})")
        else:
            self.common(event, state)
        self.tick(state, event.elapsed)

    def tick(self, state: Progress, elapsed: float) -> None:
        """Draw what runs, a few times a second."""
        if self._live is None or 0 <= elapsed - self._drawn < 0.1:  # noqa: PLR2004 - seconds
            return
        self._drawn = elapsed
        self._live.update(_running(state, elapsed), refresh=True)

    def end(self, state: Progress, result: Mapping[str, Any], *, brief: bool = False) -> None:
        """Stop to draw, and print the summary."""
        self.close()
        super().end(state, result, brief=brief)

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def make(*, as_json: bool, verbosity: int) -> JsonDisplay | PlainDisplay | LiveDisplay:
    """The display that fits where standard output goes."""
    if as_json:
        return JsonDisplay()
    console = make_console()
    live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
    return (LiveDisplay if live else PlainDisplay)(console, verbosity)


def make_console() -> Console:
    """A console on standard output; without a terminal, with a width of its own."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and --json does without it

    class OurConsole(Console):
        """One that hands on a closed pipe (rich itself would end the process, with status 1)."""

        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - rich calls it where it handles the BrokenPipeError

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH
    return OurConsole(width=width, highlight=False, emoji=False)


def stage_table(state: Progress) -> Table:
    """The stages with their seconds."""
    table = new_table("stage", "seconds", "changed", "result", right=(1, 2))
    for stage in state.stages:
        word = "ok" if stage.ok else "failed"
        row = (stage.name, f"{stage.seconds:.1f}", str(stage.changed), word)
        table.add_row(*row, style=None if stage.ok else "red")
    return table


def hosts_table(state: Progress) -> Table:
    """The hosts with the number of tasks that ended each way."""
    from rich.text import Text  # noqa: PLC0415 - as above

    names = ("ok", "changed", "skipped", "failed", "unreachable")
    table = new_table("host", *names, right=range(1, len(names) + 1))
    for host, count in sorted(state.hosts.items()):
        bad = count.failed or count.unreachable
        table.add_row(
            Text(host), *(str(getattr(count, n)) for n in names), style="red" if bad else None
        )
    return table


def new_table(*columns: str, right: Iterable[int] = ()) -> Table:
    """An empty table in the style of all ours."""
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = set(right)
    for index, column in enumerate(columns):
        justify: JustifyMethod = "right" if index in numbers else "left"
        table.add_column(Text(column), justify=justify, overflow="fold")
    return table


def outcome(hosts: Mapping[str, str]) -> str:
    """Which hosts ended a task how: "changed gpu1; ok gw1"."""
    if not hosts:
        return "no host"
    parts = []
    for status in _STYLES:
        names = sorted(host for host, ended in hosts.items() if ended == status)
        if names:
            shown = ", ".join(names) if len(names) <= _MANY else f"{len(names)} hosts"
            parts.append(f"{status} {shown}")
    return "; ".join(parts)


def _running(state: Progress, elapsed: float) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    lines: list[RenderableType] = []
    if state.stages and not state.stages[-1].ended:
        stage = state.stages[-1]
        text = f"▶ {stage.name}  {_seconds(elapsed - stage.started)}"
        lines.append(Text(text, style=f"bold {_SPINNER_STYLE}"))
    if state.task is not None:
        task = state.task
        waiting = sorted(task.waiting)
        on = ", ".join(waiting) if len(waiting) <= _MANY else f"{len(waiting)} hosts"
        lines.append(Text(f"  {task.title}  {_seconds(elapsed - task.started)}  {on}"))
    for host, count in sorted(state.hosts.items())[:20]:
        row = Text(f"    {host:<24} ")
        row.append(f"ok {count.ok}", style="green")
        row.append(f"  changed {count.changed}", style="yellow" if count.changed else "dim")
        bad = count.failed + count.unreachable
        row.append(f"  failed {bad}", style="bold red" if bad else "dim")
        lines.append(row)
    return Group(*lines)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _clock(elapsed: float) -> str:
    return f"[{elapsed:7.1f} s]"


def _seconds(seconds: float) -> str:
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
