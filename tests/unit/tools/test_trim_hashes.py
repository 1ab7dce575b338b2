# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locked requirements keep the hashes that a host can use, and no package without one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trim_hashes as tool

if TYPE_CHECKING:
    from collections.abc import Mapping

CASE = Path(__file__).parents[2] / "fixtures" / "pylock" / "mixed"


def test_recorded_answer() -> None:
    """A recorded answer of the index, with packages of every sort, gives the recorded result."""
    files = tool.files_of((CASE / "pylock.toml").read_text(encoding="utf-8"))
    text = (CASE / "requirements.txt").read_text(encoding="utf-8")
    expected = (CASE / "expected.txt").read_text(encoding="utf-8")
    assert tool.trim(text, files) == expected
    assert tool.trim(expected, files) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a-1-cp314-cp314-linux_x86_64.whl", True),
        ("a-1-cp312-none-manylinux1_x86_64.whl", True),
        ("a-1-py3-none-manylinux_2_35_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp314-cp314t-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp315-cp315-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_17_aarch64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-cp311-cp311-macosx_11_0_arm64.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl", False),
        ("a-1.tar.gz", False),
        ("nonsense.whl", False),
    ],
)
def test_fits(name: str, expected: bool) -> None:  # noqa: FBT001 - a table
    """Which files a host can install."""
    assert tool.fits(name) is expected


LINUX, WINDOWS, SOURCE = "a-1-py3-none-any.whl", "a-1-py3-none-win_amd64.whl", "a-1.tar.gz"


@pytest.mark.parametrize(
    ("hashes", "files", "expected"),
    [
        (["1", "2", "3"], {LINUX: "2", WINDOWS: "1", SOURCE: "3"}, ["2"]),
        (["1", "3"], {WINDOWS: "1", SOURCE: "3"}, ["3"]),
        (["1"], {WINDOWS: "1"}, ["1"]),
        (["1", "2"], {}, ["1", "2"]),
        (["3"], {LINUX: "2", SOURCE: "3"}, ["3"]),
    ],
)
def test_kept(hashes: list[str], files: Mapping[str, str], expected: list[str]) -> None:
    """Wheels, else the source, else everything; never a hash that was not there."""
    assert tool.kept(hashes, files) == expected


def test_names_are_compared_as_the_index_does() -> None:
    """Capitals, dots and underscores make no other package; another version does."""
    one, two = "1" * 64, "2" * 64
    lines = ["A_b.c==1 ; sys_platform == 'linux'", f"--hash=sha256:{one}", f"--hash=sha256:{two}"]
    text = " \\\n    ".join(lines) + "\n"
    files = {("a-b-c", "1"): {LINUX: one, SOURCE: two}}
    assert two not in tool.trim(text, files)
    assert tool.trim(text, {("a-b-c", "2"): files["a-b-c", "1"]}) == text


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command asks uv, changes the file and says how much went."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
        asked.append(command)
        answer = (CASE / "pylock.toml").read_text(encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr(subprocess, "run", run)
    path = tmp_path / "requirements.txt"
    path.write_bytes((CASE / "requirements.txt").read_bytes())
    assert tool.main([str(path)]) == 0
    assert path.read_bytes() == (CASE / "expected.txt").read_bytes()
    (command,) = asked
    assert (command[0], command[-1]) == ("uv", str(path))
    assert not [one for one in command if "index" in one]
    assert "bytes before" in capsys.readouterr().out
