# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module supports, in the words that every module shares."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes for `extends_documentation_fragment: llmetal.inference.attributes`."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return what would change without changing it.
  diff_mode:
    description: Shows what changed, or would change, in diff mode.
  idempotent:
    description: A second run with the same parameters changes nothing.
"""

    READ_ONLY = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return what would change without changing it.
    support: full
    details: Changes nothing in any mode.
  diff_mode:
    description: Shows what changed, or would change, in diff mode.
    support: N/A
    details: There is nothing to compare.
  idempotent:
    description: A second run with the same parameters changes nothing.
    support: full
    details: Changes nothing.
"""
