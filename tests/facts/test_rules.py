# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every rule of the gathered facts is one of the product; needs LLMETAL_FACTS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat, load_compat

FACTS = os.environ.get("LLMETAL_FACTS")

UNDER_ANOTHER_NAME = {
    "fp8-native": "fp8-weight-only",
    "fp8-memory": "memory-weights",
    "vllm-driver": "cuda-driver-hard",
    "vllm-too-old": "engine-release",
    "sha-wrong-miniconda": "interpreter-sha256",
}
DECISIONS = {"pin"}
"""What is not refused but done: the driver set is pinned, and the pinning package is part of it."""


@pytest.mark.skipif(FACTS is None, reason="LLMETAL_FACTS names no folder of facts")
def test_every_rule() -> None:
    """By its own name, or by the one that the product has for it."""
    compat: Compat = load_compat()
    matrix: dict[str, Any] = yaml.safe_load(
        (Path(str(FACTS)) / "nvidia_matrix.yml").read_text("utf-8")
    )
    for row in matrix["rules"]:
        name = UNDER_ANOTHER_NAME.get(row["id"], row["id"])
        assert name in compat.rules or name in DECISIONS, name
        if row["severity"] == "refuse" and name not in DECISIONS:
            assert compat.rule(name).refuses, name
