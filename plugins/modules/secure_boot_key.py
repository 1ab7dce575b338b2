#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module secure_boot_key: a key that signs kernel modules, made and put to the firmware."""

from __future__ import annotations

DOCUMENTATION = r"""
module: secure_boot_key
short_description: Have a key for signing kernel modules, and ask the firmware to enrol it
version_added: 0.2.0
author: The llmetal developers (@llmetal)
description:
  - Makes the key and its certificate where they lack, and requests their enrolment by
    C(mokutil --import) where the firmware does not have them.
  - The enrolment itself needs a person at the console, once; RV(state) says where it stands.
  - Needs a host that booted by UEFI, and mokutil.
options:
  key:
    description: Path of the private key.
    type: path
    required: true
  certificate:
    description: Path of the certificate, in DER.
    type: path
    required: true
  password:
    description: One-time password that the firmware asks for. Needed only for the request.
    type: str
    default: ""
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
- name: Have the key of the kernel modules
  llmetal.inference.secure_boot_key:
    key: /var/lib/dkms/mok.key
    certificate: /var/lib/dkms/mok.pub
    password: "{{ vault_mok_password }}"
  register: signing
"""

RETURN = r"""
state:
  description: >-
    V(enrolled), or V(pending) where a person has to confirm it at the console at the next boot.
  type: str
  returned: success
  sample: pending
steps:
  description: What was done, or would be, of V(key) and V(request).
  type: list
  elements: str
  returned: success
  sample: [key, request]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import secure_boot
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

ARGUMENTS: dict[str, Any] = {
    "key": {"type": "path", "required": True, "no_log": False},
    "certificate": {"type": "path", "required": True},
    "password": {"type": "str", "default": "", "no_log": True},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        _before, after, steps = secure_boot.converge(
            params["key"],
            params["certificate"],
            params["password"],
            check_mode=module.check_mode,
        )
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(changed=bool(steps), state=after.enrolment, steps=steps)


if __name__ == "__main__":
    main()
