# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a host from its variables: what the action plugin and `llmetal plan` have in common."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    lock as lock_,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    lock_diff,
    planner,
    site,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest


@dataclass(frozen=True)
class Planned:
    """The plan of a host of an inventory, beside the lock that it has."""

    plan: Plan
    path: Path | None = None
    """Where its lock lies; None where the inventory does not even say that."""
    installable: bool = False
    """Whether the plan's lock has everything that a run needs."""

    def as_dict(self) -> dict[str, Any]:
        """The plan as `llmetal plan --format json` prints it."""
        return {**self.plan.as_dict(), "kept": self.plan.from_file}


def plan_variables(
    host: str,
    variables: Mapping[str, Any],
    facts: object,
    answers: Mapping[str, Any] | None,
    compat: Compat,
) -> Planned:
    """Plan a host; what cannot be read is a refusal like any other.

    Args:
        host: its name.
        variables: its templated variables.
        facts: what the survey saw.
        answers: what the resolve stage found; None where it was not asked.
        compat: the compatibility data.
    """
    try:
        request = site.host_request(host, variables)
    except LlmetalError as error:
        return Planned(_unreadable(host, error, compat))
    return plan_request(request, variables, facts, answers, compat)


def plan_request(
    request: HostRequest,
    variables: Mapping[str, Any],
    facts: object,
    answers: Mapping[str, Any] | None,
    compat: Compat,
) -> Planned:
    """Plan a host whose variables are read already; as `plan_variables`."""
    path = site.lock_path(request, variables)
    try:
        existing = existing_lock(request, variables)
    except LlmetalError as error:
        return Planned(_unreadable(request.name, error, compat), path)
    plan = planner.plan_host(request, facts, answers, compat, existing)
    if existing is None and plan.lock is not None:
        # A lock that is to be ignored: what it had is worth to know.
        with contextlib.suppress(LlmetalError):
            ignored = lock_.load(path)
            if ignored is not None:
                plan = replace(plan, changes=lock_diff.changes(ignored, plan.lock))
    whole = plan.lock is not None and not plan.lock["unresolved"]
    return Planned(plan, path, whole)


def existing_lock(request: HostRequest, variables: Mapping[str, Any]) -> lock_.Lock | None:
    """The lock that a host has, where it matters to its plan.

    Raises:
        LlmetalError: it cannot be read, and is not just going to be replaced.
    """
    try:
        return site.existing_lock(request, variables)
    except LlmetalError:
        if request.plan_lock == "upgrade":
            return None
        raise


def _unreadable(host: str, error: LlmetalError, compat: Compat) -> Plan:
    findings = Findings(host, compat)
    fact = f"{error.where}: {error.what}; {error.why}"
    findings.add("input-unreadable", fact=fact, fix=error.fix)
    return Plan(host, None, tuple(findings.refusals))
