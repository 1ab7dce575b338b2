# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks: what their headers and their plays are called."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llmetal.progress import STAGES

ROOT = Path(__file__).resolve().parents[2]


def stage_playbooks() -> list[Path]:
    """The playbooks that site.yml imports."""
    site = ROOT / "site.yml"
    plays = yaml.safe_load(site.read_text(encoding="utf-8")) if site.is_file() else []
    return [ROOT / play["ansible.builtin.import_playbook"] for play in plays]


def test_site_has_the_stages_in_order() -> None:
    """site.yml imports one playbook for each stage, in their order, and does nothing else."""
    names = [path.stem.capitalize() for path in stage_playbooks()]
    assert names == [stage for stage in STAGES if stage in names]
    assert set(STAGES) - set(names) <= {"Report"}  # a callback may write it


@pytest.mark.parametrize("path", stage_playbooks(), ids=lambda path: path.stem)
def test_stage_is_in_the_names(path: Path) -> None:
    """A play's name begins with its stage: the progress display and the report read it there."""
    for play in yaml.safe_load(path.read_text(encoding="utf-8")):
        stage, bar, sentence = play["name"].partition(" | ")
        assert bar
        assert sentence
        assert stage == path.stem.capitalize()


def test_header(playbook: Path) -> None:
    """A playbook's header says what it does and touches, and one command that runs it."""
    header = []
    for line in playbook.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            header.append(line)
        elif line != "---":
            break
    text = "\n".join(header)
    assert "llmetal" in text or "ansible-playbook" in text
    assert len(header) > 1
