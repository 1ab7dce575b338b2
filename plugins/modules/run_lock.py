#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module run_lock: one site run at a time on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_lock
short_description: Keep two site runs off one host
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Takes, renews or gives back the run lock of a host, a file that names the run, who runs it and
    until when.
  - Refuses while another run holds it, naming that run. A lock whose lease is over is taken over,
    and so is, at once, one of this same controller whose process is dead.
  - An action plugin fills in who runs (O(run_id), O(owner)) and finds out which runs are dead, so a
    task gives O(path) and O(state) only.
  - It is bookkeeping of a run and no part of what the host should be, so it never reports a change.
options:
  path:
    description: Folder of the lock's file. It is made where it is not there.
    type: path
    required: true
  state:
    description:
      - V(acquired) takes the lock, V(renewed) prolongs it (and takes it where it was lost, as in a
        reboot), V(released) gives it back.
    type: str
    choices: [acquired, renewed, released]
    default: acquired
  lease:
    description: Seconds after which the lock ends unless it is renewed.
    type: int
    default: 7200
  wait:
    description: Seconds to wait for another run.
    type: int
    default: 0
  run_id:
    description: The run. By default this one.
    type: str
    required: false
  owner:
    description: Who runs it. By default this controller and its process.
    type: dict
    required: false
    suboptions:
      controller:
        description: Identifier of the controller.
        type: str
        required: true
      host:
        description: Name of the controller.
        type: str
        required: true
      user:
        description: Who runs the site.
        type: str
        required: true
      pid:
        description: Process of the run.
        type: int
        required: true
      started:
        description: When that process began, in a form that only its controller reads.
        type: str
        required: true
  dead_runs:
    description: Runs that are known to be dead.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Refuses as it would otherwise, and writes nothing.
  diff_mode:
    support: N/A
    details: There is nothing to compare.
  idempotent:
    support: full
    details: Never reports a change.
"""

EXAMPLES = r"""
- name: Keep other runs off the host
  llmetal.inference.run_lock:
    path: /run/llmetal
    state: acquired
    wait: 60

- name: Let other runs in
  llmetal.inference.run_lock:
    path: /run/llmetal
    state: released
"""

RETURN = r"""
decision:
  description:
    - What became of the claim, one of V(free) (nobody had it), V(ours), V(taken_over) (from a dead
      run), V(held), V(released), V(not_ours).
  type: str
  returned: always
  sample: free
previous:
  description: The lock as it was, or null.
  type: dict
  returned: always
  sample: null
run_id:
  description: The run that asked.
  type: str
  returned: always
  sample: 5d1c0c0e-4711-8812345
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.run_lock import (
    Claim,
    HeldError,
    acquire,
    owner_of,
    release,
)

ARGUMENTS: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "state": {
        "type": "str",
        "choices": ["acquired", "renewed", "released"],
        "default": "acquired",
    },
    "lease": {"type": "int", "default": 7200},
    "wait": {"type": "int", "default": 0},
    # Required here; the action plugin fills them in.
    "run_id": {"type": "str"},
    "owner": {
        "type": "dict",
        "options": {
            "controller": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "pid": {"type": "int", "required": True},
            "started": {"type": "str", "required": True},
        },
    },
    "dead_runs": {"type": "list", "elements": "str", "default": []},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Take, renew or give back the lock."""
    if not params["run_id"] or not params["owner"]:
        raise LlmetalError(
            what="the run lock has no owner",
            fix="call llmetal.inference.run_lock as a task, so that its action plugin fills it in",
        )
    if params["state"] == "released":
        return release(params["path"], params["run_id"], check_mode=check_mode)
    claim = Claim(
        run_id=params["run_id"],
        owner=owner_of(params["owner"]),
        lease=params["lease"],
        dead_runs=frozenset(params["dead_runs"]),
    )
    return acquire(params["path"], claim, wait=params["wait"], check_mode=check_mode)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    run_id = module.params["run_id"]
    try:
        result = converge(module.params, check_mode=module.check_mode)
    except HeldError as error:
        previous = error.lock.as_dict()
        module.fail_json(decision="held", previous=previous, run_id=run_id, **error.as_result())
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(changed=False, run_id=run_id, **result)


if __name__ == "__main__":
    main()
