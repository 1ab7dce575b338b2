# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan --facts`: hosts of an inventory, planned from files and without any connection."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.llmetal.inference.plugins.plugin_utils import planner
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Finding
from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

from llmetal import cli, recorded, runner, show_plan

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = """\
---
all:
  children:
    gpu:
      hosts:
        g1: {ansible_host: 192.0.2.1}
        g2: {ansible_host: 192.0.2.2}
        own: {llmetal_root: "/opt/{{ inventory_hostname }}"}
      vars:
        llmetal_driver: {source: none}
    gateway:
      hosts:
        s1:
"""
REFUSAL = Finding("g2", "gpu-missing", "no GPU", "it needs one", "add one", "the survey")


@dataclass
class Planner:
    """Stands for the planner: a host with `refused` among its facts is."""

    requests: dict[str, Any] = field(default_factory=dict)
    candidates: list[Any] = field(default_factory=list)

    def __call__(
        self,
        request: Any,  # noqa: ANN401 - as the planner has it
        facts: Any,  # noqa: ANN401 - likewise
        candidates: Any,  # noqa: ANN401 - likewise
        compat: Any,  # noqa: ANN401 - likewise
        existing: Any = None,  # noqa: ANN401 - likewise
    ) -> Plan:
        """Plan a host."""
        assert compat.gpus
        assert existing is None
        self.requests[request.name] = request
        self.candidates.append(candidates)
        if "refused" in facts:
            return Plan(request.name, None, (REFUSAL,))
        lock = {"host": {"os": facts["os"], "root": request.root}, "unresolved": []}
        return Plan(request.name, lock)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """The planner, replaced; and no playbook may run.

    Ansible's own loader of collections is for a whole process: these tests do without it.
    """
    found = Planner()
    monkeypatch.setattr(planner, "plan_host", found)
    monkeypatch.setattr(recorded, "make_loader", lambda _vault: DataLoader())
    monkeypatch.setattr(runner, "run", lambda *_arguments: pytest.fail("a playbook was run"))
    return found


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An inventory of four hosts, with the facts of each."""
    (tmp_path / "hosts.yml").write_text(HOSTS, encoding="utf-8")
    facts = tmp_path / "facts"
    facts.mkdir()
    (facts / "g1.json").write_text('{"facts": {"os": "ubuntu2204"}}', encoding="utf-8")
    (facts / "g2.json").write_text('{"os": "debian12", "refused": true}', encoding="utf-8")
    (facts / "own.yml").write_text("facts: {os: debian13}\n", encoding="utf-8")
    (facts / "s1.yaml").write_text("os: debian13\n", encoding="utf-8")
    return tmp_path


def run(site: Path, *words: str) -> int:
    """Plan from the recorded facts; the exit status."""
    argv = ["plan", "-i", str(site / "hosts.yml"), "--facts", str(site / "facts"), *words]
    return cli.main(argv)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON document that was printed."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_all_hosts(site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """Each host has a plan in its own form of facts; a refusal hides none of the others."""
    assert run(site, "--format", "json") == 3
    found = document(capsys)
    assert {host: one["status"] for host, one in found["hosts"].items()} == {
        "g1": "ok",
        "g2": "refused",
        "own": "ok",
        "s1": "ok",
    }
    assert found["hosts"]["g2"]["refusals"][0]["rule"] == "gpu-missing"
    assert found["hosts"]["own"]["lock"]["host"]["root"] == "/opt/own"
    assert plans.requests["g2"].root == "/opt/llmetal"
    assert plans.requests["g2"].name == "g2"
    assert plans.requests["s1"].groups == ("gateway",)
    assert plans.requests["g1"].plan_lock == "compare"
    assert plans.candidates == [{"models": {}}] * 4
    assert run(site) == 3
    out = capsys.readouterr().out
    assert "✗ g2: it needs one [gpu-missing]" in out
    assert out.endswith("3 planned, 1 refused\n")


def test_some_hosts(site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """--limit, -e and --upgrade mean what they mean with a run."""
    assert run(site, "-l", "g1,s1", "--json", "-e", "llmetal_root=/srv/x", "--upgrade") == 0
    assert set(document(capsys)["hosts"]) == {"g1", "s1"}
    assert plans.requests["g1"].root == "/srv/x"
    assert plans.requests["g1"].plan_lock == "upgrade"


@pytest.mark.parametrize("limit", ["none", "gpu:!gpu", "@none"])
def test_no_host(
    limit: str, site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that leaves nobody is wrong usage."""
    assert run(site, "-l", limit) == 2
    assert f"where: --limit {limit}" in capsys.readouterr().err
    assert not plans.requests


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there are no recorded facts of the host"),
        (b"", "are no JSON"),
        (b"{", "are no JSON"),
        (b"\xff\xfe", "are no JSON"),
        (b"[" * 100_000, "are no JSON"),
        (b"[]", "are no mapping"),
        (b'"text"', "are no mapping"),
        (b'{"facts": [1]}', "are no mapping"),
        (b'{"facts": null}', "are no mapping"),
    ],
)
def test_facts_that_cannot_be_read(
    content: bytes | None,
    said: str,
    site: Path,
    plans: Planner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The failure names the host, the file and what to do; the other hosts are planned."""
    path = site / "facts" / "g1.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert run(site, "-l", "g1,s1", "--format", "json") == 4
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["exit_code"], set(found["hosts"])) == (4, {"s1"})
    (failure,) = found["failures"]
    assert (failure["host"], failure["where"]) == ("g1", str(path))
    assert said in failure["what"]
    assert "llmetal survey" in failure["fix"]
    assert "llmetal: g1: " in captured.err
    assert run(site, "-l", "g1,s1") == 4
    out = capsys.readouterr().out
    assert f"✗ g1: {failure['what']}: {path}" in out
    assert out.endswith("1 planned, 1 failed\n")
    assert "g1" not in plans.requests


def test_folder_in_place_of_facts(
    site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no file is a failure of its host."""
    path = site / "facts" / "g1.json"
    path.unlink()
    path.mkdir()
    assert run(site, "--json") == 3
    assert [row["what"] for row in document(capsys)["failures"]] == [
        "the recorded facts cannot be read"
    ]
    assert "s1" in plans.requests


def test_bad_inventory(site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """It is checked before anything is planned: status 2, with file and line."""
    text = HOSTS.replace("llmetal_root:", "llmetal_rot:")
    (site / "hosts.yml").write_text(text, encoding="utf-8")
    assert run(site) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hosts.yml:8: llmetal_rot is not known" in captured.err
    assert run(site, "--json") == 2
    found = document(capsys)
    assert (found["exit_code"], found["hosts"]) == (2, {})
    assert found["failures"][0]["what"] == "llmetal_rot is not known"
    assert found["failures"][0]["where"].endswith("hosts.yml:8")
    assert found["failures"][0]["fix"] == "did you mean llmetal_root?"
    assert not plans.requests


def test_key_that_is_missing(
    site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read beside the inventory is a refusal of its host."""
    mirror = {
        "uri": "http://192.0.2.9",
        "key_file": "none.asc",
        "fingerprint": "ab" * 20,
    }
    driver = json.dumps({"source": "cuda_repo", "mirror": mirror})
    text = HOSTS.replace("ansible_host: 192.0.2.1", f"llmetal_driver: {driver}")
    (site / "hosts.yml").write_text(text, encoding="utf-8")
    assert run(site, "-l", "g1,s1", "--json") == 3
    (refusal,) = document(capsys)["hosts"]["g1"]["refusals"]
    assert refusal["rule"] == "input-unreadable"
    assert "none.asc" in refusal["fact"]
    assert set(plans.requests) == {"s1"}


def test_explain(site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that is not among them is wrong usage."""
    assert run(site, "--explain", "g9") == 2
    assert "name one of g1, g2, own, s1" in capsys.readouterr().err
    assert not plans.requests
    assert run(site, "--explain", "g2") == 3
    assert "Why g2 gets what it gets" in capsys.readouterr().out


@pytest.mark.usefixtures("plans")
@pytest.mark.parametrize("as_json", [True, False])
def test_several_processes(
    as_json: bool,  # noqa: FBT001 - a column of the table
    site: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They answer what one does, in the same order."""
    (site / "facts" / "own.yml").unlink()
    words = ["plan", "-i", str(site / "hosts.yml"), "--facts", str(site / "facts")]
    answers = []
    for jobs in (1, 2):
        fleet = recorded.load(cli.make_parser("plan").parse_args(words))
        answer = show_plan.make(as_json=as_json)
        failures = []
        for done in recorded.plan_all(fleet, answer.digest, jobs):
            if done.failure is None:
                answer.take(done.digest)
            else:
                failures.append(done.failure)
        answer.end(3, failures)
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert "g1" in answers[0]
    assert "there are no recorded facts of the host" in answers[0]


def test_recorded_models(site: Path, plans: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies beside the facts of a model is known to the plan; what is bad says so."""
    for name, text in (("good", '{"architectures": ["LlamaForCausalLM"]}'), ("bad", "[")):
        folder = site / "facts" / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text, encoding="utf-8")
    models = [
        {"name": n, "source": {"type": "folder", "path": "/m"}} for n in ("good", "bad", "no")
    ]
    instances = [
        {"name": m["name"], "engine": "vllm", "model": m["name"], "port": 8000 + n}
        for n, m in enumerate(models)
    ]
    extra = json.dumps({"llmetal_models": models, "llmetal_instances": instances})
    run(site, "-l", "g1", "--json", "-e", extra)
    capsys.readouterr()
    (answers,) = plans.candidates
    known = answers["models"]
    assert set(known) == {"good", "bad"}
    assert known["good"]["shape"].architecture == "LlamaForCausalLM"
    assert "is not a JSON object" in known["bad"]["error"]
