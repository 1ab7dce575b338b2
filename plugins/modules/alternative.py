#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module alternative: a path that leads to one of several installations."""

from __future__ import annotations

DOCUMENTATION = r"""
module: alternative
short_description: Register an installation with the system's alternatives
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Registers a path with C(update-alternatives), selects it where that is wanted, or takes it back.
  - A folder, or a link by hand, where the alternative's own link should be is refused by name and
    never removed.
options:
  name:
    description: Name of the alternative.
    type: str
    required: true
  link:
    description: The path that leads to the selected installation. Needed where O(state=present).
    type: path
  path:
    description: The installation.
    type: path
    required: true
  priority:
    description: The higher one is taken where nobody selects.
    type: int
    default: 50
  selected:
    description: Whether it is selected by hand, which a higher priority does not change.
    type: bool
    default: false
  state:
    description: Whether it is registered.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Lead the path without a version to CUDA 13.0
  llmetal.inference.alternative:
    name: cuda
    link: /usr/local/cuda
    path: /usr/local/cuda-13.0
    priority: 130
    selected: true
"""

RETURN = r"""
before:
  description: The choices with their priority, the selected one, and whether by hand.
  type: dict
  returned: success
  sample: {choices: {}, value: null, manual: false}
after:
  description: The same after, or as predicted.
  type: dict
  returned: success
  sample: {choices: {/usr/local/cuda-13.0: 130}, value: /usr/local/cuda-13.0, manual: true}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import alternatives
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "link": {"type": "path"},
    "path": {"type": "path", "required": True},
    "priority": {"type": "int", "default": 50},
    "selected": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def _shown(group: alternatives.Group) -> dict[str, Any]:
    return {
        "choices": dict(group.choices),
        "value": group.value,
        "manual": not group.automatic,
    }


def _predicted(group: alternatives.Group, params: dict[str, Any]) -> dict[str, Any]:
    """The group as it will be."""
    after = _shown(group)
    path = params["path"]
    if params["state"] == "absent":
        after["choices"].pop(path, None)
        gone = after["value"] == path
    else:
        after["choices"][path] = params["priority"]
        gone = False
        if params["selected"]:
            after.update(value=path, manual=True)
    if gone or not after["manual"]:
        best = sorted(after["choices"].items(), key=lambda one: one[1])
        after.update(value=best[-1][0] if best else None, manual=False)
    return after


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Bring the alternative to what the parameters say; the module's result."""
    name, path, present = params["name"], params["path"], params["state"] == "present"
    group = alternatives.query(name)
    if present:
        alternatives.check_path(Path(params["link"]))
    before, after = _shown(group), _predicted(group, params)
    missing = present and not Path(params["link"]).is_symlink()
    changed = before != after or missing
    if changed and not check_mode:
        if present:
            alternatives.apply(
                name, params["link"], path, params["priority"], selected=params["selected"]
            )
        else:
            alternatives.remove(name, path)
        after = _shown(alternatives.query(name))
    return {
        "changed": changed,
        "before": before,
        "after": after,
        "diff": {"before": before, "after": after},
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("state", "present", ["link"])],
        supports_check_mode=True,
    )
    finish(module, converge)


if __name__ == "__main__":
    main()
