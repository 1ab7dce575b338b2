#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module nvlink_baseline: error counters of links, kept to compare later ones with."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvlink_baseline
short_description: Keep the error counters of NVLinks, to compare later ones with
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Writes the counters to a file where there is none, or one of another boot or of other GPUs.
    Otherwise the file stays as it is, so that errors since then are seen.
options:
  path:
    description: The file. Its folder must be there.
    type: path
    required: true
  counters:
    description: The counters as M(llmetal.inference.gpu_health) returns them.
    type: dict
    required: true
extends_documentation_fragment:
  - llmetal.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Keep the counters of this boot
  llmetal.inference.nvlink_baseline:
    path: /etc/llmetal/nvlink_baseline.json
    counters: "{{ health.counters }}"
"""

RETURN = r"""
replaced:
  description: Why the file was written, or would be; empty where it stays.
  type: str
  returned: success
  sample: it is of another boot
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils import link_counters
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.shell import finish

ARGUMENTS: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "counters": {"type": "dict", "required": True},
}


def _why(kept: dict[str, Any] | None, now: dict[str, Any]) -> str:
    if link_counters.is_of_now(kept, now):
        return ""
    if kept is None:
        return "there is none that could be read"
    return "it is of another boot" if kept["boot_id"] != now["boot_id"] else "it is of other GPUs"


def converge(params: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Write the file where what it holds is of another boot; the module's result."""
    path, now = Path(params["path"]), params["counters"]
    if link_counters.parse(link_counters.render(now)) is None:
        raise LlmetalError(
            what="these are no counters of links",
            where=str(path),
            why=f"they have the keys {', '.join(sorted(now)) or 'none'}",
            fix="give the counters that gpu_health returns",
        )
    before, after = read_text(path), link_counters.render(now)
    why = _why(link_counters.parse(before), now)
    if why and not check_mode:
        try:
            write_atomic(path, after, mode=0o644)
        except OSError as error:
            raise LlmetalError(
                what="the counters of the links cannot be kept",
                where=str(path),
                why=error.strerror or str(error),
                fix="see that its folder can be written and has room",
            ) from error
    return {
        "changed": bool(why),
        "replaced": why,
        "diff": {
            "before_header": str(path),
            "after_header": str(path),
            "before": before or "",
            "after": after if why else before or "",
        },
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    finish(module, converge)


if __name__ == "__main__":
    main()
