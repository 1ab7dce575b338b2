# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requirements files are read exactly, and only what a Python needs is taken."""

from __future__ import annotations

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import requirements
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import DATA

FILES = sorted(path.name for path in (DATA / "requirements").glob("*.txt"))
ONE = "a" * 64
TWO = "b" * 64


@pytest.mark.parametrize("name", FILES)
def test_read_all(name: str) -> None:
    """Every line of every file is read, and every one has a hash."""
    rows = requirements.read(name)
    assert rows
    assert all(len(digest) == 64 for row in rows for digest in row.sha256)


def test_parse() -> None:
    """A requirement over several lines, with a marker."""
    text = (
        f"# a comment\nthing==1.2 ; python_full_version < '3.12' \\\n    --hash=sha256:{ONE} \\\n"
        f"    --hash=sha256:{TWO}\nother==3 --hash=sha256:{ONE}\n"
    )
    first, second = requirements.parse(text, "x.txt")
    assert (first.name, first.version, first.sha256) == ("thing", "1.2", (ONE, TWO))
    assert str(first.marker) == 'python_full_version < "3.12"'
    assert second.marker is None


@pytest.mark.parametrize(
    "line", ["thing>=1 --hash=sha256:" + ONE, "thing==1", "==1 --hash=sha256:" + ONE]
)
def test_parse_refuses(line: str) -> None:
    """No range, no package without a hash, no nonsense."""
    with pytest.raises(LlmetalError, match="cannot be read"):
        list(requirements.parse(line, "x.txt"))


def test_for_python_evaluates_markers() -> None:
    """What is for Windows or for another Python is left out."""
    whole = requirements.read("vllm-0.33.0.txt")
    mine = requirements.for_python("vllm-0.33.0.txt", "3.11.2", "x86_64")
    assert 0 < len(mine) < len(whole)
    assert len({row.name for row in mine}) == len(mine)
    assert requirements.version_of(mine, "torch") == "2.14.0"
    assert requirements.version_of(mine, "not-there") is None
