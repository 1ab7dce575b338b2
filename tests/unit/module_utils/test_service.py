# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units: what recorded states mean, and which steps lead where."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import service as subject
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.service import (
    Comparison,
    Manager,
    UnitSpec,
    UnitState,
)

CASES = sorted((Path(__file__).resolve().parents[2] / "fixtures" / "systemctl").glob("*/"))
TEXT = "[Service]\nExecStart=/bin/sleep 60\n"

# A systemd of files: each unit has a state, a start time and an enablement.
FAKE_SYSTEMCTL = f"""#!{sys.executable}
import json, os, pathlib, sys, time
root = pathlib.Path(os.environ["FAKE"])
words = [word for word in sys.argv[1:] if not word.startswith("--")]
(root / "calls").open("a").write(" ".join(words) + "\\n")
state = root / "state.json"
units = json.loads(state.read_text()) if state.exists() else {{}}
verb = words[0]
if os.environ.get("REFUSE") == verb:
    sys.exit("Job for the unit failed.")
unit = units.setdefault(words[-1], {{"ActiveState": "inactive", "UnitFileState": "disabled"}})
if verb == "show":
    for name, value in unit.items():
        print(f"{{name}}={{value}}")
elif verb in ("start", "restart"):
    unit.update(json.loads(os.environ.get("STARTED", '{{"ActiveState": "active"}}')))
    unit["InactiveExitTimestampMonotonic"] = int(time.monotonic() * 1e6)
    unit["MainPID"] = unit.get("MainPID", 0) + 1
elif verb == "stop":
    unit.update(ActiveState="inactive", MainPID=0)
elif verb in ("enable", "disable"):
    unit["UnitFileState"] = verb + "d"
state.write_text(json.dumps(units))
"""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """A systemd that is a script."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (
        ("systemctl", FAKE_SYSTEMCTL),
        ("journalctl", "#!/bin/sh\necho last words\n"),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    return Manager("system", str(tmp_path / "units"))


def calls(manager: Manager) -> list[str]:
    """What systemctl was asked to do."""
    log = manager.folder.parent / "calls"
    words = [line.split() for line in log.read_text().splitlines()]
    return [word[0] for word in words if word[0] not in {"show", "reset-failed"}]


def converge(spec: UnitSpec, manager: Manager) -> list[str]:
    """Bring a unit to what is wanted; the steps."""
    state = manager.state_of(spec.name)
    steps = subject.actions(subject.compare(spec, manager, state), subject.wanted(spec))
    subject.require_manager(spec, manager, state)
    subject.apply(spec, manager, steps)
    return steps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_states(case: Path) -> None:
    """What systemctl printed on Debian 12 and 13, and what it means."""
    state = subject.parse_show((case / "stdout").read_text())
    for name, value in json.loads((case / "expected.json").read_text()).items():
        assert getattr(state, name) == value, name


def test_nothing_printed_is_a_unit_that_is_not_there() -> None:
    """An old or dying manager is not an exception."""
    assert subject.parse_show("") == UnitState()


STOPPED = Comparison(None, running=False, enabled=False, up_to_date=True)
RUNNING = Comparison("a", running=True, enabled=True, up_to_date=True)


def but(**changes: str | bool) -> Comparison:
    """A running unit with a difference."""
    return dataclasses.replace(RUNNING, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (STOPPED, RUNNING, ["write", "reload", "enable", "start"]),
        (RUNNING, RUNNING, []),
        (RUNNING, but(sha256="b"), ["write", "reload", "restart"]),
        (but(up_to_date=False), RUNNING, ["reload", "restart"]),
        (but(running=False), RUNNING, ["start"]),
        (but(enabled=False), RUNNING, ["enable"]),
        (RUNNING, but(enabled=False), ["disable"]),
        (RUNNING, but(running=False), ["stop"]),
        (RUNNING, STOPPED, ["stop", "disable", "remove"]),
        (but(running=False, enabled=False), STOPPED, ["remove"]),
        (STOPPED, STOPPED, []),
    ],
)
def test_the_steps_from_one_state_to_another(
    before: Comparison, after: Comparison, steps: list[str]
) -> None:
    """Only what differs is done, in the right order."""
    assert subject.actions(before, after) == steps


def test_a_unit_is_started_once(manager: Manager) -> None:
    """The second run asks and does nothing."""
    spec = UnitSpec("llmetal-chat.service", TEXT)
    assert converge(spec, manager) == ["write", "reload", "enable", "start"]
    assert (manager.folder / spec.name).read_text() == TEXT
    assert converge(spec, manager) == []
    assert calls(manager) == ["daemon-reload", "enable", "start"]


def test_a_changed_dependency_restarts(manager: Manager, tmp_path: Path) -> None:
    """The environment behind a link counts, its name does not."""
    link = tmp_path / "current"
    link.symlink_to("one")
    marks = tuple(subject.link_marks([str(link)]))
    converge(UnitSpec("llmetal-chat.service", TEXT, restart_on=marks), manager)
    assert tuple(subject.link_marks([str(link)])) == marks
    link.unlink()
    link.symlink_to("two")
    marks = tuple(subject.link_marks([str(link)]))
    spec = UnitSpec("llmetal-chat.service", TEXT, restart_on=marks)
    assert converge(spec, manager) == ["write", "reload", "restart"]


def test_a_unit_older_than_its_file_is_restarted(manager: Manager) -> None:
    """A run that died between writing and restarting is finished by the next."""
    spec = UnitSpec("llmetal-chat.service", TEXT)
    converge(spec, manager)
    later = time.time() + 5
    os.utime(manager.folder / spec.name, (later, later))
    state = manager.state_of(spec.name)
    before = subject.compare(spec, manager, state)
    assert subject.actions(before, subject.wanted(spec)) == ["reload", "restart"]


def test_a_unit_is_removed(manager: Manager) -> None:
    """Nothing of it is left, and removing it again does nothing."""
    converge(UnitSpec("llmetal-chat.service", TEXT), manager)
    gone = UnitSpec("llmetal-chat.service", state="absent")
    assert converge(gone, manager) == ["stop", "disable", "remove"]
    assert not list(manager.folder.iterdir())
    assert converge(gone, manager) == []


def test_a_start_that_is_refused_shows_the_units_last_words(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reason and journal in one message."""
    monkeypatch.setenv("REFUSE", "start")
    with pytest.raises(LlmetalError, match=r"start failed.*Job for the unit.*last words"):
        converge(UnitSpec("llmetal-chat.service", TEXT), manager)


@pytest.mark.parametrize(
    ("started", "message"),
    [
        (
            {"ActiveState": "inactive", "ConditionResult": "no", "ConditionTimestampMonotonic": 5},
            "Condition line",
        ),
        ({"ActiveState": "inactive"}, "ended at once"),
    ],
)
def test_a_unit_that_does_not_run_after_its_start(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, started: dict[str, str], message: str
) -> None:
    """A start that systemd calls a success may still leave nothing running."""
    monkeypatch.setenv("STARTED", json.dumps(started))
    with pytest.raises(LlmetalError, match=message):
        converge(UnitSpec("llmetal-chat.service", TEXT), manager)


def test_a_masked_unit_is_left_alone(manager: Manager) -> None:
    """Somebody has said no."""
    spec = UnitSpec("llmetal-chat.service", TEXT)
    with pytest.raises(LlmetalError, match="systemctl unmask"):
        subject.require_manager(spec, manager, UnitState(load="masked"))


def test_no_systemd_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction works without one, a change does not."""
    monkeypatch.setenv("PATH", str(tmp_path))
    manager = Manager("system", str(tmp_path))
    spec = UnitSpec("llmetal-chat.service", TEXT)
    state = manager.state_of(spec.name)
    assert state is None
    before = subject.compare(spec, manager, state)
    assert subject.actions(before, subject.wanted(spec))[-1] == "start"
    with pytest.raises(LlmetalError, match="systemctl is not installed"):
        subject.require_manager(spec, manager, state)


@pytest.mark.parametrize("name", ["chat", "../chat.service", "a b.service", ""])
def test_names_that_are_no_units(name: str) -> None:
    """A path or a bare word."""
    with pytest.raises(LlmetalError, match="not the name of a systemd unit"):
        UnitSpec(name, TEXT).check()


def test_a_unit_without_content_is_refused() -> None:
    """A template that rendered nothing."""
    with pytest.raises(LlmetalError, match="no content"):
        UnitSpec("a.service", "# only a comment\n").check()


def test_a_users_units_lie_in_their_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their manager is found without a login."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/me/.config")
    assert Manager("user").folder == Path("/home/me/.config/systemd/user")
    assert Manager().folder == Path("/etc/systemd/system")
