# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's request and lock, found from Ansible's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import site

if TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"
FINGERPRINT = "eb69 3b30 35cd 5710 e231  e123 a4b4 6996 3bf8 63cc"


def variables(folder: Path, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any variable
    """The variables of a host whose inventory is in a folder."""
    mirror = {"uri": "http://192.0.2.1", "key_file": "keys/a.asc", "fingerprint": FINGERPRINT}
    return {
        "inventory_dir": str(folder),
        "group_names": ["gpu", "rack_7"],
        "llmetal_driver": {"source": "cuda_repo", "mirror": mirror},
        "unrelated": object(),
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An inventory with a key."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "a.asc").write_text(KEY)
    return tmp_path


def test_request(folder: Path) -> None:
    """The key is read beside the inventory; groups of one's own do not matter."""
    request = site.host_request("gpu-1", variables(folder))
    assert request.groups == ("gpu",)
    assert request.driver.mirror is not None
    assert request.driver.mirror.key == KEY
    assert request.driver.mirror.fingerprint == "EB693B3035CD5710E231E123A4B469963BF863CC"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [("keys/b.asc", None, "cannot be read"), ("keys/a.asc", "hello", "is not an armored")],
)
def test_bad_key(folder: Path, name: str, text: str | None, why: str) -> None:
    """A key that is missing, or is none, is named by its file."""
    if text is not None:
        (folder / name).write_text(text)
    asked = variables(folder)
    asked["llmetal_driver"]["mirror"]["key_file"] = name
    with pytest.raises(LlmetalError, match=f"{why}.*{name}"):
        site.host_request("gpu-1", asked)


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, "locks/gpu-1.yml"), ("mine", "mine/gpu-1.yml")]
)
def test_lock_path(folder: Path, asked: str | None, expected: str) -> None:
    """Locks lie beside the inventory, unless another folder is named."""
    mine = variables(folder, **({"llmetal_lock_dir": asked} if asked else {}))
    request = site.host_request("gpu-1", mine)
    assert site.lock_path(request, mine) == folder / expected


def test_existing_lock(folder: Path, a100_plan: Plan) -> None:
    """The lock is read unless it is to be ignored."""
    mine = variables(folder)
    request = site.host_request("gpu-1", mine)
    assert site.existing_lock(request, mine) is None
    assert a100_plan.lock is not None
    lock_.write(site.lock_path(request, mine), lock_.dump(a100_plan.lock))
    assert site.existing_lock(request, mine) == a100_plan.lock
    ignoring = site.host_request("gpu-1", {**mine, "llmetal_plan_lock": "ignore"})
    assert site.existing_lock(ignoring, mine) is None


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is where the command has it."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("LLMETAL_CACHE", raising=False)
    assert str(site.cache_folder()) == "/x/llmetal"
    monkeypatch.setenv("LLMETAL_CACHE", "/y")
    assert str(site.cache_folder()) == "/y"
