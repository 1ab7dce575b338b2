#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module plan: the face of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Decide what each host gets, or why it gets nothing
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Plans all hosts at once, on the controller, from their variables and from what
    M(llmetal.inference.survey) and M(llmetal.inference.resolve) found, which it reads from the
    variables C(llmetal_survey) and C(llmetal_resolution) of each host.
  - Fails with the refusals of all hosts, or returns a lock for each. The plans of all hosts are
    returned either way.
  - Writes the locks that are new to the controller, each beside the inventory of its host, but not
    in check mode.
  - What is done about a lock that is there says C(llmetal_plan_lock). With V(compare) it is kept,
    and what a lock made anew would change is returned; with V(upgrade) it is replaced.
  - Changes nothing on a host, so it never reports a change.
options:
  hosts:
    description: The hosts.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Plan all hosts
  llmetal.inference.plan:
    hosts: "{{ ansible_play_hosts }}"
  register: llmetal_plan
  run_once: true
"""

RETURN = r"""
plans:
  description: The plan of each host, by its name; as C(llmetal plan --format json) prints it.
  type: dict
  returned: always
  contains:
    status:
      description: V(ok), or V(refused).
      type: str
      sample: ok
    lock:
      description: What the host gets; null where it is refused.
      type: dict
      sample: {"schema": 1, "host": {"name": "gpu-1"}}
    refusals:
      description: Why it gets nothing, each with rule, fact, reason, fix and source.
      type: list
      elements: dict
      sample: []
    warnings:
      description: What else is to be known, in the same form.
      type: list
      elements: dict
      sample: []
    changes:
      description:
        - What the lock changes of the one that was there; for a lock that is kept, what one made
          anew would change.
        - Null stands for a value that is not there.
      type: list
      elements: dict
      sample: [{"path": "driver.version", "before": "580.159.04", "after": "580.178.04"}]
    kept:
      description: Whether the lock is the one that was there.
      type: bool
      sample: true
hosts:
  description:
    - What the roles get for each host, by its name.
    - A host whose lock is not resolved in full is left out, as it cannot be installed.
  type: dict
  returned: when nothing is refused
  contains:
    slices:
      description: What each role gets of the lock, by the role's name.
      type: dict
      sample: {"base": {"scope": "system", "packages": [{"name": "ca-certificates"}]}}
    lock_text:
      description: The lock as it is written.
      type: str
      sample: "schema: 1"
    lock_sha256:
      description: Hash of its content.
      type: str
      sample: 5c0e6b3c3b7f0b4c2d1f0f2a4a0f7d9b8e6c5a4b3c2d1e0f9a8b7c6d5e4f3a2b
    lock_file:
      description: Where it is on the controller.
      type: str
      sample: /site/inventory/lab/locks/gpu-1.yml
    lock_written:
      description: Whether this run wrote it.
      type: bool
      sample: true
    versions:
      description: What is in it, at first sight.
      type: dict
      sample: {"driver": "580.159.04 (open)", "vllm": "0.33.0 on gpu"}
    endpoints:
      description: Where its instances answer.
      type: list
      elements: dict
      sample: [{"name": "chat", "model": "m", "engine": "vllm", "url": "http://127.0.0.1:8000"}]
findings:
  description: Warnings, with host, rule, fact, reason, fix and source.
  type: list
  elements: dict
  returned: always
  sample: []
refusals:
  description: Refusals, in the same form.
  type: list
  elements: dict
  returned: always
  sample:
    - host: gpu-1
      rule: gpu-missing
      fact: vllm 0.33.0 on gpu is asked for, and the host has no NVIDIA GPU
      reason: a device gpu needs a GPU on the host
      fix: set the instance's device to cpu, or move it to a host with a GPU
      source: the survey of the host in this run (the host itself)
llmetal_exit_code:
  description: The exit status of C(llmetal site) for refusals.
  type: int
  returned: when something is refused
  sample: 3
"""
