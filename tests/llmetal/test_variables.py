# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mistakes in `-e` are told from mistakes in the inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal.variables import check_extra_vars, check_words

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("@missing.yml", "the file of variables cannot be read"),
        ("@list.yml", "no mapping"),
        ('{"a": ', "no YAML or JSON"),
        ("[1]", "no mapping"),
        ("word", "a variable without a value: word"),
        ("a=1 word", "a variable without a value: word"),
        ("./v.yml", "named with @"),
        ('a="b', "cannot be read"),
    ],
)
def test_mistakes(
    item: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused for what it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yml").write_text("- 1", encoding="utf-8")
    with pytest.raises(LlmetalError) as refused:
        check_extra_vars([item])
    assert expected in refused.value.what


def test_good_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ansible reads is let pass, with its own tags and encrypted files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.yml").write_text("a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n", encoding="utf-8")
    (tmp_path / "w.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3132\n", encoding="utf-8")
    check_extra_vars(["@v.yml", "@w.yml", '{"a": 1}', "{a: 1}", "a=1 b='x y'", "a={{ b }}", ""])


def test_words_behind_the_dashes() -> None:
    """Options are handed on, with their values."""
    check_words([])
    check_words(["--forks", "4"])
    with pytest.raises(LlmetalError):
        check_words(["stray"])
