# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie: the checkout, its playbooks, the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

REQUIREMENTS = ROOT / "requirements"
INVENTORY = ROOT / "inventory"
LOGS = ROOT / ".cache" / "test"
"""What `llmetal test` writes: one log for each step."""


def playbook(name: str) -> Path:
    """The playbook of a command: `site` is at the top, the others in `playbooks/`."""
    return ROOT / "site.yml" if name == "site" else ROOT / "playbooks" / f"{name}.yml"


def reports() -> Path:
    """Where reports go: LLMETAL_REPORT_DIR (as the callback plugin reads it), else `reports/`."""
    return Path(os.environ.get("LLMETAL_REPORT_DIR") or ROOT / "reports").expanduser().absolute()


def cache() -> Path:
    """The user's cache folder for llmetal: LLMETAL_CACHE, else below XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("LLMETAL_CACHE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "llmetal"
