# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal validate` reads what a run would read: the vault and `-e` too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from llmetal import paths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def vaulted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an inventory with an encrypted file, and of its password."""
    inventory = tmp_path / "inventory"
    shutil.copytree(paths.INVENTORY / "local", inventory)
    encrypted = VaultLib([("default", VaultSecret(b"secret"))]).encrypt("site_note: x\n")
    (inventory / "group_vars" / "gpu.yml").write_bytes(encrypted)
    (tmp_path / "pw").write_text("secret\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def validate(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: Ansible takes the vault's secrets once in one."""
    argv = [sys.executable, "-m", "llmetal", "validate", "-i", *words]
    return subprocess.run(argv, check=False, capture_output=True, text=True)


def test_vault_needs_its_password(vaulted: Path) -> None:
    """Without one the inventory cannot be read; with one it has no problem."""
    assert vaulted.is_dir()
    done = validate("inventory")
    assert done.returncode == 2
    assert "no vault secrets" in done.stderr
    done = validate("inventory", "--", "--vault-password-file", "pw")
    assert (done.returncode, done.stderr) == (0, "")
    done = validate("inventory", "--", "--vault-password-file", "none")
    assert done.returncode == 2
    assert "the vault's password cannot be read" in done.stderr


def test_extra_variables_are_checked() -> None:
    """A name that is not known is found where it was given."""
    done = validate(str(paths.INVENTORY / "local"), "-e", "llmetal_nonsense=1")
    assert done.returncode == 2
    assert "llmetal_nonsense is not known" in done.stderr
