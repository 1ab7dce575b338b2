# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks are read strictly, written whole, and equal data makes equal text."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan


@pytest.fixture
def lock(a100_plan: Plan) -> lock_.Lock:
    """A whole lock."""
    assert a100_plan.lock is not None
    return a100_plan.lock


def test_round_trip(lock: lock_.Lock, tmp_path: Path) -> None:
    """What is written is what is read, and the same lock is not written twice."""
    path = tmp_path / "locks" / "gpu-1.yml"
    assert lock_.write(path, lock_.dump(lock))
    assert lock_.load(path) == lock
    before = path.stat()
    assert not lock_.write(path, lock_.dump(lock))
    assert path.stat() == before


def test_no_lock(tmp_path: Path) -> None:
    """A host without a lock is no error."""
    assert lock_.load(tmp_path / "gpu-1.yml") is None


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda lock: lock.pop(key)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (_without("driver"), "the lock is not"),
        (lambda lock: lock.update(schema=2), "schema is not"),
        (lambda lock: lock.update(surprise=1), "the lock is not"),
        (lambda lock: lock["host"].update(scope="root"), "host.scope is not"),
        (lambda lock: lock["driver"].update(version="580"), "driver is not"),
        (lambda lock: lock["instances"][0].update(port=0), "instances.0.port is not"),
        (lambda lock: lock["models"][0]["files"][0].update(sha256="x"), "models.0.files.0.sha256"),
    ],
)
def test_schema_names_the_key(
    lock: lock_.Lock, change: Callable[[dict[str, Any]], object], key: str
) -> None:
    """A lock that was edited is refused by the key."""
    change(lock)
    with pytest.raises(LlmetalError, match=key):
        lock_.validate(lock, "gpu-1.yml")


@pytest.mark.parametrize("text", ["", "- 1\n", "{", "text\n", "---\nschema: 1\n"])
def test_not_a_lock(tmp_path: Path, text: str) -> None:
    """A file that is no lock is refused by its name."""
    path = tmp_path / "gpu-1.yml"
    path.write_text(text)
    with pytest.raises(LlmetalError, match=r"gpu-1\.yml"):
        lock_.load(path)


def test_folder_in_place_of_a_lock(tmp_path: Path) -> None:
    """What cannot be read is an error, and not an absent lock."""
    with pytest.raises(LlmetalError, match="cannot be read"):
        lock_.load(tmp_path)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The error of a lock that cannot be written names file and way out."""
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(LlmetalError, match="llmetal_lock_dir"):
        lock_.write(tmp_path / "locks" / "gpu-1.yml", "text")


def test_schema_is_read_late() -> None:
    """Who only plans does not pay for the validator."""
    code = (
        "import sys\n"
        "from ansible_collections.llmetal.inference.plugins.plugin_utils import lock\n"
        "print('jsonschema' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout == "False\n"
