# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module model_snapshot: from what is inspected to what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import model_snapshot as subject


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """A small model that was inspected, to be published."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 4}')
    (source / "model.safetensors").write_bytes(b"w" * 100)
    seen = subject.read({"source": str(source), "cache": None}, check_mode=False)
    assert not seen["changed"]
    assert seen["config"]["hidden_size"] == 4
    return {
        "source": str(source),
        "store": str(tmp_path / "store"),
        "name": "tiny",
        "revision": seen["revision"],
        "files": seen["files"],
        "deep": False,
    }


def test_a_prediction_is_kept(params: dict[str, Any], tmp_path: Path) -> None:
    """What check mode says is what the run does."""
    predicted = subject.converge(params, check_mode=True)
    assert predicted["changed"]
    assert not (tmp_path / "store").exists()
    done = subject.converge(params, check_mode=False)
    for key in ("changed", "before", "after", "diff", "folder", "link"):
        assert done[key] == predicted[key]
    assert done["proof"] == {
        "name": "model tiny",
        "ok": True,
        "revision": params["revision"],
        "problems": [],
    }
    assert not subject.converge({**params, "deep": True}, check_mode=False)["changed"]


def test_a_prediction_compares_the_source(params: dict[str, Any]) -> None:
    """A source that cannot be published is no promise."""
    Path(params["source"], "model.safetensors").write_bytes(b"short")
    with pytest.raises(LlmetalError, match="the lock says 100"):
        subject.converge(params, check_mode=True)


def test_another_link_is_corrected(params: dict[str, Any]) -> None:
    """Without a copy."""
    done = subject.converge(params, check_mode=False)
    link = Path(done["link"])
    link.unlink()
    link.symlink_to("elsewhere")
    again = subject.converge(params, check_mode=False)
    assert again["before"] == {"revision": "elsewhere", "problems": []}
    assert link.resolve() == Path(done["folder"])


@pytest.mark.parametrize("name", ["../tiny", ".tiny", "a/b", ""])
def test_names_that_are_paths(params: dict[str, Any], name: str) -> None:
    """Stay in the store."""
    with pytest.raises(LlmetalError, match="not a plain name"):
        subject.converge({**params, "name": name}, check_mode=True)
