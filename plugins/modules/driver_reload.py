#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module driver_reload: the driver on disk becomes the one that is loaded, without a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_reload
short_description: Load the installed NVIDIA driver in place of the loaded one, without a reboot
version_added: 0.2.0
author: The llmetal developers (@llmetal)
description:
  - Looks who uses the driver, in the open files and mappings of all processes, in containers, and
    in the reference counts of the kernel's modules.
  - Where nobody does but O(services), stops these, unloads the driver's modules, loads those on
    disk, and starts the services again.
  - Where somebody does, or a module does not go, leaves the host as it was, says who, and does not
    fail. RV(reloaded) is then false, and a reboot is what is left.
  - Never unloads nouveau or nova_core from a live host.
options:
  version:
    description: The driver that should be loaded.
    type: str
    required: true
  modules:
    description: Flavour of its kernel modules. Without it any is right.
    type: str
    choices: [open, proprietary]
  services:
    description:
      - Units that use the driver and may be stopped for the time, in the order in which they start.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Predicts from who uses the driver now.
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Load the new driver where nothing uses the old one
  llmetal.inference.driver_reload:
    version: 580.178.04
    services: [nvidia-persistenced.service, nvidia-fabricmanager.service]
  register: reload
"""

RETURN = r"""
needed:
  description: Whether another driver than O(version), or none, was loaded.
  type: bool
  returned: success
  sample: true
reloaded:
  description: Whether O(version) was, or would be, loaded.
  type: bool
  returned: success
  sample: true
loaded:
  description: The version that was loaded before, or null.
  type: str
  returned: success
  sample: 580.159.04
version:
  description: The version that is loaded after, or null.
  type: str
  returned: success
  sample: 580.178.04
why:
  description: Why it was not done; empty where it was, or where there was nothing to do.
  type: str
  returned: success
  sample: "in use: process 4711 python3 (llmetal-chat.service)"
holders:
  description: Who uses the driver.
  type: list
  elements: dict
  returned: success
  contains:
    kind:
      description: One of V(process), V(container), V(kernel module), V(kernel).
      type: str
      sample: process
    name:
      description: Its program, identifier or name.
      type: str
      sample: python3
    pid:
      description: Its process, or null.
      type: int
      sample: 4711
    unit:
      description: Its systemd unit, or null.
      type: str
      sample: llmetal-chat.service
stopped:
  description: Services that were stopped for the time.
  type: list
  elements: str
  returned: success
  sample: [nvidia-persistenced.service]
not_started:
  description: Services that did not start again.
  type: list
  elements: str
  returned: success
  sample: []
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.driver_reload import converge
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

ARGUMENTS: dict[str, Any] = {
    "version": {"type": "str", "required": True},
    "modules": {"type": "str", "choices": ["open", "proprietary"]},
    "services": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        outcome = converge(
            module.params["version"],
            module.params["modules"],
            services=module.params["services"],
            check_mode=module.check_mode,
            kernel=os.uname().release,
        )
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(
        changed=outcome.reloaded,
        diff={"before": f"{outcome.loaded}\n", "after": f"{outcome.version}\n"},
        **outcome.as_result(),
    )


if __name__ == "__main__":
    main()
