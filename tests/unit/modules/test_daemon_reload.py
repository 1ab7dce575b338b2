# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module daemon_reload: what it says of a reload that is needed, done, or put off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.gpu_containers import (
    GpuContainer,
    Reload,
)
from ansible_collections.llmetal.inference.plugins.modules import daemon_reload as subject

if TYPE_CHECKING:
    import pytest

UNIT = "nvidia-fabricmanager.service"
HELD = GpuContainer("4f1c0ffee123", "docker", 20, "vllm", scope=True)


def converge(
    monkeypatch: pytest.MonkeyPatch, reload: Reload, *, check_mode: bool = False
) -> tuple[dict[str, Any], int]:
    """The module's result, and how often it acted."""
    acted: list[bool] = []
    monkeypatch.setattr(subject, "look", lambda *_words: reload)
    monkeypatch.setattr(subject, "act", lambda *_words, postpone: acted.append(postpone))
    params = {"units": [UNIT], "enable": [UNIT], "postpone": True, "timeout": 5}
    return subject.converge(params, check_mode=check_mode), len(acted)


def test_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed unit is read, one that is off is enabled."""
    done, acted = converge(monkeypatch, Reload((UNIT,), (UNIT,), ()))
    assert acted == 1
    assert done == {
        "changed": True,
        "reloaded": [UNIT],
        "enabled": [UNIT],
        "postponed": [],
        "containers": [],
    }


def test_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the next boot is no change, and who it waits for is named."""
    done, _acted = converge(monkeypatch, Reload((UNIT,), (), (), (HELD,)))
    assert not done["changed"]
    assert (done["reloaded"], done["postponed"]) == ([], [UNIT])
    assert done["containers"][0]["program"] == "vllm"


def test_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run."""
    assert not converge(monkeypatch, Reload((), (), ()))[0]["changed"]


def test_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that is not there yet would be enabled; nothing is done."""
    done, acted = converge(monkeypatch, Reload((), (UNIT,), (UNIT,)), check_mode=True)
    assert done["changed"]
    assert acted == 0
