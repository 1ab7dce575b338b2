# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action gpu_info: the module of the same name, told what the driver's Xids mean."""

from __future__ import annotations

from ansible_collections.llmetal.inference.plugins.action import gpu_health


class ActionModule(gpu_health.ActionModule):
    """Sends the table of the Xids along, unless the task has one."""

    _module = "llmetal.inference.gpu_info"
