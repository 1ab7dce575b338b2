# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action gpu_health: the module of the same name, told what the driver's Xids mean."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmetal.inference.plugins.plugin_utils import xids


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible has no types
    """Sends the table of the Xids along, unless the task has one."""

    _supports_check_mode = True
    _module = "llmetal.inference.gpu_health"

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module on the host."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if not arguments.get("xids"):
            arguments["xids"] = xids.table()
        result.update(
            self._execute_module(
                module_name=self._module, module_args=arguments, task_vars=task_vars
            )
        )
        return result
