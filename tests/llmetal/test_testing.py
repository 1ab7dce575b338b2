# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal test` counts what it runs and names what it leaves out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import cli, paths, system, testing
from llmetal.testing import Step

if TYPE_CHECKING:
    from pathlib import Path

JUNIT = """<testsuites><testsuite errors="1" failures="2" skipped="3" tests="10"/></testsuites>"""


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs go to a folder of the test's own."""
    monkeypatch.setattr(paths, "LOGS", tmp_path)


def step(group: str, name: str, code: str = "") -> Step:
    """A step that runs a line of Python."""
    return Step(group, name, (sys.executable, "-c", code))


def test_the_last_line_counts_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps count as one, JUnit files as many as they hold; what failed is shown in full."""
    junit = paths.LOGS / "junit.xml"
    write = f"import pathlib, sys; pathlib.Path({str(junit)!r}).write_text({JUNIT!r}); sys.exit(1)"
    unit = Step("unit", "pytest", (sys.executable, "-c", write), junit=junit)
    bad = step("lint", "bad", "print('line 7 is wrong'); raise SystemExit(3)")
    tally = testing.run_all([step("lint", "good"), bad, unit])
    testing.report(tally, as_json=False)
    out = capsys.readouterr().out
    assert "ok     lint/good" in out
    assert "FAILED lint/bad" in out
    assert "line 7 is wrong" in out
    assert "7 failed" not in out
    assert out.splitlines()[-1] == "5 passed, 4 failed"


def test_without_root_the_scenarios_are_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot run here does not fail, and is named with the reason."""
    monkeypatch.setattr(system, "sandbox_obstacle", lambda: "this user is not root")
    scenario = step("molecule", "base", "raise SystemExit(1)")
    testing.report(testing.run_all([step("lint", "good"), scenario]), as_json=False)
    out = capsys.readouterr().out
    assert "left out, because this user is not root: molecule/base" in out
    assert out.splitlines()[-1] == "1 passed, 0 failed"


def test_a_step_that_takes_too_long_is_ended_and_cleaned_up() -> None:
    """A step has a time limit; what it made is taken down."""
    mark = paths.LOGS / "cleaned"
    clean = (sys.executable, "-c", f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    slow = Step(
        "molecule",
        "slow",
        (sys.executable, "-c", "import time; time.sleep(60)"),
        timeout=1,
        clean_up=clean,
    )
    result = testing.Runner().run(slow)
    assert result.failed == 1
    assert result.why == "it took longer than 1 s"
    assert mark.exists()


def test_a_tool_that_is_not_there_fails() -> None:
    """A step whose program is missing is a failure, not a crash."""
    result = testing.Runner().run(Step("lint", "none", ("llmetal-no-such-tool",)))
    assert result.failed == 1
    assert "cannot be run" in result.why


def test_tests_that_crash_fail_without_a_junit_file() -> None:
    """A pytest that dies before it writes its file counts as one failure."""
    crash = Step(
        "unit", "crash", (sys.executable, "-c", "raise SystemExit(3)"), junit=paths.LOGS / "x"
    )
    result = testing.Runner().run(crash)
    assert (result.passed, result.failed) == (0, 1)


def test_only(capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` takes groups and steps; anything else is a usage error that names them."""
    found = [step("lint", "ruff"), step("types", "mypy"), step("molecule", "base")]
    assert [s.id for s in testing.select(found, "lint,molecule/base")] == [
        "lint/ruff",
        "molecule/base",
    ]
    assert testing.select(found, None) == found
    with pytest.raises(LlmetalError):
        testing.select(found, "lnt")
    assert cli.main(["test", "--only", "lnt"]) == 2
    assert "lint, types, unit, molecule, faults" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` names every step, and every scenario of the checkout is one."""
    assert cli.main(["test", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {"lint/ruff", "types/mypy", "unit/pytest"} <= set(listed)
    for scenario in testing.scenarios():
        assert f"molecule/{scenario}" in listed
