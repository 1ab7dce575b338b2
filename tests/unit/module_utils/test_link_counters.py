# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kept counters of links: of this boot and these GPUs, or worth nothing."""

from __future__ import annotations

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import link_counters

NOW = {"boot_id": "b1", "gpus": {"GPU-1": {"0": {"replay": 0}}}}


def test_they_come_back() -> None:
    """What is written is what is read."""
    assert link_counters.parse(link_counters.render(NOW)) == NOW


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "{}", '{"gpus": {}}', '{"boot_id": "b"}', "5", "[" * 100_000]
    + [f'{{"boot_id": {boot}, "gpus": {{}}}}' for boot in ("null", '""', '["b"]', "7")]
    + [f'{{"boot_id": "b", "gpus": {gpus}}}' for gpus in ("[]", "null", '"x"')]
    + [
        f'{{"boot_id": "b", "gpus": {{"GPU-1": {{"0": {{"replay": {count}}}}}}}}}'
        for count in ("-1", "true", "null", "NaN", "Infinity", "1.5", '"7"', "[]")
    ]
    + ['{"boot_id": "b", "gpus": {"GPU-1": {"0": 5}}}', '{"boot_id": "b", "gpus": {"G": null}}'],
)
def test_junk(text: str | None) -> None:
    """A file that holds no counters is as good as none."""
    assert link_counters.parse(text) is None


def test_of_now() -> None:
    """Another boot or another GPU starts anew; errors since then do not."""
    assert not link_counters.is_of_now(None, NOW)
    assert not link_counters.is_of_now({**NOW, "boot_id": "b2"}, NOW)
    assert not link_counters.is_of_now({**NOW, "gpus": {}}, NOW)
    assert link_counters.is_of_now({**NOW, "gpus": {"GPU-1": {"0": {"replay": 9}}}}, NOW)
