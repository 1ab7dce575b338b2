#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module folders: several folders in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: folders
short_description: Have folders with an owner and a mode, many in one call
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Makes folders in the order given, with the folders above them, and corrects owner and mode.
  - One call for all of them costs one round trip. A loop over M(ansible.builtin.file) costs one
    each.
options:
  folders:
    description: The folders.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Where.
        type: path
        required: true
      mode:
        description: Permission bits as octal digits.
        type: str
        default: "0755"
      owner:
        description: User. By default whoever it has, or who makes it.
        type: str
      group:
        description: Group. By default the one it has, or that of who makes it.
        type: str
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: A user or a group that is yet to be made is no failure.
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Have the folders of the models
  llmetal.inference.folders:
    folders:
      - path: /var/lib/llmetal
      - path: /var/lib/llmetal/models
        owner: llmetal
        group: llmetal
        mode: "0750"
"""

RETURN = r"""
before:
  description: Mode, owner and group of each folder before; null where it was not there.
  type: dict
  returned: success
  sample: {/var/lib/llmetal: null}
after:
  description: Mode, owner and group of each folder after, or as predicted.
  type: dict
  returned: success
  sample: {/var/lib/llmetal: {mode: "0755", owner: root, group: root}}
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.folders import (
    Folder,
    make,
    state_of,
    wanted,
)

ARGUMENTS: dict[str, Any] = {
    "folders": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "path": {"type": "path", "required": True},
            "mode": {"type": "str", "default": "0755"},
            "owner": {"type": "str"},
            "group": {"type": "str"},
        },
    },
}


def converge(folders: list[Folder], *, check_mode: bool) -> dict[str, Any]:
    """Bring every folder to what it should be."""
    before = {folder.path: state_of(folder.path) for folder in folders}
    after = {folder.path: wanted(folder, before[folder.path]) for folder in folders}
    for folder in folders:
        if before[folder.path] != after[folder.path] and not check_mode:
            # One further up may have made this one meanwhile.
            make(folder, state_of(folder.path))
    result: dict[str, Any] = {
        "before": {path: asdict(state) if state else None for path, state in before.items()},
        "after": {path: asdict(state) for path, state in after.items()},
    }
    changed = result["before"] != result["after"]
    return {"changed": changed, **result, "diff": dict(result)}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        folders = [Folder.of(params) for params in module.params["folders"]]
        result = converge(folders, check_mode=module.check_mode)
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
