# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action run_lock: says who runs, and which earlier runs of this controller are dead."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmetal.inference.plugins.plugin_utils.run_identity import (
    is_dead,
    this_run,
)

MODULE = "llmetal.inference.run_lock"


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible has no types
    """Runs the module of the same name."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Claim the lock; where a dead run of this controller has it, take it over at once."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        identity = this_run()
        arguments = {"run_id": identity.run_id, "owner": identity.owner(), **self._task.args}
        wait = arguments.pop("wait", 0)
        # Ask without waiting first: a dead run is not worth a wait. Then wait, and see again
        # whether the run that we waited for died meanwhile.
        for seconds in (0, wait, 0):
            answer = self._ask({**arguments, "wait": seconds}, task_vars)
            if answer.get("decision") != "held":
                break
            owner = answer["previous"]["owner"]
            if is_dead(owner):
                dead = [answer["previous"]["run_id"]]
                answer = self._ask({**arguments, "dead_runs": dead}, task_vars)
                break
            if not int(wait):
                break
        result.update(answer)
        return result

    def _ask(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=task_vars
        )
        return answer
