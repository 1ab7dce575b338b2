#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module driver_leftovers: why the NVIDIA driver does not work, and what is in its way."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_leftovers
short_description: Say why the NVIDIA driver does not work, and remove what is half there
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Says in words why the driver does not work. No module for the running kernel, headers missing,
    module and libraries of two versions, packages half configured or of two sources, an
    installation by NVIDIA's installer, nouveau, Secure Boot, a GPU off the bus.
  - With O(state=absent) it takes away what is half there. Installations of NVIDIA's installer,
    the driver's packages of every source (with their configuration) unless all of them are right,
    modules and DKMS trees of other releases, diversions and alternatives of packages that are gone,
    libraries, programs and configuration of the driver that no package has.
  - Removes nothing that it cannot attribute to a driver installation, and lists that in RV(stays).
    CUDA toolkits, the NVIDIA Container Toolkit and kernels are never touched.
  - Each step looks anew, so a run that was interrupted is finished by the next one.
options:
  state:
    description: V(reported) only looks, V(absent) removes.
    type: str
    choices: [reported, absent]
    default: reported
  version:
    description: The driver release that belongs here. By default that of most packages.
    type: str
  keep:
    description: Packages that belong here. They stay where every one of the driver is right.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Its full version.
        type: str
        required: true
  gpus:
    description: PCI addresses of the GPUs that should be on the bus.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: Seconds to wait for other package managers.
    type: int
    default: 300
  timeout:
    description: Seconds that one call of dpkg or dkms may take.
    type: int
    default: 600
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
- name: Ask why nvidia-smi has failed
  llmetal.inference.driver_leftovers:
  register: driver

- name: Take away all but the driver of the lock
  llmetal.inference.driver_leftovers:
    state: absent
    version: 580.159.04
    keep:
      - name: nvidia-driver-cuda
        version: 580.159.04-1
"""

RETURN = r"""
findings:
  description: What is wrong, the deepest cause first; before anything was removed.
  type: list
  elements: dict
  returned: success
  contains:
    kind:
      description: A name for it.
      type: str
      returned: success
    what:
      description: What it is.
      type: str
      returned: success
    why:
      description: What shows it.
      type: str
      returned: success
    fix:
      description: What mends it.
      type: str
      returned: success
    grade:
      description:
        - V(broken) where the driver does not work, or will not after the next boot. V(minor) where
          it is only in the way. V(by_hand) where a person must mend it.
      type: str
      returned: success
    reports:
      description: Identifiers of field reports of the same.
      type: list
      elements: str
      returned: success
leftovers:
  description: What is to go, or went, by kind.
  type: dict
  returned: success
  sample:
    runfile: /usr/bin/nvidia-uninstall
    packages: [{name: libnvidia-ml1, version: 570.211.01-1, status: installed}]
    dkms: [nvidia/570.211.01]
    modules: [/lib/modules/6.1.0-40-amd64/kernel/drivers/video/nvidia.ko]
    diversions: []
    alternatives: []
    files: [/usr/lib/libcuda.so.570.211.01]
stays:
  description: What disturbs and cannot be attributed, each with the reason.
  type: list
  elements: dict
  returned: success
  sample:
    - path: /usr/local/lib/libcuda.so.1
      why: it has the name of a driver library and no version, and is no link
diagnosis:
  description: Findings and what stays, a line each.
  type: list
  elements: str
  returned: success
  sample:
    - "there is no nvidia module for the running kernel 6.1.0-40-amd64: driver 580.159.04 is meant
      to be here, and modinfo finds no module. What to do: the driver is purged and installed anew,
      with the headers of the running kernel [drv-007, drv-025]"
broken:
  description: Whether a finding says that the driver does not work, or will not.
  type: bool
  returned: success
  sample: true
release:
  description: The driver release that belongs here; null where nothing says one.
  type: str
  returned: success
  sample: 580.159.04
"""

import os
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_diagnosis,
    driver_leftovers,
    driver_removal,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

ARGUMENTS: dict[str, Any] = {
    "state": {"type": "str", "choices": ["reported", "absent"], "default": "reported"},
    "version": {"type": "str"},
    "keep": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
        },
    },
    "gpus": {"type": "list", "elements": "str", "default": []},
    "lock_timeout": {"type": "int", "default": 300},
    "timeout": {"type": "int", "default": 600},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Look, judge, and remove where that is asked for."""
    request = driver_leftovers.Request(
        version=params["version"] or None,
        keep={row["name"]: row["version"] for row in params["keep"]},
        lock_timeout=params["lock_timeout"],
        timeout=params["timeout"],
    )
    seen = driver_diagnosis.gather(request, params["gpus"])
    today = driver_leftovers.look(request, now=True)
    findings = driver_diagnosis.diagnose(seen, today)
    reinstall = driver_diagnosis.wants_reinstall(seen, today)
    before = driver_leftovers.look(request, reinstall=reinstall)
    after = before
    if params["state"] == "absent" and before.any:
        after = driver_leftovers.Leftovers(stays=before.stays)
        if not check_mode:
            after = driver_removal.remove(request, reinstall=reinstall)
    return {
        "changed": before.lines() != after.lines(),
        "findings": [finding.as_dict() for finding in findings],
        "leftovers": before.as_dict(),
        "stays": [asdict(one) for one in after.stays],
        "diagnosis": driver_diagnosis.in_words(findings, after.stays),
        "broken": any(finding.grade != "minor" for finding in findings),
        "release": seen.release,
        "diff": {
            "before": "".join(f"{line}\n" for line in before.lines()),
            "after": "".join(f"{line}\n" for line in after.lines()),
        },
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    os.umask(0o022)
    try:
        result = converge(module.params, check_mode=module.check_mode)
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
