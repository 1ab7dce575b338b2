#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module package_set: packages in exact versions, in one transaction."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_set
short_description: Install a set of Debian packages in exact versions, in one transaction
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Installs all packages in one apt transaction without recommended ones, each in the version
    asked for, upgrading or downgrading as needed.
  - Declares their package source with its own keyring, after the fingerprint of the key is
    verified, and reads the index of that source only. A second declaration of the same repository
    is used where it serves, and refused by name where it does not.
  - Has apt simulate the transaction first and stops before it begins where it would install, change
    or remove a kernel, remove a package that O(replaces) does not name, break a hold of a package
    that was not asked for, touch one of O(keeps), or bring a package of O(one_release) in another
    release than the set.
  - Waits with a bound for another package manager, and finishes what an interrupted one left.
  - Runs nothing where everything is installed as asked for.
  - Predicts in check mode from the package database alone, so on a host without the source too;
    where apt knows the wanted versions already, the simulation is looked at as well.
options:
  packages:
    description: The packages.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Its full version. Without one, any installed version is right.
        type: str
      hold:
        description: Whether this one is put on hold. By default as O(hold) says.
        type: bool
  state:
    description: Whether they are to be there.
    type: str
    choices: [present, absent]
    default: present
  hold:
    description:
      - Whether the packages are put on hold. V(false) leaves holds as they are.
    type: bool
    default: false
  source:
    description:
      - Where the packages come from. Without it, or without its O(source.uri), the sources that
        the host has. Then O(source.components) are those of the distribution's archive that the
        packages need; where the host's declarations lack some, one more file declares these, with
        the addresses and the key of the host's own.
    type: dict
    suboptions:
      name:
        description: Names the files of the declaration.
        type: str
        required: true
      type:
        description: The kind of source. For information.
        type: str
      uri:
        description: Address of the repository.
        type: str
      suite:
        description: Suite. V(/) for a flat repository.
        type: str
        default: /
      components:
        description: Components. None for a flat repository.
        type: list
        elements: str
        default: []
      key:
        description: Armored public key that signs the repository.
        type: str
      fingerprint:
        description: Fingerprint that the key must have.
        type: str
  replaces:
    description: Patterns of names that the transaction may remove.
    type: list
    elements: str
    default: []
  one_release:
    description:
      - Patterns of names that the transaction may bring only in a driver release that
        O(packages) has.
    type: list
    elements: str
    default: []
  own_release:
    description: Patterns of names among O(one_release) that have releases of their own.
    type: list
    elements: str
    default: []
  keeps:
    description:
      - Patterns of names that the transaction may neither bring, change nor remove; such as those
        of a driver, where a toolkit is installed.
    type: list
    elements: str
    default: []
  spare_containers:
    description:
      - Whether to stop before packages change while running containers hold GPUs. The scripts of
        packages call C(systemctl daemon-reload), which takes the GPUs away from them.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for other package managers.
    type: int
    default: 300
  timeout:
    description: Seconds that one call of apt or dpkg may take.
    type: int
    default: 1800
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
- name: Install a driver set and hold it
  llmetal.inference.package_set:
    packages:
      - name: nvidia-kernel-open-dkms
        version: 580.159.04-1
      - name: nvidia-driver-cuda
        version: 580.159.04-1
    hold: true
    source:
      name: cuda
      uri: https://packages.example.org/cuda/debian12/x86_64
      key: "{{ lookup('ansible.builtin.file', 'cuda.asc') }}"
      fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC

- name: Have some tools, in any version
  llmetal.inference.package_set:
    packages:
      - name: ca-certificates
      - name: python3-venv
"""

RETURN = r"""
before:
  description: Version of each package before; null where it is not installed.
  type: dict
  returned: success
  sample: {nvidia-driver-cuda: null}
after:
  description: Version of each package after. In check mode, what is predicted.
  type: dict
  returned: success
  sample: {nvidia-driver-cuda: 580.159.04-1}
held:
  description: Which of the packages are on hold after.
  type: list
  elements: str
  returned: success
  sample: [nvidia-driver-cuda]
steps:
  description: What was done, or would be, of V(repair), V(source), V(install), V(remove), V(hold).
  type: list
  elements: str
  returned: success
  sample: [source, install, hold]
source_files:
  description: Files that declare the source; none where the host declares it in its own way.
  type: list
  elements: str
  returned: success
  sample: [/etc/apt/keyrings/cuda.asc, /etc/apt/sources.list.d/cuda.sources]
kernels:
  description:
    - Kernels that could be booted before and after, oldest first. A driver is not to move them.
  type: dict
  returned: success
  sample: {before: [6.1.0-40-amd64], after: [6.1.0-40-amd64]}
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    SOURCE_OPTIONS,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.package_set import (
    Request,
    converge,
)

ARGUMENTS: dict[str, Any] = {
    "packages": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str"},
            "hold": {"type": "bool"},
        },
    },
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "hold": {"type": "bool", "default": False},
    "source": {"type": "dict", "options": SOURCE_OPTIONS},
    "replaces": {"type": "list", "elements": "str", "default": []},
    "one_release": {"type": "list", "elements": "str", "default": []},
    "own_release": {"type": "list", "elements": "str", "default": []},
    "keeps": {"type": "list", "elements": "str", "default": []},
    "spare_containers": {"type": "bool", "default": False},
    "lock_timeout": {"type": "int", "default": 300},
    "timeout": {"type": "int", "default": 1800},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    os.umask(0o022)
    try:
        outcome = converge(Request.of(module.params), check_mode=module.check_mode)
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(
        changed=outcome.changed,
        before=outcome.before.packages,
        after=outcome.after.packages,
        held=list(outcome.after.held),
        steps=outcome.steps,
        source_files=outcome.source_files,
        kernels={"before": outcome.kernels_before, "after": outcome.kernels_after},
        diff={"before": outcome.before.as_text(), "after": outcome.after.as_text()},
    )


if __name__ == "__main__":
    main()
