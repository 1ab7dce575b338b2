# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments: what they are called, how they are built and what is kept."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import sys
import time
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import environment as subject
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.environment import (
    Alias,
    EnvironmentSpec,
    Installer,
    Places,
    Requirement,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
CASES = sorted([*FIXTURES.glob("uv/*/"), *FIXTURES.glob("pip/*/")])

FAKE_UV = f"""#!{sys.executable}
import os, pathlib, re, sys
pathlib.Path(os.environ["CALLS"]).open("a").write(" ".join(sys.argv[1:3]) + "\\n")
if sys.argv[1] == "venv":
    root = pathlib.Path(sys.argv[-1])
    (root / "bin").mkdir(parents=True)
    (root / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(sys.executable)
elif "--offline" in sys.argv:
    sys.exit("error: Network connectivity is disabled")
else:
    if os.environ.get("FAIL"):
        sys.exit("error: Failed to install\\n  cause: No space left on device (os error 28)")
    python = pathlib.Path(sys.argv[sys.argv.index("--python") + 1])
    packages = python.parent.parent / "lib" / "python3.11" / "site-packages"
    for line in open(sys.argv[sys.argv.index("-r") + 1]):
        name, version = re.match("(.+)==([^ ]+) --hash=sha256:", line).groups()
        (packages / f"{{name}}-{{version}}.dist-info").mkdir()
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A uv that makes folders and no more, and notes how it was called."""
    program = tmp_path / "uv"
    program.write_text(FAKE_UV)
    program.chmod(0o755)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return program


def calls(uv: Path) -> int:
    """How often uv was called."""
    log = uv.with_name("calls")
    return len(log.read_text().splitlines()) if log.exists() else 0


def spec(**changes: object) -> EnvironmentSpec:
    """A small recipe."""
    base = EnvironmentSpec(
        name="engine",
        python=sys.executable,
        python_version="3.11.2",
        requirements=(Requirement("idna", "3.20", ("0" * 64,)),),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def build(recipe: EnvironmentSpec, root: Path, uv: Path, **options: object) -> subject.Outcome:
    """Make the environment of a recipe."""
    installer = Installer(uv=str(uv), **options)  # type: ignore[arg-type]
    return subject.ensure(recipe, Places.of(str(root), recipe), installer)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_a_failed_install_is_explained(case: Path) -> None:
    """Every recorded failure has its own words, and the tool's cause beside them."""
    expected = json.loads((case / "expected.json").read_text())
    result = CommandResult(("uv",), 1, (case / "stdout").read_text(), (case / "stderr").read_text())
    error = subject.explain(result, "engine")
    assert error.what == expected["what"]
    assert error.why
    assert error.fix


def test_an_unknown_failure_keeps_the_tools_words() -> None:
    """What nobody has seen before is not swallowed."""
    error = subject.explain(CommandResult(("uv",), 2, "", "thread panicked\nat the disco"), "x")
    assert "at the disco" in error.why


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "/usr/bin/python3.12"},
        {"python_version": "3.12.1"},
        {"requirements": (Requirement("idna", "3.21", ("0" * 64,)),)},
        {"requirements": (Requirement("idna", "3.20", ("1" * 64,)),)},
        {"aliases": (Alias("vllm", "1"),)},
        {"provider": "venv"},
    ],
)
def test_another_recipe_is_another_folder(changes: dict[str, object]) -> None:
    """Everything that an environment is made from is in its digest."""
    assert spec(**changes).digest != spec().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"python_version": "3.11.9"},
        {"imports": ("idna",)},
        {"requirements": (Requirement("IDNA", "3.20", ("0" * 64,)),)},
    ],
)
def test_what_makes_no_difference_is_not_in_the_digest(changes: dict[str, object]) -> None:
    """A patch release of Python, a check and a name's spelling rebuild nothing."""
    assert spec(**changes).digest == spec().digest


def test_a_name_that_is_a_path_is_refused() -> None:
    """A name cannot lead out of the folder of environments."""
    with pytest.raises(LlmetalError, match="not a plain name"):
        spec(name="../engine").check()


def test_a_package_without_a_hash_is_refused() -> None:
    """Nothing unverified is installed."""
    with pytest.raises(LlmetalError, match="no sha256 for idna"):
        spec(requirements=(Requirement("idna", "3.20", ()),)).check()


def test_differences_name_what_changed() -> None:
    """Added, removed and replaced distributions are told apart."""
    assert subject.differences({"a": "1", "b": "1"}, {"b": "2", "c": "3"}) == (
        "a 1 -> absent",
        "b 1 -> 2",
        "c absent -> 3",
    )


def test_an_environment_is_built_once(tmp_path: Path, uv: Path) -> None:
    """The first run builds and links; the second finds nothing to do."""
    recipe = spec(aliases=(Alias("vllm", "0.32.0+cpu"),), imports=("json",))
    places = Places.of(str(tmp_path), recipe)
    assert not subject.read_state(recipe, places).built
    outcome = build(recipe, tmp_path, uv)
    assert outcome.distributions == 2
    assert subject.read_state(recipe, places).is_current(recipe.digest)
    assert places.link.resolve() == places.final
    assert not places.building.exists()
    before = calls(uv)
    build(recipe, tmp_path, uv)
    assert calls(uv) == before


def test_an_alias_answers_as_a_distribution(tmp_path: Path, uv: Path) -> None:
    """`importlib.metadata` finds the name that an engine asks for."""
    recipe = spec(aliases=(Alias("my-engine", "0.32.0+cpu"),))
    build(recipe, tmp_path, uv)
    packages = Places.of(str(tmp_path), recipe).final / "lib" / "python3.11" / "site-packages"
    found = {one.name: one for one in metadata.distributions(path=[str(packages)]) if one.files}
    assert found["my-engine"].version == "0.32.0+cpu"
    assert {file.name for file in found["my-engine"].files or ()} == {
        "METADATA",
        "INSTALLER",
        "RECORD",
    }


def test_a_failed_build_leaves_the_one_in_use(
    tmp_path: Path, uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link still leads to the old environment, and the next run finishes."""
    old, new = spec(), spec(requirements=(Requirement("idna", "3.21", ("0" * 64,)),))
    build(old, tmp_path, uv)
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(LlmetalError, match="the disk is full"):
        build(new, tmp_path, uv)
    assert Places.of(str(tmp_path), old).link.resolve().name == old.digest
    monkeypatch.delenv("FAIL")
    build(new, tmp_path, uv)
    assert Places.of(str(tmp_path), new).link.resolve().name == new.digest


def test_an_import_that_fails_stops_the_switch(tmp_path: Path, uv: Path) -> None:
    """An environment that cannot do its work is not used."""
    recipe = spec(imports=("json", "no_such_module"))
    with pytest.raises(LlmetalError, match=r"import no_such_module.*ModuleNotFoundError"):
        build(recipe, tmp_path, uv)
    assert not Places.of(str(tmp_path), recipe).link.exists()


def test_a_crashing_import_is_an_error_too(tmp_path: Path, uv: Path) -> None:
    """An interpreter that dies says nothing in JSON."""
    recipe = spec(imports=("antigravity_that_exits",))
    module = tmp_path / "antigravity_that_exits.py"
    module.write_text("import os; os._exit(3)")
    build(spec(), tmp_path, uv)
    environment = Places.of(str(tmp_path), spec()).final
    python = environment / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\necho 'Illegal instruction' >&2; exit 132\n")
    python.chmod(0o755)
    with pytest.raises(LlmetalError, match="Illegal instruction"):
        subject.check_imports(environment, recipe.imports, 10)


def test_what_somebody_changed_by_hand_is_rebuilt(tmp_path: Path, uv: Path) -> None:
    """A package installed past llmetal is seen without running the environment."""
    recipe = spec()
    build(recipe, tmp_path, uv)
    places = Places.of(str(tmp_path), recipe)
    (places.final / "lib" / "python3.11" / "site-packages" / "numpy-2.0.dist-info").mkdir()
    assert subject.read_state(recipe, places).changes == ("numpy absent -> 2.0",)
    build(recipe, tmp_path, uv)
    assert subject.read_state(recipe, places).is_current(recipe.digest)


def test_a_lost_interpreter_is_seen(tmp_path: Path, uv: Path) -> None:
    """An environment whose Python was removed from the host is not whole."""
    recipe = spec()
    build(recipe, tmp_path, uv)
    places = Places.of(str(tmp_path), recipe)
    (places.final / "bin" / "python").unlink()
    assert "interpreter" in subject.read_state(recipe, places).changes[0]


@pytest.mark.parametrize("stamp", ["", "{", "[]", '{"digest": 1}', '{"distributions": []}'])
def test_an_unreadable_stamp_means_unfinished(tmp_path: Path, uv: Path, stamp: str) -> None:
    """A folder without a whole stamp is built again."""
    recipe = spec()
    build(recipe, tmp_path, uv)
    places = Places.of(str(tmp_path), recipe)
    (places.final / subject.STAMP).write_text(stamp)
    assert not subject.read_state(recipe, places).built


def test_one_previous_environment_is_kept(tmp_path: Path, uv: Path) -> None:
    """The one before the current stays, older ones and rests go."""
    recipes = [
        spec(requirements=(Requirement("idna", f"3.{number}", ("0" * 64,)),)) for number in range(4)
    ]
    (tmp_path / "engine" / ".building-0123456789ab").mkdir(parents=True)
    for recipe in recipes:
        outcome = build(recipe, tmp_path, uv)
        now = time.time()
        folder = Places.of(str(tmp_path), recipe).final
        os.utime(folder, (now - 100, now - 100))
    assert outcome.removed == [recipes[1].digest]
    left = {path.name for path in (tmp_path / "engine").iterdir() if path.is_dir()}
    assert left == {"current", recipes[2].digest, recipes[3].digest}


def test_what_a_process_uses_is_kept(tmp_path: Path) -> None:
    """Loaded code and the command line both count."""
    proc = tmp_path / "proc"
    for pid, name, text in (
        ("10", "maps", "7f00 r-xp /env/aaa/lib/torch.so\n"),
        ("11", "cmdline", "/env/bbb/bin/python\0-m\0vllm"),
        ("12", "cmdline", "/env/cccc/bin/python"),
    ):
        (proc / pid).mkdir(parents=True)
        (proc / pid / name).write_text(text)
    folders = [Path("/env/aaa"), Path("/env/bbb"), Path("/env/ccc")]
    assert subject.in_use(folders, proc) == {Path("/env/aaa"), Path("/env/bbb")}


def test_no_room_is_refused_before_anything_is_made(
    tmp_path: Path, uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size that does not fit stops the build at its first step."""
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil has it
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10, 9, 1 << 30))
    with pytest.raises(LlmetalError, match=r"it takes 6.0 GB and 1.1 GB are free"):
        build(spec(), tmp_path, uv, size_bytes=6_000_000_000)
    assert calls(uv) == 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, uv: Path) -> None:
    """A file where the folder should be is an error with its path."""
    (tmp_path / "engine").write_text("")
    with pytest.raises(LlmetalError, match=r"cannot be written.*engine"):
        build(spec(), tmp_path, uv)


def test_two_runs_do_not_build_at_once(tmp_path: Path, uv: Path) -> None:
    """The second waits, and gives up in time."""
    home = tmp_path / "engine"
    home.mkdir()
    with (home / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(LlmetalError, match="another run still builds"):
            build(spec(), tmp_path, uv, install_timeout=0.1)


def test_a_python_without_venv_says_which_package(tmp_path: Path) -> None:
    """Debian ships Python without what makes environments."""
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\necho 'The virtual environment was not created because ensurepip"
        " is not available.'; exit 1\n"
    )
    python.chmod(0o755)
    recipe = spec(provider="venv", python=str(python))
    with pytest.raises(LlmetalError, match="install the package python3-venv"):
        build(recipe, tmp_path / "root", tmp_path / "no-uv")


def test_an_interpreter_that_is_missing_is_named() -> None:
    """The lock's interpreter may have been removed from the host."""
    with pytest.raises(LlmetalError, match="/no/such/python"):
        subject.interpreter_version("/no/such/python")
    assert subject.interpreter_version(sys.executable) == sys.version.split()[0]
