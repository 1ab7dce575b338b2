#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module supervised_process: a service on a host without a systemd manager."""

from __future__ import annotations

DOCUMENTATION = r"""
module: supervised_process
short_description: Keep a process running where there is no systemd manager
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Runs a process under supervisord, which listens on a socket in a folder of its own and is
    started when the first process needs it.
  - A running process is restarted only when its command, its environment or one of
    O(restart_on) changed, or when it was started before its configuration was last written.
  - With O(state=absent) the process and all that it started are stopped; with the last process
    supervisord ends too, and nothing keeps running.
options:
  name:
    description: Name of the process.
    type: str
    required: true
  argv:
    description: The program and its arguments. Needed unless O(state=absent).
    type: list
    elements: str
    default: []
  env:
    description: Its whole environment; only C(PATH) is added.
    type: dict
    default: {}
  directory:
    description: Folder to run in.
    type: path
    default: /
  user:
    description: User to run as, where supervisord runs as root.
    type: str
  state:
    description: What the process should be.
    type: str
    choices: [started, stopped, absent]
    default: started
  restart_on:
    description: Digests of what else the running process depends on.
    type: list
    elements: str
    default: []
  restart_on_links:
    description: Links, such as that of an environment, whose targets count as O(restart_on).
    type: list
    elements: path
    default: []
  settle_seconds:
    description: Seconds that a start must survive; after three that do not, it is given up.
    type: int
    default: 60
  supervisord:
    description: Path of the supervisord program.
    type: path
    required: true
  config_dir:
    description: Folder of supervisord's configuration.
    type: path
    required: true
  run_dir:
    description: Folder of its socket.
    type: path
    required: true
  log_dir:
    description: Folder of its log and of those of the processes.
    type: path
    required: true
  timeout:
    description: Seconds that one request to supervisord may take.
    type: int
    default: 60
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Predicts without changing anything.
  diff_mode:
    support: full
    details: Shows the configuration before and after.
  idempotent:
    support: full
    details: An unchanged process is neither written nor restarted.
"""

EXAMPLES = r"""
- name: Serve a model
  llmetal.inference.supervised_process:
    name: llmetal-chat
    argv: [/opt/llmetal/environments/vllm-cpu/current/bin/vllm, serve, /srv/models/smollm2]
    env:
      HOME: /var/cache/llmetal/chat
    supervisord: /opt/llmetal/environments/supervisor/current/bin/supervisord
    config_dir: /etc/llmetal/supervisor
    run_dir: /run/llmetal
    log_dir: /var/log/llmetal
"""

RETURN = r"""
before:
  description: What was there.
  type: dict
  returned: success
  contains: &state
    sha256:
      description: Hash of the configuration, or null.
      type: str
      sample: null
    running:
      description: Whether the process is up or on its way up.
      type: bool
      sample: false
    up_to_date:
      description: Whether the running process was started with the configuration as it is.
      type: bool
      sample: true
after:
  description: What is there now, or would be.
  type: dict
  returned: success
  contains: *state
log:
  description: File with what the process prints.
  type: str
  returned: success
  sample: /var/log/llmetal/llmetal-chat.log
main_pid:
  description: The process; 0 where there is none.
  type: int
  returned: success
  sample: 4711
config_file:
  description: The process's configuration.
  type: str
  returned: success
  sample: /etc/llmetal/supervisor/programs/llmetal-chat.conf
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.service import link_marks
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish
from ansible_collections.llmetal.inference.plugins.module_utils.supervisor import (
    ProcessSpec,
    Supervisor,
    apply,
    compare,
    wanted,
)

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "argv": {"type": "list", "elements": "str", "default": []},
    "env": {"type": "dict", "default": {}},
    "directory": {"type": "path", "default": "/"},
    "user": {"type": "str"},
    "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
    "restart_on": {"type": "list", "elements": "str", "default": []},
    "restart_on_links": {"type": "list", "elements": "path", "default": []},
    "settle_seconds": {"type": "int", "default": 60},
    "supervisord": {"type": "path", "required": True},
    "config_dir": {"type": "path", "required": True},
    "run_dir": {"type": "path", "required": True},
    "log_dir": {"type": "path", "required": True},
    "timeout": {"type": "int", "default": 60},
}


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Bring the process to what the parameters say; the module's result."""
    spec = ProcessSpec(
        name=params["name"],
        argv=tuple(params["argv"]),
        env={str(name): str(value) for name, value in params["env"].items()},
        directory=params["directory"],
        user=params["user"] or "",
        state=params["state"],
        restart_on=(*params["restart_on"], *link_marks(params["restart_on_links"])),
        settle_seconds=params["settle_seconds"],
    )
    spec.check()
    supervisor = Supervisor(
        program=params["supervisord"],
        config=params["config_dir"],
        run_dir=params["run_dir"],
        log_dir=params["log_dir"],
        timeout=params["timeout"],
    )
    before, after = compare(spec, supervisor), wanted(spec, supervisor)
    diff = {
        "before": read_text(supervisor.program_file(spec.name)) or "",
        "after": "" if spec.state == "absent" else supervisor.program_text(spec),
    }
    if before != after and not check_mode:
        apply(spec, supervisor, before)
    return {
        "changed": before != after,
        "before": asdict(before),
        "after": asdict(after),
        "diff": diff,
        "log": str(supervisor.log_file(spec.name)),
        "main_pid": supervisor.info(spec.name).pid,
        "config_file": str(supervisor.program_file(spec.name)),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
