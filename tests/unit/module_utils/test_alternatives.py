# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Alternatives: what the tool prints, and what stands in its way."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import alternatives
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import alternative

FIXTURES = Path(__file__).parents[2] / "fixtures" / "alternatives"


def read(case: str) -> alternatives.Group:
    """The group of a fixture."""
    return alternatives.parse((FIXTURES / case / "query.txt").read_text())


@pytest.mark.parametrize("case", sorted(path.name for path in FIXTURES.iterdir()))
def test_parse(case: str) -> None:
    """What was printed is read."""
    expected = json.loads((FIXTURES / case / "expected.json").read_text())
    assert json.loads(json.dumps(asdict(read(case)))) == expected


def test_path(tmp_path: Path) -> None:
    """A folder or a link by hand is refused by name, the tool's own link is not."""
    link = tmp_path / "cuda"
    alternatives.check_path(link)
    link.symlink_to("/etc/alternatives/cuda")
    alternatives.check_path(link)
    link.unlink()
    link.symlink_to("/opt/cuda")
    with pytest.raises(LlmetalError, match=r"a link to /opt/cuda that somebody made by hand"):
        alternatives.check_path(link)
    link.unlink()
    link.mkdir()
    with pytest.raises(LlmetalError, match="a folder or file"):
        alternatives.check_path(link)


@pytest.mark.parametrize(
    ("wanted", "changed", "value", "manual"),
    [
        ({"path": "/usr/local/cuda-12.9", "priority": 129, "selected": True}, False, "12.9", True),
        ({"path": "/usr/local/cuda-13.0", "priority": 130, "selected": True}, True, "13.0", True),
        ({"path": "/usr/local/cuda-12.9", "state": "absent"}, True, "13.0", False),
        ({"path": "/usr/local/cuda-11.8", "state": "absent"}, False, "12.9", True),
    ],
)
def test_prediction(  # noqa: PLR0913, PLR0917 - the columns of the table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, Any],
    changed: bool,  # noqa: FBT001 - a column of the table
    value: str,
    manual: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Selecting, registering and taking back, without doing it."""
    (tmp_path / "cuda").symlink_to("/etc/alternatives/cuda")
    monkeypatch.setattr(alternatives, "query", lambda _name: read("two_toolkits"))
    params = {
        "name": "cuda",
        "link": str(tmp_path / "cuda"),
        "priority": 50,
        "selected": False,
        "state": "present",
        **wanted,
    }
    done = alternative.converge(params, check_mode=True)
    assert done["changed"] is changed
    assert done["after"]["value"] == f"/usr/local/cuda-{value}"
    assert done["after"]["manual"] is manual
