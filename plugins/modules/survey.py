#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module survey: everything that the planner needs to know of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: survey
short_description: Report everything that the planner needs to know of a host
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Looks once at operating system, kernel, packages, package sources, GPUs, disks, Python
    interpreters, services, the kind of machine, and what earlier runs of llmetal left.
  - Changes nothing, needs no root, and does not fail because a tool is missing.
options:
  paths:
    description: Folders whose disks are reported besides the root's. They need not be there yet.
    type: list
    elements: str
    default: []
  config:
    description: Folder of the installed lock and of the receipts.
    type: path
    default: /etc/llmetal
  run:
    description: Folder of the run lock.
    type: path
    default: /run/llmetal
  scope:
    description: Whether the services are the system's or the user's.
    type: str
    choices: [system, user]
    default: system
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Look at the host
  llmetal.inference.survey:
    paths:
      - /opt/llmetal
      - /var/lib/llmetal/models
  register: looked
"""

RETURN = r"""
facts:
  description: What the host is and has.
  type: dict
  returned: always
  contains:
    schema:
      description: Form of this result.
      type: int
      sample: 1
    os:
      description: Distribution, as its identifiers, C(key) (both in one) and C(pretty).
      type: dict
      sample:
        id: debian
        version_id: "12"
        codename: bookworm
        key: debian12
        pretty: Debian GNU/Linux 12 (bookworm)
    arch:
      description: Machine architecture.
      type: str
      sample: x86_64
    kernel:
      description:
        - Running and installed kernels, boot, headers and compiler for modules, and Secure Boot
          (V(enabled), V(disabled), V(unsupported), V(unknown)).
      type: dict
      sample:
        running: 6.1.0-40-amd64
        boot_id: 0c2e0e0f-5b1c-4b55-8a39-5f4e2e7f1c11
        installed: [6.1.0-40-amd64]
        headers: {package: linux-headers-6.1.0-40-amd64, installed: false, version: null}
        compiler: {path: /usr/bin/gcc, version: 12.2.0}
        secure_boot: disabled
    memory_bytes:
      description: Memory in bytes.
      type: int
      sample: 2164663517184
    cpus:
      description: Processors.
      type: int
      sample: 256
    cpu_flags:
      description: Instruction sets that engines ask for, of amx_tile, avx2, avx512f.
      type: list
      elements: str
      sample: [avx2, avx512f]
    disks:
      description: Size of and room on the disks, in bytes.
      type: list
      elements: dict
      sample: [{path: /, size_bytes: 1888000000000, free_bytes: 1750000000000}]
    packages:
      description: Installed packages that have to do with driver, kernel, compiler and Python.
      type: dict
      sample: {gcc-12: 12.2.0-14+deb12u1}
    held:
      description: Packages on hold.
      type: list
      elements: str
      sample: []
    broken:
      description: Packages that an interrupted or failed transaction left half done.
      type: list
      elements: str
      sample: []
    apt:
      description: Declared package sources.
      type: dict
      sample:
        sources:
          - file: /etc/apt/sources.list
            types: [deb]
            uris: ["http://mirror.example/debian"]
            suites: [bookworm]
            components: [main]
            signed_by: null
    gpu:
      description: Result of M(llmetal.inference.gpu_info).
      type: dict
      sample: {gpus: [], switches: [], reboot_required: false}
    python:
      description: Python interpreters.
      type: list
      elements: dict
      sample: [{path: /usr/bin/python3.11, version: 3.11.2}]
    receipts:
      description: Receipts by role; one that cannot be read says C(unreadable) and why.
      type: dict
      sample: {}
    lock_sha256:
      description: Hash of the installed lock, or null.
      type: str
      sample: null
    services:
      description: Units of llmetal and of the driver.
      type: dict
      sample: {nvidia-persistenced.service: {active: active, enabled: enabled}}
    platform:
      description: The kind of machine, and whether systemd and the user's manager are usable.
      type: dict
      sample:
        wsl: false
        dgx: false
        jetson: false
        container: null
        virtualization: kvm
        systemd: true
        systemd_user: false
    user:
      description: Who asked.
      type: dict
      sample: {name: root, uid: 0, home: /root}
    run_lock:
      description: The run lock, or null.
      type: dict
      sample: null
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.host_facts import collect

ARGUMENTS: dict[str, Any] = {
    "paths": {"type": "list", "elements": "str", "default": []},
    "config": {"type": "path", "default": "/etc/llmetal"},
    "run": {"type": "path", "default": "/run/llmetal"},
    "scope": {"type": "str", "choices": ["system", "user"], "default": "system"},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        facts = collect(
            paths=params["paths"],
            config=params["config"],
            run_dir=params["run"],
            scope=params["scope"],
        )
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
