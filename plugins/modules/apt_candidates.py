#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module apt_candidates: what a host could install, without changing it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_candidates
short_description: Report which versions of packages a host could install
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Asks apt in a private state (lists, caches, sources), with the sources of the host and others
    that it does not have yet. Nothing of the host changes.
  - Names the versions of each package, newest first, and where each comes from.
  - Computes in a simulation what else an installation would bring.
options:
  packages:
    description: Names of packages, or patterns with V(*), V(?) and V([]).
    type: list
    elements: str
    required: true
  sources:
    description:
      - Sources to ask besides the host's own. One without a C(uri) stands for the distribution's
        archive, with C(components) that are asked for where the host's declarations lack them.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Names the source.
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
  simulate:
    description: Packages to install in a simulation, each as C(name) or C(name=version).
    type: list
    elements: str
    default: []
  update:
    description:
      - Which indexes are fetched. V(auto) fetches those of O(sources), and the host's own
        where a package is in no list. V(always) fetches all, V(never) none.
    type: str
    choices: [auto, always, never]
    default: auto
  cache_dir:
    description: Folder that keeps the private state for the next time. By default none does.
    type: path
  timeout:
    description: Seconds that one call of apt may take.
    type: int
    default: 300
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Ask which drivers a repository has
  llmetal.inference.apt_candidates:
    packages:
      - nvidia-kernel-open-dkms
      - nvidia-driver-pinning-*
    sources:
      - name: cuda
        uri: https://packages.example.org/cuda/debian12/x86_64
        key: "{{ lookup('ansible.builtin.file', 'cuda.asc') }}"
        fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
  register: offered
"""

RETURN = r"""
candidates:
  description: Versions by package, newest first; an empty list for an unknown package.
  type: dict
  returned: success
  sample:
    nvidia-kernel-open-dkms:
      - version: 580.159.04-1
        origin: https://packages.example.org/cuda/debian12/x86_64
closure:
  description: What the simulated installation would install or change; null without one.
  type: list
  elements: dict
  returned: success
  sample:
    - name: dkms
      version: 3.0.10-8+deb12u1
      origin: Debian:12.12/oldstable
warnings:
  description: What apt complained about while fetching the host's own indexes.
  type: list
  elements: str
  returned: success
  sample: []
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    SOURCE_OPTIONS,
)
from ansible_collections.llmetal.inference.plugins.module_utils.candidates import (
    ask,
    question_of,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

ARGUMENTS: dict[str, Any] = {
    "packages": {"type": "list", "elements": "str", "required": True},
    "sources": {"type": "list", "elements": "dict", "default": [], "options": SOURCE_OPTIONS},
    "simulate": {"type": "list", "elements": "str", "default": []},
    "update": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
    "cache_dir": {"type": "path"},
    "timeout": {"type": "int", "default": 300},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        answer = ask(question_of(module.params))
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
