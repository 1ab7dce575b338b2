# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt and dpkg print, and the files that they read."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import apt_lock, dpkg, units
from ansible_collections.llmetal.inference.plugins.module_utils.apt_messages import failure
from ansible_collections.llmetal.inference.plugins.module_utils.apt_pins import (
    pinned,
    preferences,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    Source,
    parse_deb822,
    parse_one_line,
    read_entries,
)
from ansible_collections.llmetal.inference.plugins.module_utils.candidates import parse_simulation
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

FIXTURES = Path(__file__).parents[2] / "fixtures"


def cases(tool: str) -> list[str]:
    """The recordings of a tool."""
    return sorted(path.name for path in (FIXTURES / tool).iterdir())


def recording(tool: str, name: str) -> tuple[str, object]:
    """What a tool printed, and what it stands for."""
    folder = FIXTURES / tool / name
    return (folder / "output.txt").read_text(), json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("name", cases("apt"))
def test_failures(name: str) -> None:
    """Each recorded failure has its cause, its place and a way out."""
    output, expected = recording("apt", name)
    error = failure(output, stage="installing packages")
    parts = {key: value for key, value in error.as_result().items() if key != "msg"}
    assert {"kind": error.kind, **parts} == expected
    assert error.kind != "unknown"
    assert error.why
    assert error.fix


def test_unknown_failure() -> None:
    """A failure that is not known says what apt said last, and where it was."""
    error = failure("a\nb\nsomething odd\n", stage="holding packages", where="gcc")
    assert error.kind == "unknown"
    assert "something odd" in error.why
    assert error.where == "gcc"


@pytest.mark.parametrize("name", cases("dpkg_query"))
def test_database(name: str) -> None:
    """Recorded package databases."""
    output, expected = recording("dpkg_query", name)
    database = dpkg.parse(output.splitlines())
    assert isinstance(expected, dict)
    assert {
        "installed": len(database.installed()),
        "holds": database.holds,
        "broken": database.broken,
        "versions": {package: database.version(package) for package in expected["versions"]},
    } == expected


@pytest.mark.parametrize(
    ("status", "installed", "broken"),
    [
        ("installed", True, False),
        ("triggers-pending", True, True),
        ("half-configured", False, True),
        ("unpacked", False, True),
        ("half-installed", False, True),
        ("config-files", False, False),
    ],
)
def test_status(status: str, installed: bool, broken: bool) -> None:  # noqa: FBT001 - a table
    """A package that is half there is not installed."""
    package = dpkg.Package("x", "amd64", "1", "install", status)
    assert package.installed is installed
    assert package.broken is broken


def test_two_architectures() -> None:
    """Of one name in two architectures the installed one counts."""
    lines = ["a\ti386\t2\tdeinstall\tconfig-files", "a\tamd64\t1\tinstall\tinstalled", "odd line"]
    assert dpkg.parse(lines).version("a") == "1"


def test_kernels(tmp_path: Path) -> None:
    """Kernels are those with an image, oldest first."""
    for release in ("6.1.0-9-amd64", "6.1.0-40-amd64"):
        (tmp_path / f"vmlinuz-{release}").touch()
    names = ["linux-image-amd64", "linux-image-6.12.1-amd64", "linux-image-6.12.1-amd64-dbg"]
    lines = [f"{name}\tamd64\t1\tinstall\tinstalled" for name in names]
    assert dpkg.kernels(dpkg.parse(lines), str(tmp_path)) == [
        "6.1.0-9-amd64",
        "6.1.0-40-amd64",
        "6.12.1-amd64",
    ]


def test_interrupted(tmp_path: Path) -> None:
    """The journal of a killed dpkg is a file with digits for a name."""
    assert not dpkg.interrupted(tmp_path / "none")
    (tmp_path / "tmp.i").touch()
    assert not dpkg.interrupted(tmp_path)
    (tmp_path / "0001").touch()
    assert dpkg.interrupted(tmp_path)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("580.95.05-1", "580.159.04-1"),
        ("1.0~rc1-1", "1.0-1"),
        ("1.0-1", "1.0-1+b1"),
        ("1.0", "1.0-1"),
        ("9:1", "10:0"),
        ("2.0", "1:1.0"),
        ("1.2.3", "1.2.3a"),
        ("535.309.01-0~bpo12+1", "535.309.01-0+deb12u1"),
        ("1.0+dfsg", "1.0+dfsg1"),
    ],
)
def test_versions(older: str, newer: str) -> None:
    """Versions are compared as dpkg does."""
    assert dpkg.compare_versions(older, newer) < 0
    assert dpkg.compare_versions(newer, older) > 0
    assert dpkg.compare_versions(newer, newer) == 0


@pytest.mark.parametrize("name", cases("apt_simulate"))
def test_simulation(name: str) -> None:
    """What a recorded simulation would install."""
    output, expected = recording("apt_simulate", name)
    assert parse_simulation(output) == expected


@pytest.mark.parametrize("name", cases("systemctl_show"))
def test_units(name: str) -> None:
    """The state of recorded units; those that are not there are left out."""
    output, expected = recording("systemctl_show", name)
    assert units.parse(output) == expected


def test_missing_unit() -> None:
    """A unit that systemd does not know is none."""
    assert units.parse("Id=x.service\nLoadState=not-found\nActiveState=inactive\n") == {}


@pytest.mark.parametrize("name", cases("apt_sources"))
def test_sources(name: str) -> None:
    """Sources in both formats."""
    folder = FIXTURES / "apt_sources" / name
    expected = json.loads((folder / "expected.json").read_text())
    entries = [entry.as_dict() for entry in read_entries(str(folder))]
    for entry in entries:
        entry["file"] = str(Path(entry["file"]).relative_to(folder))
    assert entries == expected


def test_disabled_and_commented() -> None:
    """What is switched off does not count."""
    assert parse_one_line("# deb http://x y main\n#deb http://x y\n", "f") == []
    assert parse_deb822("Types: deb\nURIs: http://x\nSuites: y\nEnabled: no\n", "f") == []


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("deb http://mirror.example/cuda /", True),
        ("deb HTTP://mirror.example/cuda/ ./", True),
        ("deb http://mirror.example/cuda stable main", False),
        ("deb-src http://mirror.example/cuda /", False),
        ("deb http://mirror.example/other /", False),
    ],
)
def test_same_repository(line: str, same: bool) -> None:  # noqa: FBT001 - a table
    """A repository is its address and suite, however written."""
    source = Source("cuda", "http://mirror.example/cuda/", "/", (), None, None)
    (entry,) = parse_one_line(line, "f")
    assert source.same_as(entry) is same


def test_source_text() -> None:
    """Components stand only where there are suites."""
    flat = Source("cuda", "http://x/", "/", ("main",), None, None)
    assert "Components" not in flat.text(keyring="/k")
    suites = Source("ppa", "http://x/", "noble", ("main",), None, None)
    (entry,) = parse_deb822(suites.text(keyring="/k"), "f")
    assert (entry.suites, entry.components, entry.signed_by) == (("noble",), ("main",), "/k")


def test_preferences(tmp_path: Path) -> None:
    """The host's own preferences stay in force beside ours."""
    (tmp_path / "preferences").write_text("Package: a\nPin: origin x\nPin-Priority: 900\n")
    with pinned(["1-1", "1-1", "2-1"], etc_apt=str(tmp_path)) as options:
        file = Path(options[1].partition("=")[2])
        text = file.read_text()
    assert not file.exists()
    assert text.startswith("Package: a\nPin: origin x\nPin-Priority: 900\n\nPackage: /./\n")
    assert text.count("Pin: version") == 2
    assert preferences(["1-1"], "") == "Package: /./\nPin: version 1-1\nPin-Priority: 1001\n"
    with pinned([], etc_apt=str(tmp_path)) as options:
        assert options == []


def hold(path: str, pipe: Connection) -> None:
    """Hold a lock as apt does, until told to end."""
    with Path(path).open("w") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX)
        pipe.send(os.getpid())
        pipe.recv()


def test_lock_is_named(tmp_path: Path) -> None:
    """A lock that is held names its holder, and is free after that ends."""
    path = str(tmp_path / "lock")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(path, theirs))
    process.start()
    pid = ours.recv()
    date = time.strftime("%Y-%m-%d", time.gmtime())
    with pytest.raises(
        LlmetalError, match=rf"process {pid} .*, started {date} .*UTC\) holds {path}"
    ):
        apt_lock.wait(0.2, [path])
    ours.send("end")
    process.join()
    assert apt_lock.wait(0, [path]) < 1


def test_since_when(tmp_path: Path) -> None:
    """A process started so many ticks after the boot; its name may hold anything."""
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(4, 22))
    ticks = 90 * os.sysconf("SC_CLK_TCK")
    (tmp_path / "7/stat").write_text(f"7 (odd) name) S {fields} {ticks} 0\n")
    (tmp_path / "stat").write_text("cpu 1\nbtime 1796083200\n")
    assert apt_lock.started(7, str(tmp_path)) == "2026-12-01 00:01:30 UTC"
    assert apt_lock.started(8, str(tmp_path)) is None


def test_lock_that_is_not_there(tmp_path: Path) -> None:
    """Where apt never ran there is nothing to wait for."""
    assert apt_lock.holder_of(str(tmp_path / "lock")) is None
