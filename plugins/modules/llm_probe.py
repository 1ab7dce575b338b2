#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module llm_probe: the proof that a model is served."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_probe
short_description: Prove that an endpoint serves a model
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Asks an OpenAI-compatible endpoint for its models and for a completion.
  - Succeeds only if the model is listed and the completion is a real one, with text, more than
    one token and the finish reason V(stop) or V(length).
  - Follows no redirect, and uses no proxy for an address of the machine itself.
  - Changes nothing. In check mode it asks as well, and an endpoint that does not answer is then
    a result and no failure.
options:
  url:
    description: Address of the endpoint without a path, as in C(http://127.0.0.1:8000).
    type: str
    required: true
  model:
    description: Name of the served model.
    type: str
    required: true
  prompt:
    description: What the model is asked.
    type: str
    default: What is the capital of France?
  max_tokens:
    description: How long the answer may be.
    type: int
    default: 32
  timeout:
    description: Seconds that one request may take.
    type: int
    default: 120
  wait:
    description: Seconds to go on asking while the endpoint is not ready; V(0) asks once.
    type: int
    default: 0
  api_key:
    description: Key of the endpoint.
    type: str
  name:
    description: Name of the proof in the report. By default the model's.
    type: str
  service:
    description: The service behind the endpoint. Waiting ends early when it has failed.
    type: dict
    suboptions:
      name:
        description: Name of the unit or the process.
        type: str
        required: true
      manager:
        description: What runs it.
        type: str
        choices: [systemd, supervisor]
        default: systemd
      scope:
        description: The system's manager or that of the user.
        type: str
        choices: [system, user]
        default: system
      run_dir:
        description: Folder of supervisord's socket.
        type: path
      log_dir:
        description: Folder of supervisord's logs.
        type: path
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing in any mode.
  diff_mode:
    support: none
    details: There is nothing to compare.
  idempotent:
    support: full
    details: Changes nothing.
"""

EXAMPLES = r"""
- name: Prove that the model answers
  llmetal.inference.llm_probe:
    url: http://127.0.0.1:8000
    model: smollm2
    wait: 600
    service:
      name: llmetal-chat.service
"""

RETURN = r"""
proof:
  description: What was seen.
  type: dict
  returned: always
  contains:
    name:
      description: Name of the proof.
      type: str
      sample: chat
    ok:
      description: Whether a real generation came back.
      type: bool
      sample: true
    model:
      description: The model that was asked.
      type: str
      sample: smollm2
    answer:
      description: The text.
      type: str
      returned: when O(ignore:ok)
      sample: The capital of France is Paris.
    completion_tokens:
      description: Tokens of the answer.
      type: int
      sample: 8
    seconds:
      description: Time of the completion.
      type: float
      sample: 0.41
    tokens_per_second:
      description: Rate of this one request.
      type: float
      sample: 19.5
    finish_reason:
      description: Why the model stopped.
      type: str
      sample: stop
    why:
      description: Why there is no proof.
      type: str
      returned: failure
      sample: the endpoint does not answer
waited:
  description: Seconds until the answer.
  type: float
  returned: success
  sample: 48.7
log:
  description: The service's last lines.
  type: list
  elements: str
  returned: failure
  sample: ["OSError: [Errno 98] Address already in use"]
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.probe import (
    Question,
    root_cause,
    wait_for_answer,
)
from ansible_collections.llmetal.inference.plugins.module_utils.service import (
    Manager,
    UnitState,
)
from ansible_collections.llmetal.inference.plugins.module_utils.supervisor import Supervisor

ARGUMENTS: dict[str, Any] = {
    "url": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "prompt": {"type": "str", "default": "What is the capital of France?"},
    "max_tokens": {"type": "int", "default": 32},
    "timeout": {"type": "int", "default": 120},
    "wait": {"type": "int", "default": 0},
    "api_key": {"type": "str", "no_log": True},
    "name": {"type": "str"},
    "service": {
        "type": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "manager": {
                "type": "str",
                "choices": ["systemd", "supervisor"],
                "default": "systemd",
            },
            "scope": {"type": "str", "choices": ["system", "user"], "default": "system"},
            "run_dir": {"type": "path"},
            "log_dir": {"type": "path"},
        },
    },
}
_LOG_LINES = 20
_SEARCHED_LINES = 200
_CRASHES = 2


class Watch:
    """The service behind the endpoint: whether it has failed, and what it said."""

    def __init__(self, service: dict[str, Any] | None) -> None:
        """Look at the service once, to see later how often it was started again."""
        self.service = service
        self.log: list[str] = []
        self.restarts = self._unit_restarts()

    def _manager(self) -> Manager:
        return Manager(self.service["scope"] if self.service else "system")

    def _supervisor(self) -> Supervisor:
        service = self.service or {}
        return Supervisor("", "", service.get("run_dir") or "", service.get("log_dir") or "")

    def _unit_restarts(self) -> int:
        if self.service is None or self.service["manager"] != "systemd":
            return 0
        state = self._manager().state_of(self.service["name"])
        return state.restarts if state else 0

    def lines(self, count: int) -> list[str]:
        """The last lines that the service printed."""
        if self.service is None:
            return []
        if self.service["manager"] == "supervisor":
            return self._supervisor().log_tail(self.service["name"], count)
        return self._manager().log_tail(self.service["name"], count)

    def how_failed(self) -> str:
        """In what way the service has failed; empty while it has not."""
        if self.service is None:
            return ""
        name = self.service["name"]
        if self.service["manager"] == "supervisor":
            process = self._supervisor().info(name)
            return process.state if process.is_failed else ""
        return self._how_unit_failed(self._manager().state_of(name))

    def _how_unit_failed(self, state: UnitState | None) -> str:
        if state is None or state.load == "not-found":
            return "there is no such unit"
        if state.is_failed:
            return f"{state.result}, exit status {state.exit_status}"
        if not state.is_running:
            return "not started: its condition is not met" if state.condition_failed else "stopped"
        again = state.restarts - self.restarts
        return f"it was started again {again} times" if again >= _CRASHES else ""

    def give_up(self) -> LlmetalError | None:
        """Why waiting is in vain, or None."""
        how = self.how_failed()
        if not how or self.service is None:
            return None
        lines = self.lines(_SEARCHED_LINES)
        self.log = lines[-_LOG_LINES:]
        cause = root_cause(lines)
        return LlmetalError(
            what="the service has failed",
            where=self.service["name"],
            why="; ".join(filter(None, [how, cause])),
            fix="correct the cause (its last lines are below), then run again",
        )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    question = Question(
        url=params["url"],
        model=params["model"],
        prompt=params["prompt"],
        max_tokens=params["max_tokens"],
        timeout=params["timeout"],
        api_key=params["api_key"] or "",
    )
    proof: dict[str, Any] = {
        "name": params["name"] or question.model,
        "ok": False,
        "model": question.model,
    }
    if not question.url.startswith(("http://", "https://")):
        module.fail_json(msg=f"url must begin with http:// or https://, not {question.url!r}")
    watch = Watch(params["service"])
    wait = 0 if module.check_mode else params["wait"]
    started = time.monotonic()
    try:
        answer = wait_for_answer(question, wait, watch.give_up)
    except LlmetalError as error:
        proof["why"] = str(error)
        if module.check_mode:
            module.exit_json(changed=False, proof=proof, log=watch.log)
        log = watch.log or watch.lines(_LOG_LINES)
        module.fail_json(**error.as_result(), proof=proof, log=log)
    proof.update(
        ok=True,
        answer=answer.text,
        completion_tokens=answer.completion_tokens,
        seconds=answer.seconds,
        tokens_per_second=answer.tokens_per_second,
        finish_reason=answer.finish_reason,
    )
    module.exit_json(changed=False, proof=proof, waited=round(time.monotonic() - started, 1))


if __name__ == "__main__":
    main()
