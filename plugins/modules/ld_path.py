#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module ld_path: folders that the loader searches."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ld_path
short_description: Have the dynamic loader find the libraries of some folders
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Manages one file in C(/etc/ld.so.conf.d) and the loader's cache. ldconfig runs where the file
    or the cache is not as wanted, and else not.
  - Fails where a library that is wanted does not resolve, or resolves to another file, and says
    what would bring it. A folder of CUDA 12 never gives libcudart.so.13.
  - Finds what is taken before the right file - a stub, a cuda-compat libcuda over the driver's own
    (CUDA errors 803 and 804), LD_LIBRARY_PATH in a shell file, C(/etc/ld.so.preload).
  - C(ldconfig FOLDER) lasts until the next plain ldconfig, which most installations of packages
    run; folders that are in the cache only because of it are named in RV(unlisted).
options:
  name:
    description: The file's name, without C(.conf). Of two folders the first in order is taken.
    type: str
    required: true
  folders:
    description: The folders, in order. With O(state=absent) those that must leave the cache.
    type: list
    elements: path
    default: []
  state:
    description: Whether the file is there.
    type: str
    choices: [present, absent]
    default: present
  sonames:
    description: Libraries that must resolve through the cache.
    type: list
    elements: str
    default: []
  anywhere:
    description: Whether they may resolve to any file, and not only to one in O(folders).
    type: bool
    default: false
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: A library of a folder that is yet to be made is no failure.
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Have the loader find CUDA 13
  llmetal.inference.ld_path:
    name: llmetal-cuda
    folders: [/usr/local/cuda-13.0/lib64]
    sonames: [libcudart.so.13]
"""

RETURN = r"""
path:
  description: The file.
  type: str
  returned: success
  sample: /etc/ld.so.conf.d/llmetal-cuda.conf
before:
  description: The file's text or null, and what was wrong in the cache.
  type: dict
  returned: success
  sample: {file: null, cache: [/usr/local/cuda-13.0/lib64/libcudart.so.13 is not in the cache]}
after:
  description: The same after, or as predicted.
  type: dict
  returned: success
  sample: {file: "/usr/local/cuda-13.0/lib64\n", cache: []}
resolves:
  description: The file that each of O(sonames) resolves to; null where none.
  type: dict
  returned: success
  sample: {libcudart.so.13: /usr/local/cuda-13.0/lib64/libcudart.so.13}
shadowed_by:
  description: Files that are taken before the right ones.
  type: list
  elements: dict
  returned: success
  contains:
    soname:
      description: The library.
      type: str
      sample: libcuda.so.1
    path:
      description: What is taken.
      type: str
      sample: /usr/local/cuda-13.0/compat/libcuda.so.1
    kind:
      description: One of V(stub), V(compat), V(other), V(ld_library_path), V(preload).
      type: str
      sample: compat
    why:
      description: What it does.
      type: str
      sample: LD_LIBRARY_PATH in /etc/environment is searched before the cache
    fix:
      description: What to do.
      type: str
      sample: take /usr/local/cuda-13.0/compat out of /etc/environment
unlisted:
  description: Folders of toolkits that were in the cache and in no file.
  type: list
  elements: str
  returned: success
  sample: [/usr/local/cuda-12/lib64]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import loader, toolkits
from ansible_collections.llmetal.inference.plugins.module_utils.ld_path import (
    Places,
    Wanted,
    ensure,
)
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "folders": {"type": "list", "elements": "path", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "sonames": {"type": "list", "elements": "str", "default": []},
    "anywhere": {"type": "bool", "default": False},
}


def converge(
    params: dict[str, Any], *, check_mode: bool, places: Places | None = None
) -> dict[str, Any]:
    """Bring the loader to what the parameters say; the module's result."""
    wanted = Wanted(
        name=params["name"],
        folders=tuple(params["folders"]),
        present=params["state"] == "present",
        sonames=tuple(params["sonames"]),
        anywhere=params["anywhere"],
    )
    at = places or Places()
    done = ensure(
        wanted,
        check_mode=check_mode,
        places=at,
        settings=toolkits.settings_of("/"),
        preload=loader.read_preload(),
    )
    return {
        "changed": done.changed,
        "path": str(at.conf_dir / f"{wanted.name}.conf"),
        "before": dict(done.before),
        "after": dict(done.after),
        "diff": {"before": dict(done.before), "after": dict(done.after)},
        "resolves": dict(done.resolves),
        "shadowed_by": [row.as_dict() for row in done.shadowed_by],
        "unlisted": list(done.unlisted),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
