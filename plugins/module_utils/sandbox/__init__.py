# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox: hosts on this machine that boot, reboot and can be broken."""

from __future__ import annotations
