#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module dkms_build: the driver's kernel module on disk for every kernel that may be booted."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dkms_build
short_description: Have the driver's kernel module on disk for every kernel that may be booted
version_added: 0.2.0
author: The llmetal developers (@llmetal)
description:
  - Looks for the C(nvidia) module of each kernel, and has DKMS build it where it lacks or is of
    another version.
  - Fails where one cannot be had, naming the kernel and what the compiler said. A host must not be
    rebooted into a kernel that has no module.
options:
  kernels:
    description: Releases of kernels, as C(uname -r) prints them.
    type: list
    elements: str
    required: true
  version:
    description: Version of the driver.
    type: str
    required: true
  modules:
    description: Flavour of the kernel modules. Without it any is right.
    type: str
    choices: [open, proprietary]
  timeout:
    description: Seconds that one build may take.
    type: int
    default: 1800
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
- name: Have a module for the running and for the newest kernel
  llmetal.inference.dkms_build:
    kernels: [6.1.0-40-amd64, 6.1.0-41-amd64]
    version: 580.159.04
"""

RETURN = r"""
modules:
  description: Version of the module for each kernel after; null for none.
  type: dict
  returned: success
  sample: {6.1.0-40-amd64: 580.159.04}
built:
  description: Kernels whose module was, or would be, built.
  type: list
  elements: str
  returned: success
  sample: []
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import dkms
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

ARGUMENTS: dict[str, Any] = {
    "kernels": {"type": "list", "elements": "str", "required": True},
    "version": {"type": "str", "required": True},
    "modules": {"type": "str", "choices": ["open", "proprietary"]},
    "timeout": {"type": "int", "default": 1800},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        before, after = dkms.converge(
            params["kernels"],
            params["version"],
            params["modules"],
            check_mode=module.check_mode,
            timeout=params["timeout"],
        )
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    states = [{one.kernel: one.version for one in state} for state in (before, after)]
    module.exit_json(
        changed=before != after,
        modules=states[1],
        built=[one.kernel for one, other in zip(before, after) if one != other],
        diff={"before": states[0], "after": states[1]},
    )


if __name__ == "__main__":
    main()
