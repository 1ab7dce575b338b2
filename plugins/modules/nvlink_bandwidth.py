#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module nvlink_bandwidth: the links between GPUs are as fast as they should be."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvlink_bandwidth
short_description: Measure the bandwidth between GPUs where a program for it is installed
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Runs C(nvbandwidth) between each two GPUs, or C(all_reduce_perf) of nccl-tests over all of them,
    whichever is installed, and compares the result with the links of the lock.
  - Measures nothing, and says why, where neither is installed, where programs use the GPUs or not
    all of them answer, where not all links are active, and in check mode.
  - With O(record) it measures once. A result that is as expected is kept, and not measured again
    until the next boot, another driver, other GPUs or another expectation. It keeps the GPUs busy
    for some seconds.
options:
  nvlink:
    description: The links of the lock.
    type: dict
    required: true
    suboptions:
      topology:
        description: What C(nvidia-smi topo -m) shows between each two GPUs, such as V(NV18).
        type: str
      gpus:
        description: The GPUs.
        type: list
        elements: dict
        required: true
        suboptions:
          pci:
            description: PCI address.
            type: str
            required: true
          links:
            description: Its links.
            type: int
            required: true
          gbps:
            description: GB/s of each link, one way.
            type: float
            required: true
  fraction:
    description: The part of the nominal bandwidth that is accepted.
    type: float
    default: 0.65
  record:
    description:
      - File on the host that keeps a good result. Its folder must be there. A bad one is not kept.
      - Measured at each call where it is left out.
    type: path
  path:
    description: Folders in which the programs are looked for first, as in C(PATH).
    type: str
    default: ""
  timeout:
    description: Seconds that the program may take.
    type: int
    default: 300
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: partial
    details: It measures nothing in check mode, and so cannot say whether it would keep a result.
  diff_mode:
    support: none
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Measure the links of two GPUs
  llmetal.inference.nvlink_bandwidth:
    nvlink:
      topology: NV18
      gpus:
        - {pci: "0000:19:00.0", links: 18, gbps: 26.562}
        - {pci: "0000:3b:00.0", links: 18, gbps: 26.562}
    record: /etc/llmetal/nvlink_bandwidth.json
"""

RETURN = r"""
measured:
  description: Whether anything was measured, now or as O(record) has it.
  type: bool
  returned: success
  sample: true
kept:
  description: Whether the result is that of an earlier call.
  type: bool
  returned: success
  sample: false
reason:
  description: Why nothing was measured; empty where something was.
  type: str
  returned: success
  sample: ""
tool:
  description: What measured.
  type: str
  returned: when measured
  sample: nvbandwidth
floor_gbps:
  description: The least GB/s that is accepted.
  type: float
  returned: when measured
  sample: 310.8
slowest_gbps:
  description: The slowest pair's GB/s, or the bus bandwidth of all GPUs together.
  type: float
  returned: when measured
  sample: 391.2
failures:
  description: What is too slow or wrong; empty where all is well.
  type: list
  elements: str
  returned: when measured
  sample: []
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import bandwidth, gpu
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "nvlink": {
        "type": "dict",
        "required": True,
        "options": {
            "topology": {"type": "str"},
            "gpus": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "pci": {"type": "str", "required": True},
                    "links": {"type": "int", "required": True},
                    "gbps": {"type": "float", "required": True},
                },
            },
        },
    },
    "fraction": {"type": "float", "default": 0.65},
    "record": {"type": "path"},
    "path": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 300},
}


def look(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Measure where it can be and has not been; the module's result."""
    nothing = {"changed": False, "measured": False, "kept": False}
    if check_mode:
        return {**nothing, "reason": "check mode measures nothing"}
    rows = params["nvlink"]["gpus"]
    expected = bandwidth.Expected(
        gpus=len(rows),
        links=min((row["links"] for row in rows), default=0),
        gbps=min((row["gbps"] for row in rows), default=0.0),
        topology=params["nvlink"]["topology"],
        fraction=params["fraction"],
    )
    names = sorted({normal_address(row["pci"]) for row in rows})
    info = gpu.report(gpu.gather())
    of = bandwidth.Of(info["boot_id"], info["driver"]["loaded"], tuple(names), expected)
    record = Path(params["record"]) if params["record"] else None
    if record and (kept := bandwidth.kept(read_text(record), of)):
        return {**nothing, "measured": True, "kept": True, "reason": "", **kept.as_dict()}
    seen = [one for one in info["gpus"] if one["pci_address"] in names]
    path = bandwidth.search_path(params["path"])
    if reason := bandwidth.why_not(expected, seen, path):
        return {**nothing, "reason": reason}
    done = bandwidth.measure(expected, names, path, params["timeout"])
    is_kept = bool(record) and not done.failures
    if record and is_kept:
        _keep(record, bandwidth.render(done, of))
    return {**nothing, "changed": is_kept, "measured": True, "reason": "", **done.as_dict()}


def _keep(record: Path, text: str) -> None:
    try:
        write_atomic(record, text, mode=0o644)
    except OSError as error:
        raise LlmetalError(
            what="the measured bandwidth cannot be kept",
            where=str(record),
            why=error.strerror or str(error),
            fix="see that its folder can be written and has room",
        ) from error


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, look)


if __name__ == "__main__":
    main()
