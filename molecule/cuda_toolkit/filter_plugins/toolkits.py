# Copyright: the llmetal developers  # noqa: INP001 - Ansible loads this file by its path
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slices of a host with toolkits, surveyed and planned as `site.yml` does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import planner, request, slices
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_compat
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable


def _key(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def toolkit_slices(
    facts: dict[str, Any], name: str, cuda: dict[str, Any], offered: str
) -> dict[str, Any]:
    """The slices of a host that is asked for nothing but toolkits.

    Args:
        facts: what the survey saw.
        name: the host.
        cuda: its `llmetal_cuda`.
        offered: the version in which its package source has the metapackage.
    """
    asked = request.from_variables(name, ["gpu"], {"llmetal_cuda": plain(cuda)}, _key)
    answers = {"packages": {"cuda-toolkit-13-0": [{"version": plain(offered)}]}}
    plan = planner.plan_host(asked, plain(facts), answers, load_compat())
    if plan.lock is None:
        raise ValueError("; ".join(f"{row.rule}: {row.fact}" for row in plan.refusals))
    return slices.cut(plan.lock)


class FilterModule:
    """The filters of this scenario."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {"toolkit_slices": toolkit_slices}
