# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml as a person starts it: bad input ends it before any connection, and says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"


def run(
    inventory: Path, *arguments: str, reports: Path, playbook: str = "site.yml"
) -> subprocess.CompletedProcess[str]:
    """Run a playbook."""
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "LLMETAL_REPORT_DIR": str(reports)}
    argv = [str(PLAYBOOK), playbook, "-i", str(inventory), *arguments]
    return subprocess.run(
        argv, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--limit", "g1")])
def test_bad_inventory(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A misspelt variable: file, line, key and the right name; no host is asked anything."""
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        "---\nall:\n  children:\n    gpu:\n      hosts:\n"
        "        g1: {ansible_host: 192.0.2.1, llmetal_reboott: true}\n        g2: {}\n"
    )
    done = run(hosts, *arguments, reports=tmp_path / "reports")
    assert done.returncode != 0
    assert f"{hosts}:6: llmetal_reboott is not known" in done.stdout + done.stderr
    assert "did you mean llmetal_reboot?" in done.stdout + done.stderr
    assert "Survey |" not in done.stdout
    (folder,) = (tmp_path / "reports").iterdir()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["status"] == "inventory"
    assert [row["line"] for row in report["problems"]] == [6]
    assert {path.name for path in folder.iterdir()} == {"index.html", "report.json", "report.md"}


@pytest.mark.parametrize("name", ["lab", "local", "sandbox"])
def test_own_inventories(tmp_path: Path, name: str) -> None:
    """The inventories of the checkout name no unknown variable and no wrong group."""
    inventory = ROOT / "inventory" / name
    done = run(inventory, reports=tmp_path, playbook="playbooks/validate.yml")
    text = done.stdout + done.stderr
    if "llmetal_driver.mirror.fingerprint" in text:  # the sandbox that makes the key is down
        assert "1 problem in the inventory" in text
    else:
        assert done.returncode == 0, text


PLAN = "".join(
    f"- ansible.builtin.import_playbook: {ROOT}/playbooks/{name}.yml\n"
    for name in ("validate", "survey", "resolve", "plan")
)
LOCAL = """\
---
all:
  children:
    gpu:
      hosts:
        here:
          ansible_connection: local
          ansible_python_interpreter: "{{ ansible_playbook_python }}"
      vars:
        llmetal_scope: user
        llmetal_root: %(root)s
        llmetal_models: [{name: tiny, source: {type: folder, path: %(model)s}}]
        llmetal_instances: [{name: chat, engine: %(engine)s, model: tiny, device: cpu}]
"""


def make_local(folder: Path, engine: str = "vllm") -> Path:
    """An inventory of this machine, without root, with a model that is only a config.json."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    (folder / "plan.yml").write_text(f"---\n{PLAN}")
    hosts = folder / "hosts.yml"
    hosts.write_text(LOCAL % {"root": folder / "root", "model": model, "engine": engine})
    return hosts


def test_plan_of_this_machine(tmp_path: Path) -> None:
    """Survey, resolve and plan for real: --check writes nothing, then the lock is kept."""
    hosts = make_local(tmp_path)
    reports, playbook = tmp_path / "reports", str(tmp_path / "plan.yml")
    lock = tmp_path / "locks" / "here.yml"
    done = run(hosts, "--check", reports=reports, playbook=playbook)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not lock.exists()
    assert run(hosts, reports=reports, playbook=playbook).returncode == 0
    text = lock.read_text(encoding="utf-8")
    assert yaml.safe_load(text)["models"][0]["architectures"] == ["LlamaForCausalLM"]
    assert run(hosts, reports=reports, playbook=playbook).returncode == 0
    assert lock.read_text(encoding="utf-8") == text
    lock.write_text(text.replace("name: here", "name: there", 1))
    done = run(hosts, reports=reports, playbook=playbook)
    assert "[lock-host]" in done.stdout + done.stderr
    assert "the lock is that of there" in done.stdout + done.stderr
    lock.write_text("schema: 99\n")
    done = run(hosts, reports=reports, playbook=playbook)
    assert done.returncode != 0
    assert "[input-unreadable]" in done.stdout + done.stderr
    assert str(lock) in done.stdout + done.stderr


def test_refusal(tmp_path: Path) -> None:
    """A refusal ends the run before any change, with rule, fact, fix and source."""
    done = run(
        make_local(tmp_path, "sglang"),
        reports=tmp_path / "reports",
        playbook=str(tmp_path / "plan.yml"),
    )
    assert done.returncode != 0
    text = done.stdout + done.stderr
    assert "1 refusal on 1 host; nothing was changed on any host." in text
    assert "[engine-release]" in text
    assert not (tmp_path / "locks").exists()
    (folder,) = (tmp_path / "reports").iterdir()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["status"] == "refused"
    assert [row["rule"] for row in report["refusals"]] == ["engine-release"]


def test_host_that_does_not_answer(tmp_path: Path) -> None:
    """A host without ssh: named with stage and way out, in the report too."""
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        "---\nall:\n  children:\n    gateway:\n      hosts:\n"
        "        s1: {ansible_host: 127.0.0.1, ansible_port: 9, ansible_user: nobody}\n"
    )
    done = run(hosts, reports=tmp_path / "reports")
    assert done.returncode != 0
    assert "unreachable=1" in done.stdout
    (folder,) = (tmp_path / "reports").iterdir()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (failure,) = report["failures"]
    assert (failure["host"], failure["stage"]) == ("s1", "Survey")
    assert failure["what"] == "the host does not answer"
    assert failure["fix"]
