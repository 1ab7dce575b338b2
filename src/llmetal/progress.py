# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site run has done so far: Ansible's events made into ours, and counted.

Pure: the same events give the same state. The displays (display.py) show it, and `--json` prints
its events one a line (docs/commands.md lists them).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXIT_DONE = 0
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_FAILED = 4
EXIT_SIGNAL = 128
"""Added to the number of the signal that ended a run, as a shell does."""

EXIT_CODE_KEY = "llmetal_exit_code"
"""The result key by which a validating or planning task says which exit status it means."""

STAGES = ("Validate", "Survey", "Resolve", "Plan", "Converge", "Prove", "Report")

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOTE = re.compile(r"\[(?P<level>WARNING|ERROR|DEPRECATION WARNING)\]:?\s*|(?P<error>ERROR!)\s*")
_RESULTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}
_TAIL_LINES = 12
_CAUSE_LINES = 40
_RC_ANSIBLE = 8
"""The highest exit status that ansible-playbook chooses itself, crashes apart."""
_RC_OPTIONS = 5
"""The exit status of ansible-playbook for arguments that it does not know."""


@dataclass(frozen=True)
class Event:
    """Something that happened; `kind` is its name in JSON."""

    kind: ClassVar[str] = ""
    elapsed: float

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object."""
        return {"event": self.kind, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class StageStarted(Event):
    """A stage begins."""

    kind: ClassVar[str] = "stage_start"
    stage: str


@dataclass(frozen=True)
class StageEnded(Event):
    """A stage is over: another one begins, or the run ends."""

    kind: ClassVar[str] = "stage_end"
    stage: str
    seconds: float
    ok: bool


@dataclass(frozen=True)
class TaskStarted(Event):
    """A task begins on the hosts of its play."""

    kind: ClassVar[str] = "task_start"
    stage: str
    role: str
    task: str
    action: str


@dataclass(frozen=True)
class TaskResult(Event):
    """One host is done with a task.

    The status is ok, changed, skipped, failed, unreachable or ignored.
    """

    kind: ClassVar[str] = "task_result"
    stage: str
    role: str
    task: str
    host: str
    status: str
    seconds: float
    message: str


@dataclass(frozen=True)
class TaskEnded(Event):
    """All hosts are done with a task."""

    kind: ClassVar[str] = "task_end"
    stage: str
    role: str
    task: str
    action: str
    seconds: float
    hosts: dict[str, str]
    """The status of each host."""


@dataclass(frozen=True)
class Diff(Event):
    """What a task changes in a file of a host, as a unified diff."""

    kind: ClassVar[str] = "diff"
    host: str
    text: str


@dataclass(frozen=True)
class Note(Event):
    """What Ansible itself has to say; the level is warning, error, deprecation or line."""

    kind: ClassVar[str] = "note"
    level: str
    text: str


@dataclass(frozen=True)
class Failure(Event):
    """A task that failed on a host, with what is known of the cause.

    The status is failed, unreachable, refused (by the plan) or invalid (the inventory).
    """

    kind: ClassVar[str] = "failure"
    stage: str
    role: str
    task: str
    host: str
    status: str
    what: str
    where: str
    why: str
    fix: str


@dataclass(frozen=True)
class Proof(Event):
    """Something that a module found proved, or not."""

    kind: ClassVar[str] = "proof"
    host: str
    name: str
    ok: bool
    detail: dict[str, Any]


@dataclass
class HostCount:
    """How the tasks of one host ended."""

    ok: int = 0
    changed: int = 0
    skipped: int = 0
    failed: int = 0
    unreachable: int = 0
    ignored: int = 0

    def add(self, status: str) -> None:
        """Count one result; a change is an ok too, as in Ansible's recap."""
        if status == "changed":
            self.ok += 1
        setattr(self, status, getattr(self, status) + 1)


@dataclass
class Stage:
    """One stage: when it began, how long it took, whether anything in it failed."""

    name: str
    started: float
    seconds: float = 0.0
    ended: bool = False
    ok: bool = True
    changed: int = 0


@dataclass
class Task:
    """The task that runs now."""

    stage: str
    role: str
    name: str
    action: str
    started: float
    waiting: set[str] = field(default_factory=set)
    hosts: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The role and the name, as in Ansible's own output."""
        return f"{self.role}: {self.name}" if self.role else self.name


@dataclass
class Progress:
    """A run so far. `take` brings it on by one of Ansible's events."""

    check: bool = False
    """Whether it only says what it would change; what is not there yet can prove nothing."""
    hosts: dict[str, HostCount] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    task: Task | None = None
    failures: list[Failure] = field(default_factory=list)
    changes: list[TaskResult] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    """The last one of each name and host."""
    notes: list[Note] = field(default_factory=list)
    results: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    """The last result of each of our own modules and actions: name, then host."""
    exit_codes: set[int] = field(default_factory=set)
    recap: Mapping[str, Any] | None = None
    explained: bool = False
    """Whether the cause of a run without a failed task was taken from Ansible's notes."""

    def take(self, raw: Mapping[str, Any], elapsed: float) -> list[Event]:
        """Bring the state on by one event of Ansible; what it means, as our own events."""
        return list(self._events(raw, elapsed))

    @property
    def has_results(self) -> bool:
        """Whether any task came to a result on any host."""
        return any(any(vars(count).values()) for count in self.hosts.values())

    def end(
        self, elapsed: float, *, interrupted: bool = False, rc: int | None = None
    ) -> list[Event]:
        """Close what is open, when Ansible has ended, with that status where it matters."""
        unexplained: list[Event] = []
        if not interrupted and rc is not None and not self.failures:
            unexplained = list(self._unexplained(elapsed, rc))
        if (interrupted or unexplained) and self.stages and not self.stages[-1].ended:
            self.stages[-1].ok = False
        return [*self._end_task(elapsed), *unexplained, *self._end_stage(elapsed)]

    def _unexplained(self, elapsed: float, rc: int) -> Iterator[Event]:
        """The failure of a run in which no task failed: Ansible's notes are all there is."""
        if rc == 0 and self.has_results:
            return
        stage = self.stages[-1].name if self.stages else ""
        if rc == 0:
            what, why = "no task ran on any host", ""
            fix = "see that --limit and the inventory name hosts, and that no tags are asked for"
        else:
            said = [note for note in self.notes if note.level != "deprecation"]
            chosen = [note.text for note in said if note.level == "error"] or [
                note.text for note in said if note.level == "line"
            ][:1]
            what = "\n".join(chosen) or f"ansible-playbook ended with status {rc}"
            rest = [note.text for note in said if note.text not in chosen]
            why, fix = "\n".join(rest[:_CAUSE_LINES]), ""
        status = "invalid" if self.exit_code(rc) == EXIT_USAGE else "failed"
        self.explained = rc != 0
        failure = Failure(elapsed, stage, "", "", "", status, what, "", why, fix)
        self.failures.append(failure)
        yield failure

    def exit_code(self, rc: int, signal: int | None = None) -> int:
        """The exit status of llmetal for that of ansible-playbook."""
        if signal is not None:
            return EXIT_SIGNAL + signal
        if rc == 0:
            return EXIT_DONE if self.has_results else EXIT_USAGE
        if EXIT_USAGE in self.exit_codes:
            return EXIT_USAGE
        if EXIT_REFUSED in self.exit_codes:
            return EXIT_REFUSED
        # An inventory or an argument that Ansible refused stops it before any result.
        refused = not self.has_results and 0 < rc <= _RC_ANSIBLE
        if refused or rc == _RC_OPTIONS or not (self.stages or self.recap):
            return EXIT_USAGE
        return EXIT_FAILED

    def _events(self, raw: Mapping[str, Any], elapsed: float) -> Iterator[Event]:
        name = str(raw.get("event", ""))
        data: Mapping[str, Any] = raw.get("event_data") or {}
        if name == "playbook_on_play_start":
            yield from self._start_play(str(data.get("name", "")), elapsed)
        elif name in {"playbook_on_task_start", "playbook_on_handler_task_start"}:
            yield from self._start_task(data, elapsed)
        elif name == "runner_on_start":
            self._start_host(str(data.get("host", "")))
        elif name in _RESULTS:
            yield from self._result(_RESULTS[name], data, elapsed)
        elif name == "runner_on_file_diff":
            text = plain(str(raw.get("stdout", "")))
            if text:
                yield Diff(elapsed, str(data.get("host", "")), text)
        elif name == "playbook_on_stats":
            self.recap = data
            self._settle(data)
        elif name in {"verbose", "", "error", "warning", "deprecated"}:
            yield from self._note(str(raw.get("stdout", "")), elapsed)

    def _start_play(self, title: str, elapsed: float) -> Iterator[Event]:
        yield from self._end_task(elapsed)
        stage = title.partition(" | ")[0].strip() or "Run"
        if self.stages and not self.stages[-1].ended and self.stages[-1].name == stage:
            return
        yield from self._end_stage(elapsed)
        self.stages.append(Stage(stage, elapsed))
        yield StageStarted(elapsed, stage)

    def _start_task(self, data: Mapping[str, Any], elapsed: float) -> Iterator[Event]:
        yield from self._end_task(elapsed)
        role = str(data.get("role") or "").rpartition(".")[2]
        title = str(data.get("name") or data.get("task") or "")
        if role:
            title = re.sub(rf"^(\S+\.)?{re.escape(role)} : ", "", title)
        stage = self.stages[-1].name if self.stages else "Run"
        action = str(data.get("resolved_action") or data.get("task_action") or "")
        self.task = Task(stage, role, title, action, elapsed)
        yield TaskStarted(elapsed, stage, role, title, action)

    def _start_host(self, host: str) -> None:
        self.hosts.setdefault(host, HostCount())
        if self.task is not None:
            self.task.waiting.add(host)

    def _result(self, status: str, data: Mapping[str, Any], elapsed: float) -> Iterator[Event]:
        host = str(data.get("host", ""))
        result: Mapping[str, Any] = data.get("res") or {}
        if status == "ok" and result.get("changed"):
            status = "changed"
        if status == "failed" and data.get("ignore_errors"):
            status = "ignored"
        task = self.task
        if task is None:  # a result always follows the start of its task
            return
        task.waiting.discard(host)
        task.hosts[host] = status
        self.hosts.setdefault(host, HostCount()).add(status)
        if task.action.startswith("llmetal."):
            self.results.setdefault(task.action, {})[host] = result
        done = TaskResult(
            elapsed,
            task.stage,
            task.role,
            task.name,
            host,
            status,
            float(data.get("duration") or 0.0),
            message_of(task.action, result),
        )
        yield done
        if status == "changed":
            self.changes.append(done)
            self.stages[-1].changed += 1
        if status in {"failed", "unreachable"}:
            failure = failure_of(task, host, result, elapsed, unreachable=status == "unreachable")
            if isinstance(result.get(EXIT_CODE_KEY), int):
                self.exit_codes.add(int(result[EXIT_CODE_KEY]))
            self.failures.append(failure)
            self.stages[-1].ok = False
            yield failure
        yield from self._proofs(host, result, elapsed)
        for warning in result.get("warnings") or []:
            yield from self._note(f"[WARNING]: {warning_text(warning)}", elapsed)

    def _proofs(self, host: str, result: Mapping[str, Any], elapsed: float) -> Iterator[Event]:
        for one in (result, *(result.get("results") or [])):
            proof = one.get("proof") if isinstance(one, dict) else None
            if isinstance(proof, dict):
                detail = {k: v for k, v in proof.items() if k not in {"name", "ok"}}
                name, ok = str(proof.get("name", "")), bool(proof.get("ok"))
                proved = Proof(elapsed, host, name, ok, detail)
                kept = [p for p in self.proofs if (p.host, p.name) != (host, name)]
                self.proofs = [*kept, proved]
                yield proved

    def _note(self, stdout: str, elapsed: float) -> Iterator[Event]:
        text = plain(stdout)
        if not text:
            return
        level = "line"
        if found := _NOTE.match(text):
            level = {None: "error", "DEPRECATION WARNING": "deprecation"}.get(
                found["level"], str(found["level"]).lower()
            )
            text = text[found.end() :].strip()
        note = Note(elapsed, level, text)
        if any((note.level, note.text) == (old.level, old.text) for old in self.notes):
            return
        self.notes.append(note)
        yield note

    def _end_task(self, elapsed: float) -> Iterator[Event]:
        task, self.task = self.task, None
        if task is not None:
            seconds = round(elapsed - task.started, 3)
            names = (task.stage, task.role, task.name, task.action)
            yield TaskEnded(elapsed, *names, seconds, task.hosts)

    def _end_stage(self, elapsed: float) -> Iterator[Event]:
        if self.stages and not self.stages[-1].ended:
            stage = self.stages[-1]
            stage.ended, stage.seconds = True, round(elapsed - stage.started, 3)
            yield StageEnded(elapsed, stage.name, stage.seconds, stage.ok)

    def _settle(self, recap: Mapping[str, Any]) -> None:
        """Forget the failures that a rescue made good: the recap does not count them.

        A host that failed for good did so last, so that its last failures are the ones to keep.
        """
        failed, dark = recap.get("failures") or {}, recap.get("dark") or {}
        bad = {**dark, **failed}
        for host, count in self.hosts.items():
            count.failed, count.unreachable = failed.get(host, 0), dark.get(host, 0)
        kept: list[Failure] = []
        for failure in reversed(self.failures):
            if sum(failure.host == one.host for one in kept) < int(bad.get(failure.host, 0)):
                kept.insert(0, failure)
        self.failures = kept
        failed_stages = {failure.stage for failure in self.failures}
        for stage in self.stages:
            stage.ok = stage.name not in failed_stages


def plain(text: str) -> str:
    """Text without colours and carriage returns."""
    return _ANSI.sub("", text).replace("\r", "").strip()


def warning_text(warning: object) -> str:
    """A warning of a result: a text, or (from a newer core) an object that carries it."""
    if isinstance(warning, dict):
        event = warning.get("event")
        source = event if isinstance(event, dict) else warning
        return str(source.get("msg") or source.get("message") or warning)
    return str(warning)


def message_of(action: str, result: Mapping[str, Any]) -> str:
    """What a result has to say to a person: `debug`'s message, and the `msg` of a failure."""
    if "censored" in result:
        return ""
    said = action.rpartition(".")[2] == "debug"
    if not (said or result.get("failed")):
        return ""
    items = [item for item in result.get("results") or [] if isinstance(item, dict)]
    lines: list[object] = []
    for one in items if said and items else [result]:
        message = one.get("msg")
        lines += message if isinstance(message, list) else [] if message is None else [message]
    return "\n".join(str(line) for line in lines)


def failure_of(
    task: Task, host: str, result: Mapping[str, Any], elapsed: float, *, unreachable: bool
) -> Failure:
    """Why a task failed: the module's own words, in full."""
    status, where, why = "failed", "", ""
    if unreachable:
        status, where, why = "unreachable", host, _reason(result)
        if "temporary directory" in why:
            what = "the host cannot be written"
            fix = "make room on its disk, and let the inventory's user write its home folder there"
        else:
            what = "the host does not answer"
            fix = (
                "see that it is up and that `ansible -m ansible.builtin.ping` reaches it with the "
                "inventory's address, user and key, then run again"
            )
    elif EXIT_CODE_KEY in result:
        status = "refused" if result[EXIT_CODE_KEY] == EXIT_REFUSED else "invalid"
        what, fix = _reason(result), ""
    elif "what" in result:
        what, where, why, fix = (str(result.get(k) or "") for k in ("what", "where", "why", "fix"))
    else:
        what, why = _reason(result), _output(result)
        fix = "see the message; the next run goes on from here"
    return Failure(elapsed, task.stage, task.role, task.name, host, status, what, where, why, fix)


def _reason(result: Mapping[str, Any]) -> str:
    """The message of a failed result; for a loop, those of the items that failed."""
    if "censored" in result:
        return "its result is hidden (no_log)"
    items = [
        str(item.get("msg", ""))
        for item in result.get("results") or []
        if isinstance(item, dict) and (item.get("failed") or "exception" in item)
    ]
    text = "\n".join(dict.fromkeys(items)) or str(result.get("msg") or "it failed")
    if "non-zero return code" in text and "cmd" in result:
        command = result["cmd"]
        shown = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        text = f"`{shown}` ended with status {result.get('rc')}"
    return text.strip().removeprefix("Task failed: ")


def _output(result: Mapping[str, Any]) -> str:
    """What a command that failed said last."""
    text = str(result.get("stderr") or "").strip() or str(result.get("stdout") or "").strip()
    if not text:
        text = str(result.get("module_stderr") or result.get("module_stdout") or "").strip()
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
