#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module cuda_info: what a host has of CUDA."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_info
short_description: Find CUDA toolkits, run-time libraries, and what a process would load
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Looks at C(/usr/local/cuda*), the alternatives, the packages, the wheels of Python
    environments, the loader's cache and what stands before it.
  - Changes nothing and needs no root. Takes well under a second.
options:
  environments:
    description: Folders of Python environments to look into, each as C(folder/name/version).
    type: list
    elements: path
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
- name: Look for CUDA
  llmetal.inference.cuda_info:
    environments: [/opt/llmetal/environments, /opt/llmetal/toolkits]
"""

RETURN = r"""
toolkits:
  description: Toolkits below C(/usr/local), with version, nvcc and ptxas.
  type: list
  elements: dict
  returned: success
  sample: [{paths: [/usr/local/cuda-13.0], version: 13.0.3, nvcc: true, ptxas: true}]
nvcc:
  description: The nvcc on the path of services, with its version; null for none.
  type: dict
  returned: success
  sample: null
ptxas:
  description: Each ptxas, and the architectures that it compiles for.
  type: list
  elements: dict
  returned: success
  sample: [{path: /usr/local/cuda-13.0/bin/ptxas, targets: [sm_80, sm_90, sm_90a]}]
alternative:
  description: Where C(/usr/local/cuda) leads by the alternatives, and the choices with priority.
  type: dict
  returned: success
  sample: {value: /usr/local/cuda-13.0, choices: {/usr/local/cuda-13.0: 130}}
packages:
  description: Installed packages of CUDA.
  type: list
  elements: dict
  returned: success
  sample: [{name: cuda-toolkit-13-0, version: 13.0.3-1}]
wheels:
  description: CUDA wheels in the environments.
  type: list
  elements: dict
  returned: success
  sample: [{environment: /opt/app/3f1a, name: nvidia_cuda_runtime, version: 13.0.96}]
runtimes:
  description: Run-time libraries in the loader's cache, in the order of their names.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: The name by which programs ask for it.
      type: str
      sample: libcudart.so.13
    path:
      description: The file that the cache has for it.
      type: str
      sample: /usr/local/cuda-13.0/lib64/libcudart.so.13
  sample: [{name: libcudart.so.13, path: /usr/local/cuda-13.0/lib64/libcudart.so.13}]
loads:
  description: What the cache gives for each library of CUDA, and where its links lead.
  type: dict
  returned: success
  sample: {libcuda.so.1: {path: /lib/libcuda.so.1, real: /usr/lib/libcuda.so.580.95.05}}
shadowed_by:
  description: What is taken before the driver's libcuda, as in M(llmetal.inference.ld_path).
  type: list
  elements: dict
  returned: success
  sample: []
settings:
  description: LD_LIBRARY_PATH, CUDA_HOME and CUDA_PATH in shell files.
  type: list
  elements: dict
  returned: success
  sample: [{file: /etc/environment, name: CUDA_HOME, value: /usr/local/cuda}]
stubs:
  description: Stubs in the loader's cache, where none should be.
  type: list
  elements: str
  returned: success
  sample: []
compat:
  description: Libraries of cuda-compat packages, each once by its real folder.
  type: list
  elements: str
  returned: success
  sample: [/usr/local/cuda-13.0/compat/libcuda.so.1]
unreadable:
  description: What could not be looked at, and why.
  type: list
  elements: str
  returned: success
  sample: []
seconds:
  description: How long it took.
  type: float
  returned: success
  sample: 0.2
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.cuda_info import collect
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "environments": {"type": "list", "elements": "path", "default": []},
}


def look(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Look at the host; the module's result."""
    del check_mode
    started = time.monotonic()
    found = collect(params["environments"])
    seconds = round(time.monotonic() - started, 3)
    return {"changed": False, **found, "seconds": seconds}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, look)


if __name__ == "__main__":
    main()
