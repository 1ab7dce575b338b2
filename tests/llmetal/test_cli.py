# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: its commands, its exit status, what it costs to start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import __version__, cli, paths, stages
from llmetal.progress import HostCount, Progress, Proof, Stage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(command: cli.Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command explains itself."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command.name, "--help"])
    assert ended.value.code == 0
    assert f"usage: llmetal {command.name}" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names all commands and the meaning of the exit status."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert re.search(rf"^ +{command.name} +\S", out, re.MULTILINE)
    assert "3 refused" in out


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is not there ends with status 2, naming those that are."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["sites"])
    assert ended.value.code == 2
    assert "'site'" in capsys.readouterr().err


def test_missing_inventory_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """An inventory that is not there ends with status 2 and says what there is."""
    assert cli.main(["site", "-i", "inventory/none"]) == 2
    assert "there is no such inventory\n  where: inventory/none" in capsys.readouterr().err


def test_version_names_what_it_stands_on(capsys: pytest.CaptureFixture[str]) -> None:
    """`version --json` has the versions of a bug report; options stand on both sides."""
    assert cli.main(["version", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main(["--json", "version"]) == 0
    assert first == json.loads(capsys.readouterr().out)
    assert first["llmetal"] == __version__
    assert first["ansible-core"]


def test_errors_are_printed_with_their_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of ours ends with status 4 and says what, where, why and what to do."""

    def fail(_arguments: object) -> int:
        raise LlmetalError(what="it broke", where="gpu1", why="no room", fix="make room")

    monkeypatch.setattr("llmetal.version.version", fail)
    assert cli.main(["version"]) == 4
    assert capsys.readouterr().err == (
        "llmetal: it broke\n  where: gpu1\n  why: no room\n  what to do: make room\n"
    )


def test_a_start_imports_nothing_slow() -> None:
    """The help of a command loads neither Ansible nor rich."""
    code = (
        "import sys, llmetal.cli\n"
        "try: llmetal.cli.main(['site', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'ansible', 'ansible_runner', 'rich', 'jsonschema'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=paths.ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LLMETAL_CACHE names the cache, else it lies below XDG_CACHE_HOME."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("LLMETAL_CACHE", raising=False)
    assert paths.cache() == tmp_path / "xdg" / "llmetal"
    monkeypatch.setenv("LLMETAL_CACHE", str(tmp_path / "own"))
    assert paths.cache() == tmp_path / "own"


@pytest.mark.parametrize(
    ("code", "signal", "expected"),
    [
        (0, None, "done in 9.0 s: 1 host, 2 changes"),
        (2, None, "the inventory or the arguments are wrong; nothing was touched (9.0 s)"),
        (3, None, "refused, before any change to any host (9.0 s)"),
        (4, None, "failed after 9.0 s"),
        (130, 2, "interrupted (SIGINT) after 9.0 s; the next run goes on from here"),
    ],
)
def test_summary(code: int, signal: int | None, expected: str) -> None:
    """The last line of a run says how it ended."""
    state = Progress(hosts={"a": HostCount(ok=3, changed=2)}, stages=[Stage("Prove", 0.0)])
    assert stages.summary(state, code, 9.0, signal) == expected


def test_summary_of_a_check() -> None:
    """A run with --check says what is to be changed, and counts no proofs."""
    hosts = {"a": HostCount(ok=3, changed=1)}
    proof = Proof(1.0, "a", "chat", ok=False, detail={})
    state = Progress(check=True, hosts=hosts, stages=[Stage("Prove", 0.0)], proofs=[proof])
    expected = "done in 9.0 s: 1 host, 1 change to make, none made"
    assert stages.summary(state, 0, 9.0, None) == expected


def test_newest_report_is_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that an earlier run wrote is not taken for this one's."""
    monkeypatch.setenv("LLMETAL_REPORT_DIR", str(tmp_path / "reports"))
    assert stages.newest_report(0.0) is None
    folder = tmp_path / "reports" / "20260101T000000Z"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}", encoding="utf-8")
    written = (folder / "report.json").stat().st_mtime
    assert stages.newest_report(written) == folder
    assert stages.newest_report(written + 60) is None


def options(*words: str) -> Any:  # noqa: ANN401 - argparse's namespace
    """The parsed arguments of a command."""
    return cli.make_parser(words[0]).parse_args(words)


def test_requests_name_the_stages(tmp_path: Path) -> None:
    """Each command runs its stages, in their order, with what the person asked for."""
    request = stages.make_request(options("plan", "-i", str(tmp_path), "-l", "gpu"))
    assert [path.stem for path in request.playbooks] == ["validate", "survey", "resolve", "plan"]
    assert request.check
    assert request.limit == "gpu"
    request = stages.make_request(options("site", "-i", str(tmp_path), "--", "--forks", "2"))
    assert request.playbooks == (paths.ROOT / "site.yml",)
    assert not request.check
    assert request.extra_args == ("--forks", "2")


def test_tags_are_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The playbooks have no tags, so that asking for some would do nothing."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["site", "-i", str(tmp_path), "-t", "x"])
    assert ended.value.code == 2
    assert "-t" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["site", "survey", "validate"])
def test_usage_errors_are_json_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json, wrong arguments give an object on standard output as well."""
    assert cli.main([command, "--json", "-i", "inventory/none"]) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["exit_code"] == 2
    assert document["failures"][0]["what"] == "there is no such inventory"
    assert ("event" in document) == (command == "site")
    assert "there is no such inventory" in captured.err


def test_stray_word_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word without an option before it is no argument of ansible-playbook."""
    assert cli.main(["survey", "-i", str(tmp_path), "stray"]) == 2
    assert "did you mean -l stray?" in capsys.readouterr().err


def run_with_output(output: str) -> subprocess.CompletedProcess[str]:
    """`llmetal version --json` with its standard output sent elsewhere by a shell."""
    line = f"{sys.executable} -m llmetal version --json {output}"
    return subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)


@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written(output: str) -> None:
    """It is said in one sentence."""
    done = run_with_output(output)
    assert done.returncode == 4
    assert done.stderr.startswith("llmetal: standard output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_closed_pipe_has_its_status() -> None:
    """Whoever read the output is gone: no words, status 141."""
    done = run_with_output("| true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
)
def test_streams_of_other_encodings(environment: dict[str, str]) -> None:
    """What standard output cannot have is written as something like it."""
    words = [sys.executable, "-m", "llmetal", "plan", "--gpus", "1xt4", "--os", "ubuntu2404"]
    done = subprocess.run(
        words, check=True, capture_output=True, env=os.environ | environment, cwd=paths.ROOT
    )
    assert done.stderr == b""
    assert re.search(rb"^planned +\+ +ubuntu2404 ", done.stdout, re.MULTILINE)


def test_replaced_characters() -> None:
    """Marks have a sign of their own, the rest has a question mark; of each as many."""
    cli.main(["version"])
    assert "a✓✗é…✓".encode("ascii", "llmetal.replace") == b"a+x?.+"


@pytest.mark.parametrize("command", ["site", "validate", "survey", "plan"])
def test_empty_path(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty path is not the folder one is in."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "-i", ""])
    assert ended.value.code == 2
    assert "the path is empty" in capsys.readouterr().err
