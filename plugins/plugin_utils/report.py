# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a site run: what was done, versions, proofs, refusals, failures, seconds.

`Report` takes what happens, in its order, and says it as data; the renderers make Markdown and one
HTML page of that data. None of it knows Ansible; the callback plugin does.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import jinja2
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SCHEMA = 1
STAGES = ("Validate", "Survey", "Resolve", "Plan", "Converge", "Prove", "Report")

_EXIT_INVENTORY = 2
_EXIT_REFUSED = 3
_TAIL_LINES = 12


@dataclass
class Stage:
    """A stage, and how long it took by the clock."""

    name: str
    began: float
    seconds: float = 0.0
    ok: bool = True


@dataclass(frozen=True)
class Task:
    """The task that a result belongs to."""

    role: str
    name: str
    is_plan: bool = False


@dataclass
class HostReport:
    """One host in the report."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    changes: list[dict[str, str]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    endpoints: list[dict[str, str]] = field(default_factory=list)
    lock_sha256: str | None = None
    lock_file: str | None = None


class Report:
    """A run, as far as it has come."""

    def __init__(
        self, now: float, *, check: bool, inventory: list[str], limit: str | None = None
    ) -> None:
        """Begin a report.

        Args:
            now: seconds since the epoch.
            check: whether the run changes nothing.
            inventory: the inventories.
            limit: the hosts that it is limited to.
        """
        self.began = self.ended = now
        self.check = check
        self.inventory = inventory
        self.limit = limit
        self.stages: list[Stage] = []
        self.hosts: dict[str, HostReport] = {}
        self.proofs: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.refusals: list[dict[str, Any]] = []
        self.warnings: list[dict[str, Any]] = []
        self.problems: list[dict[str, Any]] = []
        self._codes: set[int] = set()

    def play(self, title: str, now: float) -> None:
        """A play begins; one of another stage ends the stage before."""
        stage = stage_of(title)
        if stage is None or (self.stages and self.stages[-1].name == stage):
            return
        self._close(now)
        self.stages.append(Stage(stage, now))

    def result(self, host: str, task: Task, status: str, result: Mapping[str, Any]) -> None:
        """One host is done with a task.

        Args:
            host: the host.
            task: the task.
            status: ok, changed, failed, unreachable, skipped or ignored.
            result: what the task returned, without what is secret.
        """
        row = self.hosts.setdefault(host, HostReport())
        if status in {"ok", "changed", "ignored"}:
            row.ok += 1
        elif status != "changed":
            setattr(row, status, getattr(row, status) + 1)
        stage = self.stages[-1].name if self.stages else ""
        if status == "changed":
            row.changed += 1
            row.changes.append({"stage": stage, "role": task.role, "task": task.name})
        if status in {"failed", "unreachable"}:
            self._fail(host, stage, task, status, result)
        for proof in () if self.check else _proofs(result):
            detail = {k: v for k, v in proof.items() if k not in {"name", "ok"}}
            self._prove(host, stage, str(proof.get("name", "")), proof, detail)
        if task.is_plan:
            self._plan(result)

    def end(self, now: float) -> None:
        """The run is over."""
        self.ended = now
        self._close(now)

    @property
    def status(self) -> str:
        """How the run ended: done, inventory, refused or failed."""
        if _EXIT_INVENTORY in self._codes:
            return "inventory"
        if _EXIT_REFUSED in self._codes:
            return "refused"
        return "failed" if self.failures else "done"

    def as_dict(self) -> dict[str, Any]:
        """The whole report as data."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "began": _time(self.began),
            "ended": _time(self.ended),
            "seconds": round(self.ended - self.began, 1),
            "check": self.check,
            "inventory": self.inventory,
            "limit": self.limit,
            "stages": [
                {"name": stage.name, "seconds": round(stage.seconds, 1), "ok": stage.ok}
                for stage in self.stages
            ],
            "hosts": {name: asdict(host) for name, host in sorted(self.hosts.items())},
            "proofs": self.proofs,
            "failures": self.failures,
            "refusals": self.refusals,
            "warnings": self.warnings,
            "problems": self.problems,
        }

    def _close(self, now: float) -> None:
        if self.stages and not self.stages[-1].seconds:
            self.stages[-1].seconds = max(now - self.stages[-1].began, 0.001)

    def _fail(
        self, host: str, stage: str, task: Task, status: str, result: Mapping[str, Any]
    ) -> None:
        if self.stages:
            self.stages[-1].ok = False
        code = result.get("llmetal_exit_code")
        if isinstance(code, int):
            self._codes.add(code)
            self.problems += result.get("problems") or []
            self.refusals += result.get("refusals") or []
            return
        said = _unreachable(result) if status == "unreachable" else _said(result)
        where = {"host": host, "stage": stage, "role": task.role, "task": task.name}
        self.failures.append({**where, **said})

    def _prove(
        self, host: str, stage: str, name: str, proof: Mapping[str, Any], detail: dict[str, Any]
    ) -> None:
        """Keep a proof; a later one of the same name replaces it."""
        self.proofs = [row for row in self.proofs if (row["host"], row["name"]) != (host, name)]
        ok = bool(proof.get("ok"))
        self.proofs.append({"host": host, "stage": stage, "name": name, "ok": ok, "detail": detail})

    def _plan(self, result: Mapping[str, Any]) -> None:
        self.warnings += result.get("findings") or []
        for name, planned in (result.get("hosts") or {}).items():
            row = self.hosts.setdefault(str(name), HostReport())
            row.versions = dict(planned["versions"])
            row.endpoints = list(planned["endpoints"])
            row.lock_sha256 = planned["lock_sha256"]
            row.lock_file = planned["lock_file"]


def stage_of(title: str) -> str | None:
    """The stage in a play's name; None where it is a play of something else."""
    stage = title.partition(" | ")[0].strip()
    return stage if stage in STAGES and " | " in title else None


def folder_name(report: Mapping[str, Any]) -> str:
    """The name of a report's folder: when it began, in UTC."""
    return str(report["began"]).replace("-", "").replace(":", "")


def as_json(report: Mapping[str, Any]) -> str:
    """The report as JSON."""
    return json.dumps(report, indent=2, ensure_ascii=False, default=str) + "\n"


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    text = _environment().get_template("report.md.j2").render(report=report)
    return text.rstrip() + "\n"


def as_html(report: Mapping[str, Any]) -> str:
    """The report as one HTML page that needs nothing else."""
    return _environment().get_template("report.html.j2").render(report=report)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.j2",)),
        loader=jinja2.FileSystemLoader(DATA / "templates"),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters: dict[str, Callable[..., str]] = {"cell": _cell, "words": _words, "detail": _detail}
    environment.filters.update(filters)
    return environment


def _cell(value: object) -> str:
    """Text for a cell of a Markdown table."""
    return str(value).replace("|", "\\|").replace("\n", "<br>")


def _words(status: str) -> str:
    """A status as people say it."""
    return {
        "done": "done",
        "inventory": "the inventory is wrong; no host was connected to",
        "refused": "refused; nothing was changed on any host",
        "failed": "failed",
    }[status]


def _detail(detail: Mapping[str, Any]) -> str:
    """What a proof saw, as one line."""
    shown = {key: value for key, value in detail.items() if value not in (None, "", [], {})}
    return ", ".join(f"{key} {_value(value)}" for key, value in shown.items())


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return json.dumps(value, ensure_ascii=False, default=str)


def _proofs(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for one in (result, *(result.get("results") or ())):
        proof = one.get("proof") if isinstance(one, dict) else None
        if isinstance(proof, dict):
            yield proof


def _said(result: Mapping[str, Any]) -> dict[str, str]:
    """What, where, why and fix of a failure: the module's own words where it has them."""
    if "censored" in result:
        return _parts("it failed, and its result is hidden (no_log)", "", "", "")
    failed = [
        one for one in result.get("results") or () if isinstance(one, dict) and one.get("failed")
    ]
    own = failed[0] if failed else result
    if own.get("what"):
        return _parts(*(str(own.get(key) or "") for key in ("what", "where", "why", "fix")))
    output = str(own.get("stderr") or own.get("stdout") or own.get("module_stderr") or "")
    why = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
    fix = "see the message; the next run goes on from here"
    return _parts(str(own.get("msg") or "it failed"), "", why, fix)


def _unreachable(result: Mapping[str, Any]) -> dict[str, str]:
    fix = (
        "see that the host is up and that its address, user and key in the inventory are right, "
        "then run again"
    )
    return _parts("the host does not answer", "", str(result.get("msg") or ""), fix)


def _parts(what: str, where: str, why: str, fix: str) -> dict[str, str]:
    return {"what": what, "where": where, "why": why, "fix": fix}


def _time(seconds: float) -> str:
    moment = dt.datetime.fromtimestamp(seconds, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
