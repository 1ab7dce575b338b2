# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action validate: check the whole inventory, on the controller, before any connection."""

from __future__ import annotations

from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.llmetal.inference.plugins.plugin_utils import validate
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain

EXIT_INVENTORY = 2


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible has no types
    """Fails with every problem of the inventory that the run was started with."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Check names, types, groups and references; no host is asked anything."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        paths = validate.sources_of(context.CLIARGS.get("inventory"))
        extra = plain(load_extra_vars(loader=self._loader))
        problems = validate.validate_inventory(paths, extra, self._loader)
        result["changed"] = False
        result["problems"] = [problem.as_dict() for problem in problems]
        if problems:
            result["failed"] = True
            result["llmetal_exit_code"] = EXIT_INVENTORY
            result["msg"] = validate.as_text(problems)
        return result
