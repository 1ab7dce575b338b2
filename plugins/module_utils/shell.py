# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module of ours does around its one call: a known umask, errors as a failure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.module_utils.basic import AnsibleModule


def finish(module: AnsibleModule, act: Callable[..., dict[str, Any]]) -> None:
    """Call what a module is for, and end the module with its result or its error.

    Args:
        module: the module, with its parameters read.
        act: called with the parameters and `check_mode`; what it returns is the module's result.
    """
    os.umask(0o022)
    try:
        result = act(module.params, check_mode=module.check_mode)
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(**result)
