# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m llmetal`."""

from __future__ import annotations

import sys

from llmetal.cli import main

if __name__ == "__main__":
    sys.exit(main())
