# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The llmetal command: from bare Ubuntu and Debian GPU hosts to proved LLM endpoints."""

from __future__ import annotations

__version__ = "0.1.0"
