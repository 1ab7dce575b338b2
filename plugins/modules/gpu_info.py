#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module gpu_info: the GPUs of a host, with or without a driver."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Report the NVIDIA GPUs of a host, with or without a driver
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Reads the PCI bus, the loaded driver, the driver on disk, its libraries, the units that serve
    it, the Xids that the journal keeps, and what C(nvidia-smi -q -x) and
    C(nvidia-smi nvlink --status) say.
  - Works before any driver is installed, from PCI identifiers.
  - Does not fail because a tool is missing, hangs or answers nonsense. It reports that.
  - Says from the state alone whether a reboot is needed, and why.
options:
  expect:
    description: What the driver should be. The result then carries O(ignore:proof).
    type: dict
    suboptions:
      version:
        description: The one version of the loaded module, the module on disk and the libraries.
        type: str
      modules:
        description: The flavour of the kernel modules.
        type: str
        choices: [open, proprietary]
      gpus:
        description:
          - PCI addresses of GPUs that must answer. Those on the bus must in any case.
        type: list
        elements: str
        default: []
  xids:
    description:
      - What the Xids mean, by number. Each has C(says) and C(severity).
      - Filled from the collection's data where it is left out.
    type: dict
  timeout:
    description: Seconds that one call of nvidia-smi may take.
    type: int
    default: 60
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Look at the GPUs
  llmetal.inference.gpu_info:
  register: gpus

- name: Prove the driver
  llmetal.inference.gpu_info:
    expect:
      version: 580.159.04
      modules: open
  register: driver
  failed_when: not driver.proof.ok
"""

RETURN = r"""
gpus:
  description: The GPUs, in the order of the bus.
  type: list
  elements: dict
  returned: always
  contains:
    index:
      description: Number that nvidia-smi gives it, or null.
      type: int
      sample: 0
    pci_address:
      description: Domain, bus, device, function.
      type: str
      sample: "0000:07:00.0"
    vendor_id:
      description: PCI vendor.
      type: str
      sample: 10de
    device_id:
      description: PCI device.
      type: str
      sample: 20b2
    subsystem_id:
      description: PCI subsystem as vendor and device, or null.
      type: str
      sample: 10de:1463
    pci_class:
      description: PCI class.
      type: str
      sample: "030200"
    kernel_driver:
      description: Kernel driver that is bound to it, or null.
      type: str
      sample: nvidia
    numa_node:
      description: NUMA node, or null.
      type: int
      sample: 3
    name:
      description: Name by the driver; null without one.
      type: str
      sample: NVIDIA A100-SXM4-80GB
    uuid:
      description: Identifier by the driver.
      type: str
      sample: GPU-00000000-1111-2222-3333-444444444444
    memory_mib:
      description: Device memory in MiB.
      type: int
      sample: 81920
    persistence:
      description: Whether persistence mode is on.
      type: bool
      sample: true
    mig:
      description: Multi-instance mode, current and pending.
      type: dict
      sample: {current: false, pending: false}
    ecc:
      description:
        - ECC mode and error counts since the driver was loaded (volatile) and of all time.
        - Null where the GPU does not count, or where nvidia-smi prints only a part of them.
      type: dict
      sample:
        current: true
        pending: true
        volatile_corrected: 0
        volatile_uncorrected: 0
        aggregate_corrected: 0
        aggregate_uncorrected: 0
        sram_threshold_exceeded: false
        repair_pending: false
        unrepairable: false
    row_remap:
      description: Remapped rows, and whether a remap is pending or failed.
      type: dict
      sample: {corrected: 0, uncorrected: 0, pending: false, failure: false}
    retired_pages:
      description: Pages taken out of use (up to Volta), and whether some wait for it.
      type: dict
      sample: {single_bit: null, double_bit: null, pending: null}
    slowdown:
      description: Active reasons that slow the GPU down. Heat and power supply, by name.
      type: list
      elements: str
      sample: [hw_thermal_slowdown]
    clocks_limited_by:
      description: Those, and the power limit that a busy GPU reaches.
      type: list
      elements: str
      sample: [sw_power_cap]
    power_w:
      description: Power draw in watts.
      type: float
      sample: 62.4
    power_limit_w:
      description: Power limit in watts.
      type: float
      sample: 400.0
    temperature_c:
      description: Temperature in degrees Celsius.
      type: int
      sample: 31
    memory_temperature_c:
      description: Temperature of the memory.
      type: int
      sample: 44
    slowdown_temperature_c:
      description: Temperature at which the GPU slows down, where the driver says it in degrees.
      type: int
      sample: 89
    virtualization:
      description: Whether the GPU is passed through to this virtual machine.
      type: str
      sample: Pass-Through
    recovery_action:
      description: What the driver wants done to recover the GPU.
      type: str
      sample: None
    nvlink:
      description: The GPU's links with state (active, inactive) and speed in GB/s.
      type: list
      elements: dict
      sample: [{link: 0, state: active, gbps: 25.0}]
    nvlink_state:
      description: All links in one word, V(none), V(active), V(partial) or V(inactive).
      type: str
      sample: active
    fabric:
      description:
        - State and status of the NVSwitch fabric registration.
        - Its health by the words of the driver, without what it does not know.
      type: dict
      sample:
        state: Completed
        status: Success
        clique: "0"
        cluster: 00000000-0000-0000-0000-000000000000
        health: {summary: Healthy, bandwidth: Full}
    processes:
      description: Processes on the GPU. Unit and program as far as they can be read.
      type: list
      elements: dict
      sample:
        - pid: 4711
          name: python
          type: C
          used_mib: 70312
          unit: llmetal-chat.service
          program: python3 serve.py
    source:
      description: Whether the driver answers for it (V(driver)) or the bus alone (V(pci)).
      type: str
      sample: driver
switches:
  description: NVSwitches that the bus shows.
  type: list
  elements: dict
  returned: always
  sample: [{pci_address: "0000:c5:00.0", device_id: 1af1}]
driver:
  description: The driver in its places.
  type: dict
  returned: always
  contains:
    loaded:
      description: Version of the loaded module, or null.
      type: str
      sample: 580.159.04
    flavour:
      description: V(open) or V(proprietary), or null.
      type: str
      sample: open
    on_disk:
      description: Version of the module for the running kernel, or null.
      type: str
      sample: 580.159.04
    user_space:
      description: Version of the libraries, or null.
      type: str
      sample: 580.159.04
    nouveau:
      description: Whether nouveau is loaded.
      type: bool
      sample: false
    nova:
      description: Whether nova_core is loaded.
      type: bool
      sample: false
    disk_flavour:
      description: Flavour of the module for the running kernel, or null.
      type: str
      sample: open
    newest_kernel:
      description: The newest installed kernel where it is not the running one. A reboot boots it.
      type: str
      sample: 6.1.0-41-amd64
    newest_on_disk:
      description: Version of the module for that kernel, or null.
      type: str
      sample: 580.159.04
    smi:
      description: Path, exit status and complaint of nvidia-smi; null where there is none.
      type: dict
      sample: {path: /usr/bin/nvidia-smi, rc: 0, message: null}
cuda_version:
  description: Newest CUDA version that the driver serves, or null.
  type: str
  returned: always
  sample: "13.0"
kernel:
  description: Release of the running kernel.
  type: str
  returned: always
  sample: 6.1.0-40-amd64
boot_id:
  description: Identifier of this boot.
  type: str
  returned: always
  sample: 0c2e0e0f-5b1c-4b55-8a39-5f4e2e7f1c11
reboot_required:
  description: Whether a reboot is needed for the driver on disk to be the one that runs.
  type: bool
  returned: always
  sample: false
reboot_reasons:
  description: Why.
  type: list
  elements: str
  returned: always
  sample: []
units:
  description:
    - State of the units that serve the driver (persistence daemon, fabric manager), where they
      are there. Null where systemd does not answer.
  type: dict
  returned: always
  sample: {nvidia-persistenced.service: {active: active, enabled: enabled}}
xid_history:
  description: The Xids in the kernel's log; null where none can be read.
  type: dict
  returned: always
  contains:
    source:
      description: V(journal), which may hold earlier boots, or V(dmesg), which does not.
      type: str
      sample: journal
    whole:
      description: Whether the log has the beginning of this boot.
      type: bool
      sample: true
    xids:
      description: One row for each GPU and number.
      type: list
      elements: dict
      contains:
        pci_address:
          description: The GPU.
          type: str
          sample: "0000:8a:00.0"
        xid:
          description: The number.
          type: int
          sample: 79
        count:
          description: How often it is in the log.
          type: int
          sample: 2
        this_boot:
          description: How often since the boot.
          type: int
          sample: 0
        boots:
          description: In how many boots.
          type: int
          sample: 1
        when:
          description: Time of the last, in UTC; null from C(dmesg).
          type: str
          sample: "2026-11-30T04:12:09Z"
        last:
          description: The last message.
          type: str
          sample: "NVRM: Xid (PCI:0000:8a:00): 79, GPU has fallen off the bus."
        severity:
          description: V(fatal), V(warning), V(info), or V(unknown) where the table has no such row.
          type: str
          sample: fatal
        says:
          description: What it means.
          type: str
          sample: fell off the bus
problems:
  description: What is wrong, why, and what to do.
  type: list
  elements: dict
  returned: always
  contains:
    what:
      description: What is wrong.
      type: str
      sample: a GPU is off the bus
    why:
      description: How it shows.
      type: str
      sample: "the bus lists 0000:8a:00.0 and nvidia-smi does not"
    fix:
      description: What to do.
      type: str
      sample: look for Xid 79 in the journal
proof:
  description: Whether the driver is as expected.
  type: dict
  returned: when O(expect) is given
  contains:
    name:
      description: Name of the proof.
      type: str
      sample: driver
    ok:
      description: Whether it holds.
      type: bool
      sample: true
    version:
      description: The loaded version.
      type: str
      sample: 580.159.04
    modules:
      description: The loaded flavour.
      type: str
      sample: open
    gpus:
      description: How many GPUs answer.
      type: int
      sample: 8
    why:
      description: What is not as expected.
      type: list
      elements: str
      sample: []
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.gpu import collect, prove

ARGUMENTS: dict[str, Any] = {
    "expect": {
        "type": "dict",
        "options": {
            "version": {"type": "str"},
            "modules": {"type": "str", "choices": ["open", "proprietary"]},
            "gpus": {"type": "list", "elements": "str", "default": []},
        },
    },
    "xids": {"type": "dict"},
    "timeout": {"type": "int", "default": 60},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    info = collect(timeout=module.params["timeout"], table=module.params["xids"])
    if module.params["expect"] is not None:
        info["proof"] = prove(info, module.params["expect"])
    module.exit_json(changed=False, **info)


if __name__ == "__main__":
    main()
