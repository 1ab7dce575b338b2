# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module engine_info: what it says of an environment."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import engine_info as subject

if TYPE_CHECKING:
    from pathlib import Path


def params(environment: Path, version: str | None = None) -> dict[str, Any]:
    """The module's parameters."""
    return {"environment": str(environment), "engine": "vllm", "version": version, "timeout": 30}


def test_another_engine_than_locked(tmp_path: Path) -> None:
    """An environment without the engine is told as what it is."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert subject.look(params(tmp_path))["engine"]["version"] is None
    with pytest.raises(LlmetalError, match="no distribution named vllm"):
        subject.look(params(tmp_path, "0.32.0"))


@pytest.mark.parametrize("check_mode", [True, False])
def test_an_environment_that_is_not_there_yet(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    check_mode: bool,  # noqa: FBT001 - a table
) -> None:
    """Is a failure, but in a prediction."""
    arguments = {**params(tmp_path / "none"), "_ansible_check_mode": check_mode}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        subject.main()
    result = json.loads(capsys.readouterr().out)
    assert bool(result.get("failed")) != check_mode
