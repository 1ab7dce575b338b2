#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module cuda_arch_info: for which GPUs files have code."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_arch_info
short_description: Read for which GPU architectures programs and libraries have code
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Reads the fat binaries in the sections of ELF files, files of machine code (cubin) and fat
    binaries, without cuobjdump.
  - Tells code for an architecture's own features (C(sm_90a)) and for a family (C(sm_100f)) from
    code for the architecture.
options:
  paths:
    description:
      - Files, and folders in which libraries are looked for. Of a folder, files without any
        device code are left out.
    type: list
    elements: path
    required: true
  expect:
    description: Architectures that every file must have machine code for, such as V(8.9), V(9.0a).
    type: list
    elements: str
    default: []
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
- name: See that the extension has code for an RTX 4090 and an H100
  llmetal.inference.cuda_arch_info:
    paths: [/opt/llmetal/environments/vllm/current/lib/python3.12/site-packages/vllm]
    expect: [8.9, 9.0a]
"""

RETURN = r"""
files:
  description: The files with device code, and those that were named.
  type: list
  elements: dict
  returned: always
  contains:
    path:
      description: The file.
      type: str
      sample: /opt/app/_C.abi3.so
    cubin:
      description: Architectures with machine code.
      type: list
      elements: str
      sample: [sm_80, sm_90a]
    ptx:
      description: Architectures with PTX, which the driver compiles for later GPUs.
      type: list
      elements: str
      sample: [compute_90]
lacking:
  description: Files that have no code for an expected architecture.
  type: list
  elements: dict
  returned: always
  contains:
    path:
      description: The file.
      type: str
      sample: /opt/app/_C.abi3.so
    missing:
      description: The architectures.
      type: list
      elements: str
      sample: [sm_89]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.fatbin import survey
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "paths": {"type": "list", "elements": "path", "required": True},
    "expect": {"type": "list", "elements": "str", "default": []},
}
_SHOWN = 5


def look(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Read the files; the module's result.

    Raises:
        LlmetalError: an expected architecture is lacking.
    """
    del check_mode
    found = survey(params["paths"], params["expect"])
    lacking = found["lacking"]
    if lacking:
        raise LlmetalError(
            what="; ".join(
                f"{row['path']} has no code for {', '.join(row['missing'])}"
                for row in lacking[:_SHOWN]
            ),
            why=f"{len(lacking)} of {len(found['files'])} files lack an architecture",
            fix="build for these GPUs (TORCH_CUDA_ARCH_LIST, or nvcc -gencode), or take a wheel "
            "that was",
        )
    return {"changed": False, **found}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, look)


if __name__ == "__main__":
    main()
