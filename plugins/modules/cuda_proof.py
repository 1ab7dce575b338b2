#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module cuda_proof: whether a CUDA toolkit works."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_proof
short_description: Prove a CUDA toolkit by what it compiles
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Compiles a kernel for every architecture asked for, reads the architectures back from the
    result, and loads the toolkit's run-time library as any program does.
  - Where a driver and GPUs are there, the kernel runs on every GPU and its answer is compared.
    Where none is, RV(not_run) says so.
  - Works in a folder of its own that it removes. With O(record) the built program stays there and
    is started again instead of compiled anew, as long as compiler, libraries, g++ and architectures
    are the same; loading, driver and GPUs are asked each time.
options:
  prefix:
    description: The toolkit.
    type: path
    required: true
  architectures:
    description: For which GPUs it must compile, such as V(sm_90) or V(9.0a).
    type: list
    elements: str
    required: true
  soname:
    description: Its run-time library.
    type: str
    required: true
  release:
    description: The release whose first two numbers the toolkit must have.
    type: str
  through_cache:
    description: Whether the library must be found through the loader's cache.
    type: bool
    default: true
  record:
    description: Folder in which the program stays for the next proof. Without it nothing stays.
    type: path
  timeout:
    description: Seconds that compiling may take.
    type: int
    default: 300
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Does the same, and leaves no program.
  diff_mode:
    support: none
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Prove CUDA 13
  llmetal.inference.cuda_proof:
    prefix: /usr/local/cuda-13.0
    architectures: [sm_80, sm_90]
    soname: libcudart.so.13
"""

RETURN = r"""
version:
  description: The toolkit's version.
  type: str
  returned: success
  sample: 13.0.3
compiler:
  description: What compiled, V(nvcc) or V(nvrtc).
  type: str
  returned: success
  sample: nvcc
architectures:
  description: For what it compiled, read back from the result.
  type: list
  elements: str
  returned: success
  sample: [sm_80, sm_90]
runtime:
  description: The run-time library that was loaded.
  type: str
  returned: success
  sample: libcudart.so.13
ran_on:
  description: On how many GPUs the kernel ran; null where there is no driver.
  type: int
  returned: success
  sample: 8
not_run:
  description: Why it did not run; else empty.
  type: str
  returned: success
  sample: ""
compiled:
  description: Whether it was compiled now; V(false) where the last proof's program was started.
  type: bool
  returned: success
  sample: true
proof:
  description: The same in short, for the report.
  type: dict
  returned: success
  sample: {"name": "toolkit 13.0.3", "ok": true, "compiler": "nvcc", "ran_on": 8}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.cuda_proof import prove
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "prefix": {"type": "path", "required": True},
    "architectures": {"type": "list", "elements": "str", "required": True},
    "soname": {"type": "str", "required": True},
    "release": {"type": "str"},
    "record": {"type": "path"},
    "through_cache": {"type": "bool", "default": True},
    "timeout": {"type": "int", "default": 300},
}


def look(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Prove the toolkit; the module's result."""
    record = params.get("record")
    seen = prove(
        Path(params["prefix"]),
        params["architectures"],
        soname=params["soname"],
        through_cache=params["through_cache"],
        release=params["release"],
        timeout=params["timeout"],
        record=Path(record) if record and not check_mode else None,
    ).as_dict()
    keys = ("compiler", "architectures", "ran_on", "not_run", "compiled")
    proof = {"name": f"toolkit {seen['version']}", "ok": True, **{k: seen[k] for k in keys}}
    return {"changed": False, **seen, "proof": proof}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, look)


if __name__ == "__main__":
    main()
