# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan` and `survey --save` for real, on this machine: what is written and kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from llmetal import paths

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
---
all:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    llmetal_scope: user
    llmetal_root: %(root)s
  children:
    gateway:
      hosts:
        services:
"""
BAD = """\
    gpu:
      hosts:
        lacking:
          llmetal_models: [{name: m, source: {type: folder, path: %(root)s/none}}]
          llmetal_instances: [{name: chat, engine: vllm, model: m}]
        silent: {ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 9}
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run llmetal."""
    env = {**os.environ, "NO_COLOR": "1", "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg")}
    return subprocess.run(
        [sys.executable, "-m", "llmetal", *words],
        cwd=paths.ROOT,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def make_site(folder: Path, text: str = GOOD) -> str:
    """An inventory of this machine."""
    hosts = folder / "hosts.yml"
    hosts.write_text(text % {"root": folder / "root"}, encoding="utf-8")
    return str(hosts)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON document of a run."""
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an inventory, and the facts of its host, as survey saved them."""
    folder = tmp_path_factory.mktemp("site")
    done = run("survey", "-i", make_site(folder), "--save", str(folder / "facts"))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_recorded_facts(saved: Path) -> None:
    """What survey saved is what plan reads; both forms say the same, and nothing is written."""
    words = ("plan", "-i", str(saved / "hosts.yml"), "--facts", str(saved / "facts"))
    done = run(*words, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    plan = document(done)["hosts"]["services"]
    assert (plan["status"], plan["lock"]["host"]["name"]) == ("ok", "services")
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("1 planned\n")
    assert not (saved / "locks").exists()


def test_write_and_keep(tmp_path: Path) -> None:
    """Nothing is written unasked; a lock is kept, and replaced only by --write --upgrade."""
    site, lock = make_site(tmp_path), tmp_path / "locks" / "services.yml"
    done = run("plan", "-i", site, "--write", "--json")
    assert done.returncode == 0, done.stderr
    plan = document(done)["hosts"]["services"]
    assert (plan["status"], plan["kept"], plan["written"]) == ("ok", False, str(lock))
    text = lock.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == plan["lock"]
    pretty = str(plan["lock"]["host"]["os_pretty"])
    lock.write_text(text.replace(pretty, "Another One"), encoding="utf-8")
    kept = document(run("plan", "-i", site, "--write", "--json"))["hosts"]["services"]
    assert kept["kept"]
    assert kept["lock"]["host"]["os_pretty"] == "Another One"
    expected = {"path": "host.os_pretty", "before": "Another One", "after": pretty}
    assert kept["changes"] == [expected]
    assert "Another One" in lock.read_text(encoding="utf-8")
    lock.write_text("no lock\n", encoding="utf-8")
    assert run("plan", "-i", site, "--upgrade", "--json").returncode == 0
    assert lock.read_text(encoding="utf-8") == "no lock\n"
    done = run("plan", "-i", site, "--upgrade", "--write")
    assert f"written: {lock}\n" in done.stdout
    assert lock.read_text(encoding="utf-8") == text


def test_one_refused_and_one_silent(tmp_path: Path) -> None:
    """The good host's plan is there, the refused one's reasons, and the failure of the third."""
    site = make_site(tmp_path, GOOD + BAD)
    done = run("plan", "-i", site, "--write", "--format", "json")
    found = document(done)
    assert done.returncode == 3, done.stderr
    assert {host: plan["status"] for host, plan in found["hosts"].items()} == {
        "services": "ok",
        "lacking": "refused",
    }
    assert found["hosts"]["services"]["lock"]["host"]["name"] == "services"
    refusals = found["hosts"]["lacking"]["refusals"]
    assert "gpu-missing" in [row["rule"] for row in refusals]
    assert all(set(row) == {"rule", "fact", "reason", "fix", "source"} for row in refusals)
    (failure,) = found["failures"]
    assert (failure["host"], failure["status"]) == ("silent", "unreachable")
    assert not (tmp_path / "locks").exists()
    assert "no lock was written: a host is refused" in done.stderr
