# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plan: plan all hosts at once, on the controller; refusals of all end the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import slices
from ansible_collections.llmetal.inference.plugins.plugin_utils.canonical import sha256_of
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_compat
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain
from ansible_collections.llmetal.inference.plugins.plugin_utils.planning import plan_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Finding
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planning import Planned

EXIT_REFUSED = 3


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible has no types
    """Makes the lock of every host of the play, or says why there can be none."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"hosts"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the slices of each host; write the locks that are new, unless in check mode."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {"hosts": {"type": "list", "elements": "str", "required": True}}
        )
        variables = (task_vars or {})["hostvars"]
        compat = load_compat()
        plans = [_plan(host, variables[host], compat) for host in plain(arguments["hosts"])]
        warnings = [finding for one in plans for finding in one.plan.warnings]
        refusals = [finding for one in plans for finding in one.plan.refusals]
        result["changed"] = False
        result["warnings"] = [_line(finding) for finding in warnings]
        result["findings"] = [finding.as_dict() for finding in warnings]
        result["refusals"] = [finding.as_dict() for finding in refusals]
        result["plans"] = {one.plan.host: one.as_dict() for one in plans}
        if refusals:
            result["failed"] = True
            result["llmetal_exit_code"] = EXIT_REFUSED
            result["msg"] = _text(refusals)
            return result
        try:
            result["hosts"] = {
                one.plan.host: self._take(one, variables[one.plan.host])
                for one in plans
                if one.installable
            }
        except LlmetalError as error:
            return result | {"failed": True, **error.as_result()}
        return result

    def _take(self, planned: Planned, variables: Mapping[str, Any]) -> dict[str, Any]:
        """What the roles and the report get of a plan; the lock is written where it is new."""
        lock = planned.plan.lock or {}
        text, written = lock_.dump(lock), False
        is_new = not planned.plan.from_file
        if is_new and planned.path is not None and not self._task.check_mode:
            written = lock_.write(planned.path, text)
        return {
            "slices": slices.cut(lock, _managed(variables)),
            "lock_text": text,
            "lock_sha256": sha256_of(lock),
            "lock_file": str(planned.path),
            "lock_written": written,
            "versions": slices.versions(lock),
            "endpoints": slices.endpoints(lock),
        }


def _plan(host: str, variables: Mapping[str, Any], compat: Compat) -> Planned:
    """The plan of one host, from what survey and resolve left in its variables."""
    survey = plain(variables.get("llmetal_survey")) or {}
    resolution = plain(variables.get("llmetal_resolution")) or {}
    return plan_variables(host, variables, survey.get("facts"), resolution.get("answers"), compat)


def _managed(variables: Mapping[str, Any]) -> frozenset[str]:
    """The roles that have left a receipt on a host."""
    facts = variables["llmetal_survey"]["facts"]
    return frozenset(str(role) for role in facts.get("receipts") or ())


def _line(finding: Finding) -> str:
    return f"{finding.host}: {finding.reason}: {finding.fact} [{finding.rule}]. {finding.fix}"


def _text(refusals: Sequence[Finding]) -> str:
    hosts = len({finding.host for finding in refusals})
    count = "1 refusal" if len(refusals) == 1 else f"{len(refusals)} refusals"
    where = "1 host" if hosts == 1 else f"{hosts} hosts"
    head = f"{count} on {where}; nothing was changed on any host."
    return "\n\n".join([head, *(finding.as_text("✗") for finding in refusals)])
