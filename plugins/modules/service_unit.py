#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module service_unit: a systemd unit, its file and its state in one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_unit
short_description: Manage a systemd unit, its file and its state in one
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Writes a unit file, has systemd read it, and starts, restarts, stops, enables or removes the
    unit as needed.
  - A running unit is restarted only when its file or one of O(restart_on) changed, or when it was
    started before its file was last written, as after an interrupted run.
  - Predicts in check mode, on a host that has no such unit too.
options:
  name:
    description: Name of the unit with its suffix.
    type: str
    required: true
  content:
    description: Text of the unit file. Needed unless O(state=absent).
    type: str
    default: ""
  scope:
    description: The system's manager or that of the user.
    type: str
    choices: [system, user]
    default: system
  state:
    description: What the unit should be.
    type: str
    choices: [started, stopped, absent]
    default: started
  enabled:
    description: Whether it starts at boot, or at login for a user's unit.
    type: bool
    default: true
  restart_on:
    description: Digests of what else the running unit depends on.
    type: list
    elements: str
    default: []
  restart_on_links:
    description: Links, such as that of an environment, whose targets count as O(restart_on).
    type: list
    elements: path
    default: []
  unit_dir:
    description: Folder of unit files, where it is not the usual one.
    type: path
  timeout:
    description: Seconds that one request to systemd may take.
    type: int
    default: 120
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Predicts without changing anything.
  diff_mode:
    support: full
    details: Shows the unit file before and after.
  idempotent:
    support: full
    details: An unchanged unit is neither written nor restarted.
"""

EXAMPLES = r"""
- name: Serve a model
  llmetal.inference.service_unit:
    name: llmetal-chat.service
    content: "{{ lookup('ansible.builtin.template', 'etc/systemd/system/unit.service.j2') }}"
    restart_on_links:
      - /opt/llmetal/environments/vllm-cpu/current

- name: Remove a unit
  llmetal.inference.service_unit:
    name: llmetal-old.service
    state: absent
"""

RETURN = r"""
before:
  description: What was there.
  type: dict
  returned: success
  contains: &state
    sha256:
      description: Hash of the unit file, or null.
      type: str
      sample: null
    running:
      description: Whether the unit is up or on its way up.
      type: bool
      sample: false
    enabled:
      description: Whether it starts at boot.
      type: bool
      sample: false
    up_to_date:
      description: Whether systemd and the running process know the unit file as it is.
      type: bool
      sample: true
after:
  description: What is there now, or would be.
  type: dict
  returned: success
  contains: *state
steps:
  description: What was done, or would be.
  type: list
  elements: str
  returned: success
  sample: [write, reload, enable, start]
main_pid:
  description: The unit's main process; 0 where there is none.
  type: int
  returned: success
  sample: 4711
unit_file:
  description: The unit file.
  type: str
  returned: success
  sample: /etc/systemd/system/llmetal-chat.service
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.service import (
    Manager,
    UnitSpec,
    actions,
    apply,
    compare,
    link_marks,
    require_manager,
    wanted,
)
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "content": {"type": "str", "default": ""},
    "scope": {"type": "str", "choices": ["system", "user"], "default": "system"},
    "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
    "enabled": {"type": "bool", "default": True},
    "restart_on": {"type": "list", "elements": "str", "default": []},
    "restart_on_links": {"type": "list", "elements": "path", "default": []},
    "unit_dir": {"type": "path"},
    "timeout": {"type": "int", "default": 120},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Bring the unit to what the parameters say; the module's result."""
    spec = UnitSpec(
        name=params["name"],
        content=params["content"],
        state=params["state"],
        enabled=params["enabled"],
        restart_on=(*params["restart_on"], *link_marks(params["restart_on_links"])),
    )
    spec.check()
    manager = Manager(params["scope"], params["unit_dir"] or "", params["timeout"])
    state = manager.state_of(spec.name)
    before, after = compare(spec, manager, state), wanted(spec)
    steps = actions(before, after)
    diff = {
        "before_header": spec.name,
        "after_header": spec.name,
        "before": read_text(manager.folder / spec.name) or "",
        "after": "" if spec.state == "absent" else spec.text,
    }
    if steps and not check_mode:
        require_manager(spec, manager, state)
        apply(spec, manager, steps)
        state = manager.state_of(spec.name)
    return {
        "changed": bool(steps),
        "before": asdict(before),
        "after": asdict(after),
        "diff": diff,
        "steps": steps,
        "main_pid": state.main_pid if state else 0,
        "unit_file": str(manager.folder / spec.name),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
