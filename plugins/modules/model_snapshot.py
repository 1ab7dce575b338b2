#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module model_snapshot: read a model folder, or publish it verified."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_snapshot
short_description: Read a model folder, or publish it into the model store
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - With O(state=inspected) reads a folder that holds a model and returns every file with its
    sha256, the architectures and the format. Changes nothing.
  - With O(state=published) copies exactly the files of the lock into the model store, verifies
    every byte on the way, and lets the revision appear by one rename. A half copied one is never
    visible, and the next run removes it.
  - Only plain files are taken. Hidden files are left out, a link that leads out of the folder is
    refused.
options:
  state:
    description: What to do.
    type: str
    choices: [inspected, published]
    required: true
  source:
    description: Folder that holds the model.
    type: path
    required: true
  cache:
    description:
      - Folder in which O(state=inspected) remembers hashes by size, times and inode.
      - Used where it exists; never made.
    type: path
  store:
    description: The model store. Needed by O(state=published).
    type: path
  name:
    description: Name of the model in the store. Needed by O(state=published).
    type: str
  revision:
    description: The revision that the files make. Needed by O(state=published).
    type: str
  files:
    description: The files of the lock. Needed by O(state=published).
    type: list
    elements: dict
    suboptions:
      path:
        description: Name of the file in the model's folder.
        type: str
        required: true
      size:
        description: Its bytes.
        type: int
        required: true
      sha256:
        description: Its hash.
        type: str
        required: true
  deep:
    description: Hash published files again that look unchanged.
    type: bool
    default: false
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Predicts without changing anything.
  diff_mode:
    support: full
    details: Shows the revision in use and what is wrong with it.
  idempotent:
    support: full
    details: A published revision that looks unchanged is not read again.
"""

EXAMPLES = r"""
- name: Read the model
  llmetal.inference.model_snapshot:
    state: inspected
    source: /srv/models/smollm2
    cache: /var/cache/llmetal/manifests
  register: seen

- name: Publish the model
  llmetal.inference.model_snapshot:
    state: published
    source: /srv/models/smollm2
    store: /var/lib/llmetal/models
    name: smollm2
    revision: "{{ seen.revision }}"
    files: "{{ seen.files }}"
"""

RETURN = r"""
revision:
  description: The sha256 over paths, sizes and hashes of all files.
  type: str
  returned: success
  sample: 5c0e6b3c3b7f0b4c2d1f0f2a4a0f7d9b8e6c5a4b3c2d1e0f9a8b7c6d5e4f3a2b
files:
  description: The files.
  type: list
  elements: dict
  returned: success
  contains:
    path:
      description: Name in the folder.
      type: str
      sample: model.safetensors
    size:
      description: Bytes.
      type: int
      sample: 269060552
    sha256:
      description: Hash.
      type: str
      sample: 9b0c0b8f4b4e3a2d1c0f9e8d7c6b5a49382716f5e4d3c2b1a0f9e8d7c6b5a493
size:
  description: Bytes of all files.
  type: int
  returned: success
  sample: 272616184
architectures:
  description: Model classes that config.json names.
  type: list
  elements: str
  returned: when O(state=inspected)
  sample: [LlamaForCausalLM]
format:
  description: Kind of the weights, V(safetensors), V(gguf) or V(pytorch).
  type: str
  returned: when O(state=inspected)
  sample: safetensors
config:
  description: The whole config.json.
  type: dict
  returned: when O(state=inspected)
  sample: {"model_type": "llama", "hidden_size": 576}
skipped:
  description: Hidden entries that are not part of the model.
  type: list
  elements: str
  returned: when O(state=inspected)
  sample: [.gitattributes]
before:
  description: What the store had.
  type: dict
  returned: when O(state=published)
  contains:
    revision:
      description: The revision in use, or null.
      type: str
      sample: null
    problems:
      description: What keeps the wanted revision from being whole.
      type: list
      elements: str
      sample: [not published]
after:
  description: What the store has, or would have.
  type: dict
  returned: when O(state=published)
  contains:
    revision:
      description: The revision in use.
      type: str
      sample: 5c0e6b3c3b7f0b4c2d1f0f2a4a0f7d9b8e6c5a4b3c2d1e0f9a8b7c6d5e4f3a2b
    problems:
      description: Always empty.
      type: list
      elements: str
      sample: []
folder:
  description: Folder of the revision.
  type: str
  returned: when O(state=published)
  sample: /var/lib/llmetal/models/smollm2/5c0e6b3c
link:
  description: Link that always names the revision in use.
  type: str
  returned: when O(state=published)
  sample: /var/lib/llmetal/models/smollm2/current
proof:
  description: Whether the revision in use is the wanted one and whole, for the report.
  type: dict
  returned: when O(state=published)
  sample: {"name": "model smollm2", "ok": true, "revision": "5c0e6b3c", "problems": []}
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish
from ansible_collections.llmetal.inference.plugins.module_utils.snapshot import (
    ModelFile,
    Publication,
    check_files,
    check_sizes,
    inspect,
    is_recorded,
    is_safe_path,
    problems_of,
    publish,
)

ARGUMENTS: dict[str, Any] = {
    "state": {"type": "str", "choices": ["inspected", "published"], "required": True},
    "source": {"type": "path", "required": True},
    "cache": {"type": "path"},
    "store": {"type": "path"},
    "name": {"type": "str"},
    "revision": {"type": "str"},
    "files": {
        "type": "list",
        "elements": "dict",
        "options": {
            "path": {"type": "str", "required": True},
            "size": {"type": "int", "required": True},
            "sha256": {"type": "str", "required": True},
        },
    },
    "deep": {"type": "bool", "default": False},
}


def read(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """The result of state inspected."""
    cache = Path(params["cache"]) if params["cache"] else None
    snapshot = inspect(Path(params["source"]), cache, remember=not check_mode)
    return {
        "changed": False,
        "revision": snapshot.revision,
        "files": [asdict(one) for one in snapshot.files],
        "size": snapshot.size,
        "architectures": list(snapshot.architectures),
        "format": snapshot.format,
        "config": dict(snapshot.config),
        "skipped": list(snapshot.skipped),
    }


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """The result of state published."""
    name = params["name"]
    if not is_safe_path(name) or "/" in name or name.startswith("."):
        raise LlmetalError(
            what="the model's name is not a plain name",
            where=repr(name),
            fix="use letters, digits, dot, dash and underscore",
        )
    files = tuple(ModelFile(**one) for one in params["files"])
    check_files(files, params["revision"])
    place = Publication(Path(params["store"]) / name, params["revision"])
    source = Path(params["source"])
    problems = problems_of(files, place, deep=params["deep"])
    if not problems and not is_recorded(files, place):
        problems = ("verified, not recorded",)
    before = {"revision": place.linked, "problems": list(problems)}
    after = {"revision": place.revision, "problems": []}
    if before != after:
        if check_mode:
            check_sizes(source, files)
        else:
            publish(source, files, place)
            problems = problems_of(files, place, deep=False)
    return {
        "changed": before != after,
        "before": before,
        "after": after,
        "diff": {"before": before, "after": after},
        "revision": place.revision,
        "files": params["files"],
        "size": sum(one.size for one in files),
        "folder": str(place.final),
        "link": str(place.link),
        "proof": {
            "name": f"model {name}",
            "ok": not problems and place.linked == place.revision,
            "revision": place.linked,
            "problems": list(problems),
        },
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("state", "published", ["store", "name", "revision", "files"])],
        supports_check_mode=True,
    )
    finish(module, read if module.params["state"] == "inspected" else converge)


if __name__ == "__main__":
    main()
