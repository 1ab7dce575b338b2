# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine lets us do."""

from __future__ import annotations

import os
import shutil

from ansible_collections.llmetal.inference.plugins.module_utils.command import run

_PROBE = """
set -e
mount -t tmpfs llmetal-probe /mnt
if command -v ip >/dev/null; then ip link add llmetal-probe type bridge; fi
"""
"""What a sandbox host needs first, tried in namespaces that end with the trial."""


def sandbox_obstacle() -> str | None:
    """Why this machine cannot have sandbox hosts, in one clause; None where it can."""
    if os.geteuid() != 0:
        return "this user is not root"
    if shutil.which("apt-get") is None:
        return "this machine has no apt-get"
    namespaces = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork")
    tried = run(["unshare", *namespaces, "sh", "-c", _PROBE], timeout=20)
    if not tried.ok:
        return f"namespaces are refused here ({tried.tail(1)})"
    return None
