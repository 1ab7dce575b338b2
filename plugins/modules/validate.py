#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module validate: the face of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: validate
short_description: Check the whole inventory before any connection
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Reads every file of the inventory that the run was started with, and the variables of the
    command line, on the controller. No host is asked anything, whatever the run is limited to.
  - Fails with every problem at once, a misspelt or wrong variable, a host in no group of a site,
    two instances with one name or port, an instance of a model that there is none of.
  - Values of variables that hold a password, a token, a key or a secret are not shown.
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Check the inventory
  hosts: all:localhost
  gather_facts: false
  tasks:
    - name: Check names, types, groups and references
      llmetal.inference.validate:
      run_once: true
"""

RETURN = r"""
problems:
  description: What is wrong, in the order of files and lines; empty for a right inventory.
  type: list
  elements: dict
  returned: always
  contains:
    file:
      description: The file, or where else the value is from.
      type: str
      sample: inventory/lab/group_vars/gpu.yml
    line:
      description: The line; 0 where there is none.
      type: int
      sample: 12
    key:
      description: Path of the value.
      type: str
      sample: llmetal_instances[0].port
    host:
      description: The host, where it is that of one host alone.
      type: str
      sample: ""
    found:
      description: What stands there.
      type: str
      sample: "'many'"
    allowed:
      description: What may stand there.
      type: str
      sample: int from 1 to 65535
    why:
      description: What is wrong with it.
      type: str
      sample: is not of type int
    fix:
      description: What to do, where that is known.
      type: str
      sample: ""
llmetal_exit_code:
  description: The exit status of C(llmetal site) for it.
  type: int
  returned: when something is wrong
  sample: 2
"""
