#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module gpu_health: whether the GPUs of a host are as expected."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health
short_description: Say whether the GPUs of a host, their driver and their links are as expected
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Reads once what the PCI bus, the driver, C(nvidia-smi), systemd and the kernel's log say, and
    judges it by what is expected.
  - Fails closed. What is asked and cannot be read is a failure, and so is C(nvidia-smi) that hangs,
    answers nonsense, or lists fewer GPUs than there are.
  - Does not fail itself. RV(ignore:healthy) and RV(ignore:failures) are the answer.
  - Changes nothing.
options:
  expect:
    description: What is expected. What is left out is not asked.
    type: dict
    default: {}
    suboptions:
      version:
        description: The one version of the loaded module, the module on disk and the libraries.
        type: str
      modules:
        description: The flavour of the kernel modules.
        type: str
        choices: [open, proprietary]
      gpus:
        description: PCI addresses of GPUs that must answer. Those on the bus must in any case.
        type: list
        elements: str
        default: []
      persistence:
        description: Whether the driver must be kept loaded, by the persistence daemon or mode.
        type: bool
        default: false
      nvlink:
        description: How the GPUs must be joined.
        type: dict
        suboptions:
          required:
            description:
              - Whether every GPU must have its links.
              - Without it no links, or all inactive, are healthy too. A GPU passed through to a
                virtual machine and cards without a bridge are so. Some inactive ones fail.
            type: bool
            default: false
          fabric_state:
            description: Whether each GPU must be registered with the NVSwitch fabric.
            type: bool
            default: false
          topology:
            description: Class of the path between each two GPUs, as C(nvidia-smi topo -m) has it.
            type: str
          gpus:
            description: The GPUs and their links.
            type: list
            elements: dict
            default: []
            suboptions:
              pci:
                description: PCI address.
                type: str
                required: true
              links:
                description: How many links it has.
                type: int
              gbps:
                description: Speed of each in GB/s.
                type: float
      xids:
        description: Whether the kernel's log of this boot must be free of fatal Xids.
        type: bool
        default: false
  baseline:
    description:
      - File on the host with the error counters of the links, as RV(ignore:counters) was at an
        earlier run. Growth since then is reported.
      - It is not compared where it is of another boot or of other GPUs, and a warning says so.
    type: path
  xids:
    description:
      - What the Xids mean, by number. Each has C(says), C(severity) (C(fatal), C(warning),
        C(info)) and C(action).
      - Filled from the collection's data where it is left out.
    type: dict
  timeout:
    description: Seconds that one call of nvidia-smi may take.
    type: int
    default: 30
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: See whether the GPUs are as the plan says
  llmetal.inference.gpu_health:
    expect:
      version: 580.159.04
      modules: open
      gpus: ["0000:00:06.0", "0000:00:07.0"]
      persistence: true
      xids: true
      nvlink:
        required: true
        fabric_state: true
        topology: NV18
        gpus:
          - {pci: "0000:00:06.0", links: 18, gbps: 26.562}
          - {pci: "0000:00:07.0", links: 18, gbps: 26.562}
    baseline: /etc/llmetal/nvlink-counters.json
  register: health

- name: Assert that they are
  ansible.builtin.assert:
    that: health.healthy
    fail_msg: "{{ health.failures | map(attribute='what') | join('; ') }}"
"""

RETURN = r"""
healthy:
  description: Whether there is no failure.
  type: bool
  returned: always
  sample: false
failures:
  description: What is not as expected, or cannot be read.
  type: list
  elements: dict
  returned: always
  contains:
    check:
      description: Name of the check, one of RV(ignore:checks).
      type: str
      sample: nvlink
    gpu:
      description: PCI address of the GPU; null where the host is meant.
      type: str
      sample: "0000:00:06.0"
    what:
      description: What is wrong.
      type: str
      sample: link 4 is down
    why:
      description: How it shows.
      type: str
      sample: 17 of 18 links are active
    fix:
      description: What to do.
      type: str
      sample: drain the host and reset all its GPUs, then reboot; a link that stays down is hardware
    action:
      description:
        - The next step, for a program.
        - One of V(none) (a person has to look), V(restart_service), V(drain_and_reset), V(reboot),
          V(power_cycle), V(replace) (the hardware), V(install) (the driver).
      type: str
      sample: drain_and_reset
cautions:
  description:
    - What somebody should look at, in the same form as RV(ignore:failures).
    - Not named warnings, for Ansible keeps that name to itself.
  type: list
  elements: dict
  returned: always
  sample: []
checks:
  description: Names of the checks that were made.
  type: list
  elements: str
  returned: always
  sample: [bus, ecc, nvlink, versions]
counters:
  description:
    - Error counters of the links, as a baseline file holds them, by UUID of the GPU, number of
      the link and name of the counter.
    - Empty where C(expect.nvlink) is not given.
  type: dict
  returned: always
  sample:
    boot_id: 0c2e0e0f-5b1c-4b55-8a39-5f4e2e7f1c11
    gpus: {GPU-00000000-1111-2222-3333-444444444444: {"0": {replay_errors: 0}}}
seconds:
  description: How long the look took.
  type: float
  returned: always
  sample: 0.41
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.health import collect

NVLINK: dict[str, Any] = {
    "required": {"type": "bool", "default": False},
    "fabric_state": {"type": "bool", "default": False},
    "topology": {"type": "str"},
    "gpus": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "pci": {"type": "str", "required": True},
            "links": {"type": "int"},
            "gbps": {"type": "float"},
        },
    },
}
ARGUMENTS: dict[str, Any] = {
    "expect": {
        "type": "dict",
        "default": {},
        "options": {
            "version": {"type": "str"},
            "modules": {"type": "str", "choices": ["open", "proprietary"]},
            "gpus": {"type": "list", "elements": "str", "default": []},
            "persistence": {"type": "bool", "default": False},
            "nvlink": {"type": "dict", "options": NVLINK},
            "xids": {"type": "bool", "default": False},
        },
    },
    "baseline": {"type": "path"},
    "xids": {"type": "dict"},
    "timeout": {"type": "int", "default": 30},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    health = collect(
        given["expect"],
        baseline=given["baseline"],
        table=given["xids"],
        timeout=given["timeout"],
    )
    module.exit_json(changed=False, **health)


if __name__ == "__main__":
    main()
