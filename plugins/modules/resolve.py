#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module resolve: the face of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve
short_description: Find out which package versions and model files there are for a host
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Asks only what the plan of the host depends on, the packages of its driver set, the headers of
    its kernel and a compiler with M(llmetal.inference.apt_candidates), its model folders with
    M(llmetal.inference.model_snapshot).
  - Asks nothing where the host has a lock that is used as it is. With C(llmetal_plan_lock)
    V(compare) it asks all the same, so that the plan can say what a lock made anew would change.
  - Answers of package sources are kept on the controller for C(llmetal_resolve_ttl) seconds.
options:
  facts:
    description: The C(facts) of M(llmetal.inference.survey).
    type: dict
    required: true
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Survey the host
  llmetal.inference.survey:
  register: llmetal_survey

- name: Resolve versions and model files
  llmetal.inference.resolve:
    facts: "{{ llmetal_survey.facts }}"
  register: llmetal_resolution
"""

RETURN = r"""
answers:
  description: What was found; null where the host has a lock.
  type: dict
  returned: success
  contains:
    packages:
      description: Versions of each package, newest first, with where each is from.
      type: dict
      sample: {"gcc": [{"version": "4:12.2.0-3", "origin": "http://mirror bookworm/main"}]}
    cached:
      description: Whether that answer was kept from before.
      type: bool
      sample: false
    models:
      description: Revision, files and config of each model, or C(error).
      type: dict
      sample: {"smollm2": {"error": "there is no such folder"}}
reason:
  description: Why nothing was asked.
  type: str
  returned: when nothing was asked
  sample: the host has a lock
"""
