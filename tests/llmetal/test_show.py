# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What survey and plan print for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmetal import show
from llmetal.progress import Progress

if TYPE_CHECKING:
    import pytest

FACTS: dict[str, Any] = {
    "os": {"pretty": "Debian GNU/Linux 12"},
    "arch": "x86_64",
    "kernel": {"running": "6.1.0-40", "headers": {"package": "linux-headers", "installed": False}},
    "cpus": 2,
    "memory_bytes": 8 << 30,
    "gpu": {
        "gpus": [{"name": "A100", "device_id": "20b2"}, {"name": None, "device_id": "20b2"}],
        "driver": {"loaded": None},
        "problems": [{"what": "nouveau is loaded", "why": "it was there first", "fix": "reboot"}],
    },
    "services": {"llmetal-chat.service": {"active": "active"}},
}
LOCK = """\
host: {os_pretty: Debian GNU/Linux 12, scope: system}
kernel: {running: 6.1.0-40}
driver:
  {version: 580.159.04, modules: open, source: {name: cuda}, why: [the newest of its branch]}
fabric: {package: nvidia-fabricmanager, version: 580.159.04-1}
python:
  environments: [{name: vllm-cpu, python: {version: "3.11"}, requirements: [{}, {}]}]
engines: [{name: vllm, version: 0.32.0, device: cpu, torch: 2.13.0}]
models: [{name: smollm2, revision: abc, files: [{size: 1073741824}]}]
instances: [{name: chat, model: smollm2, device: cpu, host: 127.0.0.1, port: 8000}]
unresolved: [{field: driver.version, why: nobody was asked}]
"""


def surveyed() -> Progress:
    """A run that has surveyed one host."""
    return Progress(results={"llmetal.inference.survey": {"gpu1": {"facts": FACTS}}})


def planned() -> Progress:
    """A run that has planned one host."""
    result = {"hosts": {"gpu1": {"lock_text": LOCK}}, "refusals": []}
    return Progress(results={"llmetal.inference.plan": {"localhost": result}})


def test_survey_names_what_a_person_asks_for() -> None:
    """System, kernel, GPUs by name and count, driver, services, problems with the way out."""
    rows = list(show.survey_rows(FACTS))
    assert ("system", "Debian GNU/Linux 12 x86_64") in rows
    assert ("headers", "linux-headers: not installed") in rows
    assert ("GPUs", "1 x A100") in rows
    assert ("GPUs", "1 x 20b2") in rows
    assert ("driver", "not loaded") in rows
    assert ("service", "llmetal-chat.service: active") in rows
    assert ("problem", "nouveau is loaded. it was there first. reboot") in rows


def test_survey_of_an_empty_host() -> None:
    """Facts that are missing are no crash."""
    assert ("GPUs", "none") in list(show.survey_rows({}))


def test_plan_names_what_a_host_gets() -> None:
    """Driver with its reasons, environment, engine, model, instance with its address."""
    (lock,) = show.locks_of(planned()).values()
    rows = list(show.plan_rows(lock))
    assert ("driver", "580.159.04, open modules, from cuda") in rows
    assert ("", "the newest of its branch") in rows
    assert ("environment", "vllm-cpu: Python 3.11, 2 packages") in rows
    assert ("engine", "vllm 0.32.0 on cpu, torch 2.13.0") in rows
    assert ("model", "smollm2 at abc, 1.00 GiB") in rows
    assert ("instance", "chat: smollm2 on cpu, http://127.0.0.1:8000/v1") in rows
    assert ("unresolved", "driver.version: nobody was asked") in rows


def test_documents() -> None:
    """A machine gets the facts, or the locks and the refusals."""
    assert show.document("survey", surveyed()) == {"facts": {"gpu1": FACTS}, "failures": []}
    document = show.document("plan", planned())
    assert document["locks"]["gpu1"]["engines"][0]["name"] == "vllm"
    assert document["refusals"] == []


def test_tables_take_brackets_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A text with brackets is no markup."""
    state = Progress(results={"llmetal.inference.survey": {"[red]": {"facts": {"arch": "[b]x"}}}})
    show.print_found("survey", state)
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[b]x" in out
