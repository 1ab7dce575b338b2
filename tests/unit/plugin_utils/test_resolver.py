# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers are kept for a while, for the very question that they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import planner, resolver

if TYPE_CHECKING:
    from pathlib import Path


def test_kept_and_forgotten(tmp_path: Path) -> None:
    """An answer is found again until it is too old; with 0 nothing is kept."""
    cache = resolver.Cache(tmp_path / "resolve", 60)
    assert cache.get("a") is None
    cache.put("a", {"packages": {}})
    assert cache.get("a") == {"packages": {}}
    assert resolver.Cache(cache.folder, 0).get("a") is None
    resolver.Cache(tmp_path / "none", 0).put("a", {})
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"at": "x", "answer": {}}'])
def test_broken_file(tmp_path: Path, text: str) -> None:
    """A file that is no answer is none, and no failure."""
    (tmp_path / "a.json").write_text(text)
    assert resolver.Cache(tmp_path, 60).get("a") is None


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A cache is never a reason to fail."""
    (tmp_path / "file").write_text("")
    resolver.Cache(tmp_path / "file" / "resolve", 60).put("a", {})


def test_key(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Equal questions of equal hosts share an answer; another source or question does not."""
    facts = bench.facts()
    one = planner.Question(packages=("a", "b"))
    key = resolver.key_of(one, [], facts)
    assert resolver.key_of(planner.Question(("a", "b"), (("m", "/m"),)), [], facts) == key
    assert resolver.key_of(planner.Question(("a",)), [], facts) != key
    assert resolver.key_of(one, [{"uri": "http://192.0.2.1"}], facts) != key
    assert resolver.key_of(one, [], bench.facts(os__key="debian13")) != key


def test_components_of_the_archive(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A driver of the distribution's archive is asked for with components, not an address."""
    question = planner.Question(("a",), source="debian12-archive", components=("non-free",))
    request = bench.request(llmetal_driver={"source": "debian"})
    assert resolver.sources_of(request, question) == [
        {"name": "debian12-archive", "components": ["non-free"]}
    ]
    assert resolver.sources_of(request, planner.Question(("a",))) == []
