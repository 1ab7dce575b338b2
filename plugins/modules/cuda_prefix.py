#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module cuda_prefix: a CUDA toolkit under one prefix."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_prefix
short_description: Have a CUDA toolkit under one prefix, from wheels or a runfile
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Builds a toolkit beside the one in use, sees that its compiler runs, and switches to it in one
    step. A failed build leaves the toolkit in use as it was. No driver is touched.
  - From wheels, each verified by its hash, the prefix gets C(bin), C(include), C(lib64) with the
    names that linkers ask for, and C(nvvm). No root is needed.
  - From a runfile, only the toolkit of it is installed, after its sum is verified.
  - A path of O(link) that another installation owns is refused by name, and never removed.
options:
  name:
    description: Name of the release line, such as V(cuda-13.0). Its folder is C(root/name).
    type: str
    required: true
  root:
    description: Folder of all toolkits.
    type: path
    required: true
  release:
    description: The exact release.
    type: str
  state:
    description: Whether it is to be there.
    type: str
    choices: [present, absent]
    default: present
  link:
    description: Public path that leads to the prefix, such as C(/usr/local/cuda-13.0).
    type: path
  provider:
    description: Where it comes from.
    type: str
    choices: [wheels, runfile]
    default: wheels
  requirements:
    description: The wheels.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the distribution.
        type: str
        required: true
      version:
        description: Its exact version.
        type: str
        required: true
      sha256:
        description: The hashes that its file may have.
        type: list
        elements: str
        required: true
  python:
    description: The interpreter that makes the environment of wheels.
    type: path
  uv:
    description: Path of the uv program.
    type: path
  index_url:
    description: Package index to use instead of the host's own setting.
    type: str
  cache:
    description: Folder of the wheel cache.
    type: path
  runfile:
    description: The installer.
    type: dict
    suboptions:
      source:
        description: Its address, or its path on the host.
        type: str
        required: true
      sha256:
        description: Its published sha256.
        type: str
      md5:
        description: Its published md5, for releases without a published sha256.
        type: str
      size:
        description: Its size in bytes, where known.
        type: int
  size_bytes:
    description: Room that it takes, where known. V(0) does not look.
    type: int
    default: 0
  install_timeout:
    description: Seconds that fetching and installing may take.
    type: int
    default: 3600
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Predicts without changing anything.
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Have CUDA 13.0 from wheels
  llmetal.inference.cuda_prefix:
    name: cuda-13.0
    root: /opt/llmetal/toolkits
    release: 13.0.3
    link: /usr/local/cuda-13.0
    requirements: "{{ toolkit.requirements }}"
    python: /usr/bin/python3
    uv: /opt/llmetal/tools/uv/current/bin/uv
    cache: /var/cache/llmetal/uv
"""

RETURN = r"""
before:
  description: What was there.
  type: dict
  returned: success
  contains:
    digest:
      description: Digest of the toolkit in use, or null.
      type: str
      sample: null
    whole:
      description: Whether the wanted toolkit is there and whole.
      type: bool
      sample: false
    link:
      description: Where the public path leads, or null.
      type: str
      sample: null
after:
  description: What is there now, or would be.
  type: dict
  returned: success
  sample: {digest: 3f1a0c9b2d4e, whole: true, link: /opt/llmetal/toolkits/cuda-13.0/current/cuda}
prefix:
  description: The toolkit, by a path that stays the same over updates.
  type: str
  returned: success
  sample: /opt/llmetal/toolkits/cuda-13.0/current/cuda
removed:
  description: Older toolkits that were removed.
  type: list
  elements: str
  returned: success
  sample: [0d5c77a1e3b2]
seconds:
  description: How long it took.
  type: float
  returned: success
  sample: 14.2
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import cuda_prefix as prefix_
from ansible_collections.llmetal.inference.plugins.module_utils.environment import (
    EnvironmentSpec,
    Installer,
    Places,
    Requirement,
    ensure,
    interpreter_version,
    read_state,
    switch_link,
)
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "root": {"type": "path", "required": True},
    "release": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "link": {"type": "path"},
    "provider": {"type": "str", "choices": ["wheels", "runfile"], "default": "wheels"},
    "requirements": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "sha256": {"type": "list", "elements": "str", "required": True},
        },
    },
    "python": {"type": "path"},
    "uv": {"type": "path"},
    "index_url": {"type": "str"},
    "cache": {"type": "path"},
    "runfile": {
        "type": "dict",
        "options": {
            "source": {"type": "str", "required": True},
            "sha256": {"type": "str"},
            "md5": {"type": "str"},
            "size": {"type": "int"},
        },
    },
    "size_bytes": {"type": "int", "default": 0},
    "install_timeout": {"type": "int", "default": 3600},
}


def _absent(root: Path, link: Path | None, *, check_mode: bool) -> dict[str, Any]:
    there = root.exists()
    if there and not check_mode:
        prefix_.remove(root, link)
    before = {"there": there}
    return {
        "changed": there,
        "before": before,
        "after": {"there": False},
        "diff": {"before": before, "after": {"there": False}},
        "prefix": str(root / "current" / prefix_.PREFIX),
        "removed": [root.name] if there else [],
        "seconds": 0.0,
    }


def _from_wheels(params: dict[str, Any], root: Path, *, check_mode: bool) -> tuple[str, bool, Any]:
    """The digest that is wanted, whether it is there unchanged, and what brings it."""
    python = params["python"]
    trusted = check_mode and not Path(python).exists()
    spec = EnvironmentSpec(
        name=params["name"],
        python=python,
        python_version="3" if trusted else interpreter_version(python),
        requirements=tuple(
            Requirement(one["name"], one["version"], tuple(one["sha256"]))
            for one in params["requirements"]
        ),
    )
    spec.check()
    places = Places.of(params["root"], spec)
    state = read_state(spec, places)

    def build() -> list[str]:
        installer = Installer(
            uv=params["uv"],
            index_url=params["index_url"] or "",
            cache=params["cache"] or "",
            install_timeout=params["install_timeout"],
            size_bytes=params["size_bytes"],
        )

        def complete(folder: Path) -> None:
            prefix_.assemble(folder, params["release"])

        if state.built and not state.changes:
            complete(root / spec.digest)
        return ensure(spec, places, installer, complete).removed

    return spec.digest, state.built and not state.changes, build


def _from_runfile(params: dict[str, Any], root: Path) -> tuple[str, bool, Any]:
    runfile = prefix_.Runfile(**params["runfile"])

    def build() -> list[str]:
        root.mkdir(parents=True, exist_ok=True)
        if not prefix_.is_whole(root / runfile.digest / prefix_.PREFIX):
            prefix_.install_runfile(runfile, root, params["release"], params["install_timeout"])
        switch_link(root / "current", runfile.digest)
        return prefix_.prune(root, runfile.digest)

    return runfile.digest, True, build


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Bring the toolkit to what the parameters say; the module's result."""
    started = time.monotonic()
    root = Path(params["root"]) / params["name"]
    link = Path(params["link"]) if params["link"] else None
    if params["state"] == "absent":
        return _absent(root, link, check_mode=check_mode)
    if link is not None:
        prefix_.check_link(link, root)
    if params["provider"] == "wheels":
        digest, unchanged, build = _from_wheels(params, root, check_mode=check_mode)
    else:
        digest, unchanged, build = _from_runfile(params, root)
    public = str(root / "current" / prefix_.PREFIX)
    state = prefix_.read_state(root, digest, link)
    before = {**state.as_dict(), "whole": state.whole and unchanged}
    after = {"digest": digest, "whole": True, "link": public if link else None}
    removed: list[str] = []
    if before != after and not check_mode:
        if not before["whole"] or before["digest"] != digest:
            removed = build()
        if link is not None:
            prefix_.set_link(link, public)
    return {
        "changed": before != after,
        "before": before,
        "after": after,
        "diff": {"before": before, "after": after},
        "prefix": public,
        "removed": removed,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[
            ("state", "present", ["release"]),
            ("provider", "runfile", ["runfile"]),
        ],
        supports_check_mode=True,
    )
    finish(module, converge)


if __name__ == "__main__":
    main()
