# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine an environment holds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import engine as subject
from ansible_collections.llmetal.inference.plugins.module_utils.engine import Engine
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("installed", "command", "why"),
    [
        ("0.32.0", "/bin/vllm", ""),
        ("0.32.0+cpu", "/bin/vllm", ""),
        ("0.33.0", "/bin/vllm", "vllm 0.33.0 is installed, the lock says 0.32.0"),
        (None, "/bin/vllm", "no distribution named vllm"),
        ("0.32.0", None, "no command bin/vllm"),
    ],
)
def test_an_engine_is_compared_with_the_lock(
    installed: str | None, command: str | None, why: str
) -> None:
    """The build after the plus sign does not count."""
    assert why in Engine("vllm", installed, None, "3.11.2", command).differs_from("0.32.0")
    assert bool(why) == bool(
        Engine("vllm", installed, None, "3.11.2", command).differs_from("0.32.0")
    )


def test_an_environment_is_asked(tmp_path: Path) -> None:
    """By its own interpreter."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    seen = subject.inspect(tmp_path, "no-such-engine", 30)
    assert seen.version is None
    assert seen.command is None
    assert seen.python.startswith("3.")


def test_an_environment_that_does_not_run(tmp_path: Path) -> None:
    """Is an error with its path."""
    with pytest.raises(LlmetalError, match="does not run"):
        subject.inspect(tmp_path, "vllm", 30)


def test_what_the_script_prints_is_read() -> None:
    """With the versions it found."""
    text = json.dumps({"engine": "0.32.0+cpu", "torch": "2.13.0", "python": "3.13.5"})
    assert subject.parse("vllm", None, text) == Engine(
        "vllm", "0.32.0+cpu", "2.13.0", "3.13.5", None
    )
