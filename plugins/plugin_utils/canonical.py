# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""One way to write data down, so that equal data hashes equally."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(data: Any) -> str:  # noqa: ANN401 - any JSON value
    """JSON with sorted keys and nothing to spare."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256_of(data: Any) -> str:  # noqa: ANN401 - any JSON value
    """The sha256 of data in its canonical form."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()
