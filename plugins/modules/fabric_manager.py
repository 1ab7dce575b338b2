#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module fabric_manager: the fabric manager of the driver's version runs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_manager
short_description: Run NVIDIA's fabric manager in the version of the driver
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Starts the fabric manager where it does not run, and restarts it where the process is older
    than the program on disk.
  - Fails before that where its packages are not in the versions of the lock, where the loaded
    driver is of another version (it would end at once), and where programs use the GPUs, for they
    keep the old state of the fabric.
  - Fails where it does not stay up, with its own last words and what they mean.
  - In check mode it fails for none of this, and says what it would do.
options:
  service:
    description: Its unit.
    type: str
    default: nvidia-fabricmanager.service
  package:
    description: Its package.
    type: str
    required: true
  version:
    description: The version of the package.
    type: str
    required: true
  packages:
    description: What comes with it.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Its version.
        type: str
        required: true
  state:
    description: V(started) runs it, V(installed) only looks whether it could run.
    type: str
    choices: [started, installed]
    default: started
  timeout:
    description: Seconds that its start may take.
    type: int
    default: 120
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
- name: Run the fabric manager
  llmetal.inference.fabric_manager:
    package: nvidia-fabricmanager
    version: 580.159.04-1
"""

RETURN = r"""
action:
  description: "What was done, or would be: none, start, restart."
  type: str
  returned: success
  sample: start
before:
  description: What was found.
  type: dict
  returned: success
  contains: &state
    active:
      description: The state of the unit.
      type: str
      sample: inactive
    enabled:
      description: Whether it starts at boot.
      type: bool
      sample: true
    stale:
      description: Whether the process is older than the program on disk.
      type: bool
      sample: false
    packages:
      description: The installed version of each package; null where it is not there.
      type: dict
      sample: {nvidia-fabricmanager: 580.159.04-1}
    driver:
      description: The version of the loaded driver; null for none.
      type: str
      sample: 580.159.04
after:
  description: What is there now; in check mode, what was found.
  type: dict
  returned: success
  contains: *state
problems:
  description: Why it could not run as it is; only in check mode, else the module fails.
  type: list
  elements: str
  returned: success
  sample: []
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import fabric
from ansible_collections.llmetal.inference.plugins.module_utils.service import Manager
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "service": {"type": "str", "default": "nvidia-fabricmanager.service"},
    "package": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "packages": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
        },
    },
    "state": {"type": "str", "choices": ["started", "installed"], "default": "started"},
    "timeout": {"type": "int", "default": 120},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Run it where it does not run; the module's result."""
    wanted = fabric.Wanted(
        service=params["service"],
        package=params["package"],
        version=params["version"],
        packages={one["name"]: one["version"] for one in params["packages"]},
    )
    manager = Manager(timeout=params["timeout"])
    before = after = fabric.see(wanted, manager)
    action = fabric.action_of(before) if params["state"] == "started" else "none"
    problems = []
    if check_mode:
        problems = fabric.wrong_packages(wanted, before)
        problems += filter(None, [fabric.wrong_driver(wanted, before)])
    else:
        fabric.check(wanted, before)
        if action != "none":
            fabric.refuse_under(fabric.computing(), action, wanted.service)
            fabric.run_it(wanted, action, manager)
            after = fabric.see(wanted, manager)
    return {
        "changed": action != "none",
        "action": action,
        "before": before.as_dict(),
        "after": after.as_dict(),
        "problems": problems,
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
