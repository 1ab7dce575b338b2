#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of the sandbox on this machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sandbox_host
short_description: Make, start, stop, break and remove a host of the sandbox
version_added: 0.1.0
description:
  - A sandbox host is a systemd-nspawn machine on the machine that this module runs on. It boots
    systemd as process 1, has an address of its own on a bridge, answers over ssh, uses apt, and
    reboots with a new boot id.
  - The first host makes what all share, the last one that goes takes it away (bridge, firewall
    rules, forwarding setting, package server, key). What the module did not make it never touches.
  - A run that was interrupted is repaired by the next one.
author:
  - The llmetal developers
extends_documentation_fragment: llmetal.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
    details: O(state=reset) always makes the host anew.
options:
  name:
    description: The host's name; lower case letters, digits and hyphens.
    type: str
    required: true
  os:
    description:
      - Its operating system. The Ubuntu ones are simulated (their os-release over a Debian root).
      - Required when O(state) is V(started) or V(reset).
    type: str
    choices: [debian12, debian13, ubuntu2204, ubuntu2404]
  address:
    description: Its address in O(subnet); required when O(state) is V(started) or V(reset).
    type: str
  scenario:
    description: The simulated GPUs it has, a name under C(scenarios/) of O(files); none by default.
    type: str
    default: ""
  binds:
    description: Folders of this machine that the host sees.
    type: list
    elements: dict
    default: []
    suboptions:
      source:
        description: The folder on this machine.
        type: str
        required: true
      target:
        description: Where the host sees it.
        type: str
        required: true
      read_only:
        description: Whether the host cannot write it.
        type: bool
        default: false
  faults:
    description:
      - The faults that are to be switched on, names under C(faults/) of O(files); all others are
        switched off. Without this option they stay as they are.
    type: list
    elements: str
  state:
    description:
      - V(started) makes and starts it. V(stopped) powers it off and keeps what it holds. V(reset)
        throws away what it holds and starts it anew. V(absent) removes it.
    type: str
    choices: [started, stopped, reset, absent]
    default: started
  memory_mib:
    description: A limit on its memory; none by default.
    type: int
    default: 0
  files:
    description: The folder with the sandbox's programs and data, C(files/) of the role.
    type: path
    required: true
  state_dir:
    description: Where running hosts are kept; a folder on a disk's own file system.
    type: path
    default: /var/lib/llmetal-sandbox
  cache_dir:
    description: Where base images are kept; C($XDG_CACHE_HOME/llmetal/sandbox) by default.
    type: path
  bridge:
    description: The name of the bridge.
    type: str
    default: llmetal0
  subnet:
    description: The addresses behind it; the first one is this machine's.
    type: str
    default: 10.213.0.0/24
  port:
    description: The port of the local package server on the bridge.
    type: int
    default: 8213
  debian_mirror:
    description: The address of a Debian archive; taken from this machine's own sources by default.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Bring up a GPU node
  llmetal.inference.sandbox_host:
    name: gpu-1
    os: debian12
    address: 10.213.0.11
    scenario: 8xa100_sxm4_80
    files: "{{ role_path }}/files"
  delegate_to: localhost

- name: Take it down
  llmetal.inference.sandbox_host:
    name: gpu-1
    state: absent
    files: "{{ role_path }}/files"
  delegate_to: localhost
"""

RETURN = r"""
host:
  description: The host as it is now, or as it would be in check mode.
  returned: success
  type: dict
  contains:
    name:
      description: Its name.
      type: str
      returned: success
    state:
      description: V(started), V(stopped) or V(absent).
      type: str
      returned: success
    os:
      description: Its operating system.
      type: str
      returned: when it is there
    address:
      description: Its address.
      type: str
      returned: when it is there
    scenario:
      description: The simulated GPUs it has; empty for none.
      type: str
      returned: when it is there
    boot_id:
      description: The kernel's id of this boot.
      type: str
      returned: when it was started, not in check mode
    system:
      description: What systemd says of it, running or degraded.
      type: str
      returned: when it was started, not in check mode
    faults:
      description: The faults switched on.
      type: list
      elements: str
      returned: when it is there
    ssh:
      description: How to reach it, C(user), and the paths C(key), C(known_hosts) and C(config).
      type: dict
      returned: success
    console:
      description: The file with what it wrote to its console.
      type: str
      returned: success
    repository:
      description: The address of the local package server.
      type: str
      returned: success
  sample:
    name: gpu-1
    state: started
    os: debian12
    address: 10.213.0.11
    scenario: 8xa100_sxm4_80
    boot_id: 0d7f1d9c-6d8b-4a92-8d0e-2a2f4a0f3c11
    system: running
    faults: []
    ssh:
      user: root
      key: /var/lib/llmetal-sandbox/ssh/id_ed25519
      known_hosts: /var/lib/llmetal-sandbox/ssh/known_hosts
      config: /var/lib/llmetal-sandbox/ssh/ssh_config
    console: /var/lib/llmetal-sandbox/hosts/gpu-1/console.log
    repository: http://10.213.0.1:8213
"""

from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import requests

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.hosts import Outcome

ARGUMENTS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "os": {"type": "str", "choices": ["debian12", "debian13", "ubuntu2204", "ubuntu2404"]},
    "address": {"type": "str"},
    "scenario": {"type": "str", "default": ""},
    "binds": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "source": {"type": "str", "required": True},
            "target": {"type": "str", "required": True},
            "read_only": {"type": "bool", "default": False},
        },
    },
    "faults": {"type": "list", "elements": "str"},
    "state": {
        "type": "str",
        "choices": ["started", "stopped", "reset", "absent"],
        "default": "started",
    },
    "memory_mib": {"type": "int", "default": 0},
    "files": {"type": "path", "required": True},
    "state_dir": {"type": "path", "default": "/var/lib/llmetal-sandbox"},
    "cache_dir": {"type": "path"},
    "bridge": {"type": "str", "default": "llmetal0"},
    "subnet": {"type": "str", "default": "10.213.0.0/24"},
    "port": {"type": "int", "default": 8213},
    "debian_mirror": {"type": "str", "default": ""},
}
NEEDED_TO_START = [("state", state, ["os", "address"]) for state in ("started", "reset")]


def main() -> None:
    """Read the parameters, ask for the host, say what became of it."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS, required_if=NEEDED_TO_START, supports_check_mode=True
    )
    try:
        outcome: Outcome = requests.fulfil(module.params, check=module.check_mode)
    except LlmetalError as error:
        module.fail_json(**error.as_result())
        return
    module.exit_json(
        changed=outcome.changed,
        host=outcome.host,
        diff={"before": outcome.before, "after": outcome.after},
    )


if __name__ == "__main__":
    main()
