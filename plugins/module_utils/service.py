# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Systemd units: what they are doing, and how they are brought to what is wanted."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import (
    NOT_FOUND,
    CommandResult,
    run,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text, write_atomic
from ansible_collections.llmetal.inference.plugins.module_utils.gpu_containers import refuse_reload

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@-]{1,200}\.(service|timer|path|socket|target|mount)\Z")
_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "MainPID",
    "NRestarts",
    "Result",
    "ExecMainStatus",
    "ConditionResult",
    "ConditionTimestampMonotonic",
    "NeedDaemonReload",
    "InactiveExitTimestampMonotonic",
)
_MARK = "# Started again when one of these changes:"
_MARK_LENGTH = 16
_RELOADS = {"reload", "remove", "enable", "disable"}
"""Steps in which systemd reads its units anew."""
_QUERY_TIMEOUT = 30.0


@dataclass(frozen=True)
class UnitState:
    """A unit as its manager sees it."""

    load: str = "not-found"
    active: str = "inactive"
    sub: str = "dead"
    enabled: str = ""
    main_pid: int = 0
    restarts: int = 0
    result: str = ""
    exit_status: int = 0
    condition_failed: bool = False
    needs_reload: bool = False
    started_us: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it is up or on its way up."""
        return self.active in {"active", "activating", "reloading"}

    @property
    def is_failed(self) -> bool:
        """Whether the manager has given it up."""
        return self.active == "failed"

    @property
    def is_masked(self) -> bool:
        """Whether somebody has forbidden it to start."""
        return self.load == "masked"

    @property
    def is_enabled(self) -> bool:
        """Whether it starts at boot (at login, for a user's unit)."""
        return self.enabled in {"enabled", "enabled-runtime", "alias"}


@dataclass(frozen=True)
class UnitSpec:
    """A unit as it should be."""

    name: str
    content: str = ""
    state: str = "started"
    enabled: bool = True
    restart_on: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The unit file, with what else must start the unit again as its last line."""
        content = self.content if self.content.endswith("\n") else f"{self.content}\n"
        if not self.restart_on:
            return content
        return f"{content}{_MARK} {' '.join(self.restart_on)}\n"

    def check(self) -> None:
        """Refuse what can be no unit.

        Raises:
            LlmetalError: the name or the text is none of a unit.
        """
        if not _UNIT_NAME.match(self.name):
            raise LlmetalError(
                what="this is not the name of a systemd unit",
                where=repr(self.name),
                fix="use a name such as llmetal-chat.service",
            )
        if self.state != "absent" and not re.search(r"^\[\w+\]", self.content, re.MULTILINE):
            raise LlmetalError(
                what="the unit has no content",
                where=self.name,
                fix="give the text of the unit file",
            )


@dataclass(frozen=True)
class Manager:
    """The systemd that a unit belongs to."""

    scope: str = "system"
    unit_dir: str = ""
    timeout: float = 120

    @property
    def folder(self) -> Path:
        """Where unit files live."""
        if self.unit_dir:
            return Path(self.unit_dir)
        if self.scope == "user":
            base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
            return Path(base) / "systemd" / "user"
        return Path("/etc/systemd/system")

    def systemctl(self, *arguments: str, timeout: float | None = None) -> CommandResult:
        """Run systemctl against this manager."""
        scope = ["--user"] if self.scope == "user" else []
        return run(
            ["systemctl", "--no-ask-password", *scope, *arguments],
            timeout=timeout or self.timeout,
            env=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        """The bus of the user's manager: a session may know none, or that of another."""
        runtime = Path(f"/run/user/{os.getuid()}")
        if self.scope != "user" or not runtime.is_dir():
            return {}
        return {
            "XDG_RUNTIME_DIR": str(runtime),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus",
        }

    def state_of(self, name: str) -> UnitState | None:
        """What a unit does; None where no manager answers."""
        answer = self.systemctl(
            "show", f"--property={','.join(_PROPERTIES)}", "--", name, timeout=_QUERY_TIMEOUT
        )
        return parse_show(answer.stdout) if answer.ok else None

    def log_tail(self, name: str, lines: int = 20) -> list[str]:
        """The unit's last lines in the journal."""
        unit = "--user-unit" if self.scope == "user" else "--unit"
        answer = run(
            ["journalctl", f"{unit}={name}", f"--lines={lines}", "--output=cat", "--no-pager"],
            timeout=_QUERY_TIMEOUT,
        )
        return answer.stdout.splitlines() if answer.ok else []


@dataclass(frozen=True)
class Comparison:
    """The part of a unit's state that is compared before and after."""

    sha256: str | None
    running: bool
    enabled: bool
    up_to_date: bool


def parse_show(text: str) -> UnitState:
    """Read what `systemctl show` printed."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        values[name] = value

    def number(name: str) -> int:
        digits = values.get(name, "")
        return int(digits) if digits.isdigit() else 0

    return UnitState(
        load=values.get("LoadState", "not-found"),
        active=values.get("ActiveState", "inactive"),
        sub=values.get("SubState", "dead"),
        enabled=values.get("UnitFileState", ""),
        main_pid=number("MainPID"),
        restarts=number("NRestarts"),
        result=values.get("Result", ""),
        exit_status=number("ExecMainStatus"),
        # The result is "no" as well for a unit that was never asked to start.
        condition_failed=values.get("ConditionResult") == "no"
        and number("ConditionTimestampMonotonic") > 0,
        needs_reload=values.get("NeedDaemonReload") == "yes",
        started_us=number("InactiveExitTimestampMonotonic"),
    )


def link_marks(paths: Sequence[str]) -> list[str]:
    """What links lead to, as digests for `restart_on`; also of links that are not there yet."""
    return [
        hashlib.sha256(f"{path}\0{os.path.realpath(path)}".encode()).hexdigest()[:_MARK_LENGTH]
        for path in paths
    ]


def wall_clock(monotonic_us: int) -> float:
    """Seconds since the epoch at which the monotonic clock showed this."""
    return time.time() - (time.monotonic() - monotonic_us / 1e6)


def compare(spec: UnitSpec, manager: Manager, state: UnitState | None) -> Comparison:
    """What is, in the terms that are compared."""
    path = manager.folder / spec.name
    text = read_text(path)
    seen = state or UnitState()
    digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    up_to_date = not seen.needs_reload
    # A run that died between writing the file and the restart leaves a unit older than its file.
    if seen.is_running and text is not None:
        up_to_date = up_to_date and wall_clock(seen.started_us) >= path.stat().st_mtime
    return Comparison(digest, seen.is_running, seen.is_enabled, up_to_date)


def wanted(spec: UnitSpec) -> Comparison:
    """What should be, in the terms that are compared."""
    if spec.state == "absent":
        return Comparison(None, running=False, enabled=False, up_to_date=True)
    digest = hashlib.sha256(spec.text.encode()).hexdigest()
    running = spec.state == "started"
    return Comparison(digest, running=running, enabled=spec.enabled, up_to_date=True)


def actions(before: Comparison, after: Comparison) -> list[str]:
    """The steps from one to the other, in their order."""
    steps = []
    if after.sha256 is None:
        steps += ["stop"] if before.running else []
        steps += ["disable"] if before.enabled else []
        steps += ["remove"] if before.sha256 is not None else []
        return steps
    stale = before.sha256 != after.sha256 or not before.up_to_date
    steps += ["write"] if before.sha256 != after.sha256 else []
    steps += ["reload"] if stale else []
    if before.enabled != after.enabled:
        steps.append("enable" if after.enabled else "disable")
    if not after.running:
        steps += ["stop"] if before.running else []
    elif not before.running:
        steps.append("start")
    elif stale:
        steps.append("restart")
    return steps


def apply(spec: UnitSpec, manager: Manager, steps: Sequence[str]) -> None:
    """Take the steps.

    Raises:
        LlmetalError: the manager refuses one; its reason and the unit's last words are in it. Or
            containers hold GPUs that a reload would take from them; then nothing was done.
    """
    if manager.scope == "system" and _RELOADS & set(steps):
        refuse_reload()
    for step in steps:
        _take(step, spec, manager)


def _take(step: str, spec: UnitSpec, manager: Manager) -> None:
    path = manager.folder / spec.name
    try:
        if step == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, spec.text, mode=0o644)
        elif step == "remove":
            path.unlink()
            _ask(spec, manager, "daemon-reload")
            manager.systemctl("reset-failed", spec.name)
        elif step == "reload":
            _ask(spec, manager, "daemon-reload")
        else:
            _change(spec, manager, step)
    except OSError as error:
        raise LlmetalError(
            what="the unit file cannot be written",
            where=str(path),
            why=error.strerror or str(error),
            fix="check the free room and the owner of the folder",
        ) from error


def _change(spec: UnitSpec, manager: Manager, step: str) -> None:
    if step in {"start", "restart"}:
        # A unit that failed too often may not start until it is forgiven.
        manager.systemctl("reset-failed", spec.name)
    _ask(spec, manager, step)
    if step not in {"start", "restart"}:
        return
    state = manager.state_of(spec.name)
    if state is not None and state.active == "inactive":
        raise LlmetalError(
            what="the unit did not start" if state.condition_failed else "the unit ended at once",
            where=spec.name,
            why="a Condition line of the unit is not met" if state.condition_failed else "",
            fix="see `systemctl status` of the unit; for a GPU service load the driver (reboot),"
            " then run again",
        )


def _ask(spec: UnitSpec, manager: Manager, verb: str) -> None:
    """Have the manager do one thing."""
    target = [] if verb == "daemon-reload" else [spec.name]
    answer = manager.systemctl(verb, *target)
    if answer.ok:
        return
    lines = manager.log_tail(spec.name, 5) if target and verb in {"start", "restart"} else []
    raise LlmetalError(
        what=f"systemctl {verb} failed",
        where=spec.name,
        why="; ".join(filter(None, [answer.tail(3), *lines])),
        fix=f"see `journalctl --unit {spec.name}` on the host",
    )


def require_manager(spec: UnitSpec, manager: Manager, state: UnitState | None) -> None:
    """Refuse to change units where no systemd answers, or somebody has masked the unit.

    Raises:
        LlmetalError: either of these.
    """
    if state is None:
        answer = manager.systemctl("show", "--property=Version", timeout=_QUERY_TIMEOUT)
        missing = answer.rc == NOT_FOUND
        raise LlmetalError(
            what=f"no systemd {manager.scope} manager answers",
            where=spec.name,
            why="systemctl is not installed" if missing else answer.tail(2),
            fix="plan this host again: a host without systemd runs its services supervised",
        )
    if state.is_masked:
        raise LlmetalError(
            what="the unit is masked",
            where=spec.name,
            fix=f"somebody forbade it to start; allow it with `systemctl unmask {spec.name}`",
        )
