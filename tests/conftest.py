# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""For all tests: the programs of the environment that runs them come first on PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
