# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`./llmetal` sets itself up: once, whole or not at all, from anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llmetal import bootstrap, paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HASH = "0" * 64


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose name has a space, and whose requirements are none."""
    root = tmp_path / "a site"
    for folder in ("src", "requirements", "collections"):
        (root / folder).mkdir(parents=True)
    shutil.copy2(paths.ROOT / "llmetal", root / "llmetal")
    package = root / "src" / "llmetal"
    package.mkdir()
    shutil.copy2(paths.ROOT / "src" / "llmetal" / "bootstrap.py", package)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\nprint('ran', sys.argv[1:], os.environ['ANSIBLE_CONFIG'])\n",
        encoding="utf-8",
    )
    for name in ("controller.txt", "dev.txt"):
        (root / "requirements" / name).write_text("# none\n", encoding="utf-8")
    return root


def start(
    path: Path, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Start the script."""
    environment = {k: v for k, v in os.environ.items() if k != "ANSIBLE_CONFIG"}
    return subprocess.run(
        [str(path), *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**environment, "LLMETAL_PYTHON": sys.executable, **(env or {})},
    )


def test_first_and_second_start(checkout: Path, tmp_path: Path) -> None:
    """The first start makes .venv; the second only goes on; arguments arrive as they are."""
    first = start(checkout / "llmetal", "site", "two words", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"ran ['site', 'two words'] {checkout}/ansible.cfg\n"
    assert "setting up .venv" in first.stderr
    second = start(checkout / "llmetal", cwd=tmp_path)
    assert second.stdout.startswith("ran []")
    assert second.stderr == ""


def test_through_links_and_other_folders(checkout: Path, tmp_path: Path) -> None:
    """The script finds its checkout through links, relative ones too."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llmetal").symlink_to("../first")
    (tmp_path / "first").symlink_to(checkout / "llmetal")
    done = start(Path("bin/llmetal"), cwd=tmp_path)
    assert done.stdout.startswith("ran []"), done.stderr


@pytest.mark.parametrize("change", ["requirements", "moved", "python", "half"])
def test_what_is_not_current_is_made_again(checkout: Path, tmp_path: Path, change: str) -> None:
    """New requirements, a moved checkout, a Python that is gone, an interrupted start."""
    assert start(checkout / "llmetal").returncode == 0
    if change == "requirements":
        (checkout / "requirements" / "controller.txt").write_text("# still none\n", "utf-8")
    elif change == "moved":
        checkout = checkout.rename(tmp_path / "elsewhere")
    elif change == "python":
        (checkout / ".venv" / "bin" / "python").unlink()
    else:
        (checkout / ".venv").rename(checkout / ".cache" / "venv.new")
    done = start(checkout / "llmetal")
    assert done.returncode == 0
    assert "setting up .venv" in done.stderr
    assert done.stdout.startswith("ran []")
    assert not list((checkout / ".cache").glob("venv.[no]*"))


def test_two_starts_set_up_once(checkout: Path) -> None:
    """Starts at the same time wait for each other."""
    done: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda: done.append(start(checkout / "llmetal"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.returncode for one in done] == [0, 0, 0]
    assert sum("set up in" in one.stderr for one in done) == 1


def test_a_requirement_that_cannot_be_had(checkout: Path) -> None:
    """A failed set-up says what failed and what to do, leaves no .venv, and ends with status 4."""
    requirement = f"llmetal-there-is-no-such-package==1.0 --hash=sha256:{HASH}\n"
    (checkout / "requirements" / "controller.txt").write_text(requirement, encoding="utf-8")
    done = start(checkout / "llmetal")
    assert done.returncode == 4
    assert "llmetal-there-is-no-such-package" in done.stderr
    assert "What to do: see that the package index answers" in done.stderr
    assert not (checkout / ".venv").exists()


def test_no_python(checkout: Path, tmp_path: Path) -> None:
    """Without a Python that runs, the one command to type is named."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("readlink", "cmp"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    shim = tools / "python3"
    shim.write_text("#!/bin/sh\necho 'no such version' >&2\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    done = start(checkout / "llmetal", env={"PATH": str(tools), "LLMETAL_PYTHON": ""})
    assert done.returncode == 4
    assert "apt-get install python3 python3-venv" in done.stderr


def test_missing_venv_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, the command that brings `venv` is named, with the package of this Python."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    major, minor = sys.version_info[:2]
    with pytest.raises(bootstrap.BootstrapError) as raised:
        bootstrap.ensure_venv_module()
    assert f"as root: apt-get install python{major}.{minor}-venv" in str(raised.value)


def test_missing_venv_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root it is installed, after a look at the sources where the first try finds nothing."""
    tried: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_options: object) -> None:
        tried.append(argv)
        if len(tried) == 1:
            raise bootstrap.BootstrapError

    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bootstrap, "run", run)
    bootstrap.ensure_venv_module()
    assert [argv[1] for argv in tried] == ["install", "update", "install"]


def test_test_tools_are_added_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools of the tests are installed when they are asked for, and again when they change."""
    installed: list[Path] = []
    monkeypatch.setattr(bootstrap, "install", lambda _python, path: installed.append(path))
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").touch()
    (checkout / ".venv" / bootstrap.ROOT_STAMP).write_text(f"{checkout}\n", encoding="utf-8")
    assert bootstrap.set_up_dev(checkout)
    assert not bootstrap.set_up_dev(checkout)
    (checkout / "requirements" / "dev.txt").write_text("# another\n", encoding="utf-8")
    assert bootstrap.set_up_dev(checkout)
    assert len(installed) == 2
