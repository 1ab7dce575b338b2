#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module daemon_reload: systemd knows units as they are on disk, beside containers with GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: daemon_reload
short_description: Have systemd read changed units, unless that cuts containers off their GPUs
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Asks systemd which of the units have changed on disk since it read them, and has it read them
    anew (C(systemctl daemon-reload)) only where one has.
  - Where a container holds GPUs, a reload takes them away from it while it runs on. Then the module
    fails and names the containers, or leaves the reload to the next boot (O(postpone)).
  - Enables units without the reload that C(systemctl enable) brings by itself.
  - Needs root, for it looks into the processes of containers.
options:
  units:
    description: Units that systemd should know as they are on disk.
    type: list
    elements: str
    default: []
  enable:
    description: Units that should start at boot.
    type: list
    elements: str
    default: []
  postpone:
    description: >-
      Whether the reload may wait for the next boot where containers hold GPUs. Right for what only
      matters at a boot, such as a condition.
    type: bool
    default: false
  timeout:
    description: Seconds that one call of systemctl may take.
    type: int
    default: 60
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Have systemd read the drop-in
  llmetal.inference.daemon_reload:
    units:
      - nvidia-fabricmanager.service
    enable:
      - nvidia-fabricmanager.service
    postpone: true
"""

RETURN = r"""
reloaded:
  description: The changed units that systemd has read anew, or would.
  type: list
  elements: str
  returned: success
  sample: [nvidia-fabricmanager.service]
enabled:
  description: The units that were enabled, or would be.
  type: list
  elements: str
  returned: success
  sample: []
postponed:
  description: The changed units that systemd knows as they were until the next boot.
  type: list
  elements: str
  returned: success
  sample: []
containers:
  description: The containers that a needed reload would cut off their GPUs.
  type: list
  elements: dict
  returned: success
  contains:
    id:
      description: The beginning of its id.
      type: str
      sample: 4f1c0ffee123
    engine:
      description: What runs it, as its cgroup is named.
      type: str
      sample: docker
    pid:
      description: One of its processes.
      type: int
      sample: 4711
    program:
      description: What that process runs, without its arguments.
      type: str
      sample: vllm
    scope:
      description: Whether systemd manages its cgroup.
      type: bool
      sample: true
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.gpu_containers import act, look
from ansible_collections.llmetal.inference.plugins.module_utils.service import Manager
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "units": {"type": "list", "elements": "str", "default": []},
    "enable": {"type": "list", "elements": "str", "default": []},
    "postpone": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 60},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Enable and reload what needs it; the module's result."""
    manager = Manager(timeout=params["timeout"])
    reload = look(params["units"], params["enable"], manager)
    if not check_mode:
        act(reload, manager, postpone=params["postpone"])
    waits = reload.is_postponed
    return {
        "changed": bool(reload.to_enable or (reload.stale and not waits)),
        "reloaded": [] if waits else list(reload.stale),
        "enabled": list(reload.to_enable),
        "postponed": list(reload.stale) if waits else [],
        "containers": [container.as_dict() for container in reload.containers],
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
