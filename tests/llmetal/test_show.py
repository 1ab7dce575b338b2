# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What survey prints for people and for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import show
from llmetal.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

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


def surveyed() -> Progress:
    """A run that has surveyed one host."""
    return Progress(results={"llmetal.inference.survey": {"gpu1": {"facts": FACTS}}})


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


def test_document() -> None:
    """A machine gets the facts."""
    assert show.document(surveyed()) == {"facts": {"gpu1": FACTS}, "failures": []}


def test_saved_facts(tmp_path: Path) -> None:
    """Each host's facts go to a file of their own, which only their owner may read."""
    folder = tmp_path / "new" / "facts"
    show.save(folder, show.facts_of(surveyed()))
    (file,) = folder.iterdir()
    assert file.name == "gpu1.json"
    assert json.loads(file.read_text(encoding="utf-8")) == {"facts": FACTS}
    assert file.stat().st_mode & 0o777 == 0o600


def test_facts_that_cannot_be_saved(tmp_path: Path) -> None:
    """A folder that cannot be made is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LlmetalError, match="facts cannot be written"):
        show.save(tmp_path / "file" / "facts", {"gpu1": FACTS})


def test_tables_take_brackets_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A text with brackets is no markup."""
    state = Progress(results={"llmetal.inference.survey": {"[red]": {"facts": {"arch": "[b]x"}}}})
    show.print_found(state)
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[b]x" in out
