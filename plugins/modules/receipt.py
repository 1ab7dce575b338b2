#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module receipt: what a role left on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: receipt
short_description: Record what a role manages on a host
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Writes a file that holds what is really there of the files, packages, units and links that a
    role manages, and the hash of the wishes that it was made from.
  - A survey reads it and reality in one look and so finds out what has drifted.
options:
  role:
    description: The role.
    type: str
    required: true
  path:
    description: The receipt's file. Its folder is made where it is not there.
    type: path
    required: true
  slice:
    description: The slice of the lock that the role was given.
    type: raw
    required: true
  inputs:
    description: What else it was made from, such as the role's own variables.
    type: raw
    default: {}
  files:
    description: Paths of the files that the role manages.
    type: list
    elements: str
    default: []
  packages:
    description: Names of the packages that the role manages.
    type: list
    elements: str
    default: []
  units:
    description: Names of the units that the role manages.
    type: list
    elements: str
    default: []
  links:
    description: Paths of the links that the role manages.
    type: list
    elements: str
    default: []
  scope:
    description: Whether the units are the system's or the user's.
    type: str
    choices: [system, user]
    default: system
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
- name: Leave a receipt
  llmetal.inference.receipt:
    role: nvidia_driver
    path: /etc/llmetal/receipts/nvidia_driver.json
    slice: "{{ nvidia_driver_lock }}"
    files:
      - /etc/modprobe.d/llmetal-nvidia.conf
    packages:
      - nvidia-driver-cuda
"""

RETURN = r"""
receipt:
  description: The receipt.
  type: dict
  returned: success
  contains:
    schema:
      description: Form of the file.
      type: int
      sample: 1
    role:
      description: The role.
      type: str
      sample: nvidia_driver
    slice_sha256:
      description: Hash of the slice.
      type: str
      sample: 44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a
    inputs_sha256:
      description: Hash of the other inputs.
      type: str
      sample: 44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a
    files:
      description: The sha256 of each file; null where it is not there.
      type: dict
      sample: {/etc/modprobe.d/llmetal-nvidia.conf: null}
    packages:
      description: The version of each package; null where it is not installed.
      type: dict
      sample: {nvidia-driver-cuda: 580.159.04-1}
    units:
      description: The state of each unit.
      type: dict
      sample: {nvidia-persistenced.service: {active: active, enabled: enabled}}
    links:
      description: The target of each link; null where it is none.
      type: dict
      sample: {}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.receipts import compose, render
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "role": {"type": "str", "required": True},
    "path": {"type": "path", "required": True},
    "slice": {"type": "raw", "required": True},
    "inputs": {"type": "raw", "default": {}},
    "files": {"type": "list", "elements": "str", "default": []},
    "packages": {"type": "list", "elements": "str", "default": []},
    "units": {"type": "list", "elements": "str", "default": []},
    "links": {"type": "list", "elements": "str", "default": []},
    "scope": {"type": "str", "choices": ["system", "user"], "default": "system"},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Write the receipt where it differs."""
    path = Path(params["path"])
    receipt = compose(
        role=params["role"],
        slice_=params["slice"],
        inputs=params["inputs"],
        files=params["files"],
        packages=params["packages"],
        unit_names=params["units"],
        links=params["links"],
        scope=params["scope"],
    )
    before, after = read_text(path), render(receipt)
    if before != after and not check_mode:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomic(path, after, mode=0o644)
        except OSError as error:
            raise LlmetalError(
                what="the receipt cannot be written",
                where=str(path),
                why=error.strerror or str(error),
                fix="see that its folder can be written and has room",
            ) from error
    return {
        "changed": before != after,
        "receipt": receipt,
        "diff": {
            "before_header": str(path),
            "after_header": str(path),
            "before": before or "",
            "after": after,
        },
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
