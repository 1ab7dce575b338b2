#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module engine_info: which engine an environment holds."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_info
short_description: Say which engine an environment holds
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Asks an environment's own interpreter for the version of the engine and of torch, without
    importing either, and compares with O(version).
options:
  environment:
    description: Folder of the environment, or a link to it.
    type: path
    required: true
  engine:
    description: The engine, which is also the name of its distribution and of its command.
    type: str
    choices: [vllm, sglang]
    required: true
  version:
    description: The version that must be there.
    type: str
  timeout:
    description: Seconds that the interpreter may take.
    type: int
    default: 60
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing. An environment that is not there yet is a result in check mode.
  diff_mode:
    support: none
    details: There is nothing to compare.
  idempotent:
    support: full
    details: Changes nothing.
"""

EXAMPLES = r"""
- name: Read the engine's version
  llmetal.inference.engine_info:
    environment: /opt/llmetal/environments/vllm-cpu/current
    engine: vllm
    version: 0.32.0
"""

RETURN = r"""
engine:
  description: What is installed; null where the environment is not there.
  type: dict
  returned: success
  contains:
    name:
      description: Name of the engine.
      type: str
      sample: vllm
    version:
      description: Its version, or null.
      type: str
      sample: 0.32.0+cpu
    torch:
      description: Version of torch, or null.
      type: str
      sample: 2.13.0
    python:
      description: Version of the interpreter.
      type: str
      sample: 3.11.2
    command:
      description: Path of its command, or null.
      type: str
      sample: /opt/llmetal/environments/vllm-cpu/current/bin/vllm
proof:
  description: What was seen, for the report.
  type: dict
  returned: success
  sample: {"name": "engine vllm", "ok": true, "version": "0.32.0+cpu", "torch": "2.13.0"}
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.engine import inspect
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

ARGUMENTS: dict[str, Any] = {
    "environment": {"type": "path", "required": True},
    "engine": {"type": "str", "choices": ["vllm", "sglang"], "required": True},
    "version": {"type": "str"},
    "timeout": {"type": "int", "default": 60},
}


def look(params: dict[str, Any]) -> dict[str, Any]:
    """The module's result.

    Raises:
        LlmetalError: the engine is not the one that is wanted.
    """
    name = params["engine"]
    engine = inspect(Path(params["environment"]), name, params["timeout"])
    why = engine.differs_from(params["version"]) if params["version"] else ""
    if why:
        raise LlmetalError(
            what="the environment holds another engine than the lock",
            where=params["environment"],
            why=why,
            fix="run site.yml again; it builds the environment of the lock",
        )
    proof = {
        "name": f"engine {name}",
        "ok": True,
        "version": engine.version,
        "torch": engine.torch,
        "python": engine.python,
    }
    return {"changed": False, "engine": asdict(engine), "proof": proof}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = look(module.params)
    except LlmetalError as error:
        if module.check_mode and not Path(module.params["environment"]).exists():
            proof = {"name": f"engine {module.params['engine']}", "ok": False, "why": str(error)}
            module.exit_json(changed=False, engine=None, proof=proof)
        module.fail_json(**error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
