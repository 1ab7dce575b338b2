# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine options: passed on as the release takes them, or refused with what it knows."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import engine_options
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_option_table

TABLE = load_option_table("vllm-0.33.0.json")


def test_the_table_is_whole() -> None:
    """All options of the release."""
    assert len(TABLE["options"]) == 320


@pytest.mark.parametrize(
    ("options", "argv"),
    [
        ({}, []),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enforce-eager": False}, ["--no-enforce-eager"]),
        ({"no-enable-prefix-caching": True}, ["--no-enable-prefix-caching"]),
        ({"gpu-memory-utilization": 0.95}, ["--gpu-memory-utilization", "0.95"]),
        ({"long-prefill-token-threshold": 5}, ["--long-prefill-token-threshold", "5"]),
        ({"max-num-batched-tokens": "8k"}, ["--max-num-batched-tokens", "8k"]),
        ({"dtype": "bfloat16", "block-size": 16}, ["--block-size", "16", "--dtype", "bfloat16"]),
        ({"cpu-offload-gb": 0}, ["--cpu-offload-gb", "0"]),
        ({"middleware": ["a", "b"]}, None),
    ],
)
def test_arguments(options: dict[str, Any], argv: list[str] | None) -> None:
    """Options become arguments in the order of their names."""
    found, issues = engine_options.arguments(TABLE, options)
    if argv is None:  # depends on whether the release takes several values
        assert found or issues
    else:
        assert (found, issues) == (argv, [])


@pytest.mark.parametrize(
    ("options", "rule", "fix"),
    [
        ({"dtypee": "auto"}, "engine-option", "did you mean dtype?"),
        ({"--dtype": "auto"}, "engine-option", "did you mean dtype?"),
        ({"worker-use-ray": True}, "engine-option", "--distributed-executor-backend ray"),
        ({"swap-space": 4}, "engine-option", "--kv-offloading-size"),
        ({"qqqqqqqq": 1}, "engine-option", "leave it out"),
        ({"dtype": "float8"}, "engine-option-value", "FP8 comes from the checkpoint"),
        ({"dtype": "bfloat"}, "engine-option-value", "did you mean"),
        ({"dtype": True}, "engine-option-value", "give it a value"),
        ({"dtype": ["auto", "half"]}, "engine-option-value", "give it one value"),
        ({"block-size": "large"}, "engine-option-value", "type int"),
        ({"enforce-eager": "yes"}, "engine-option-value", "true or false"),
        ({"port": 1}, "engine-option-owned", "it comes from port"),
        ({"max-model-len": 1}, "engine-option-owned", "it comes from context"),
        ({"api-key": "hush"}, "engine-option-owned", "every user of the host"),
        ({"hf-token": "hush"}, "engine-option-owned", "every user of the host"),
        ({"config": "/etc/x.yml"}, "engine-option-owned", "every other option"),
        ({"uds": "/run/x"}, "engine-option-owned", "its host and port"),
        ({"headless": True}, "engine-option-owned", "answer no request"),
        ({5: 1}, "engine-option", "leave it out"),
        ({None: 1}, "engine-option", "leave it out"),
        ({"gpu-memory-utilization": float("nan")}, "engine-option-value", "type float"),
        ({"gpu-memory-utilization": float("inf")}, "engine-option-value", "type float"),
        ({"gpu-memory-utilization": -0.5}, "engine-option-value", "up to 1"),
        ({"gpu-memory-utilization": 95}, "engine-option-value", "up to 1"),
        ({"block-size": 0}, "engine-option-value", "from 1 on"),
        ({"max-num-seqs": -3}, "engine-option-value", "from 1 on"),
        ({"max-num-batched-tokens": "0k"}, "engine-option-value", "from 1 on"),
        ({"cpu-offload-gb": -20}, "engine-option-value", "from 0 on"),
        ({"block-size": "http://me:hush@h"}, "engine-option-value", "type int"),
        ({"dtype": {"token": "hush"}}, "engine-option-value", "type str"),
    ],
)
def test_refused(options: dict[Any, Any], rule: str, fix: str) -> None:
    """What the release does not take is refused, with what to write instead."""
    argv, (issue,) = engine_options.arguments(TABLE, options)
    assert argv == []
    assert issue.rule == rule
    assert fix in issue.fix
    assert "hush" not in issue.fact


def test_keys_of_several_types() -> None:
    """Options whose names are not all texts are refused one by one."""
    _, issues = engine_options.arguments(TABLE, {5: 1, "qqqqqqqq": 1, None: 1})  # type: ignore[dict-item]
    assert [issue.rule for issue in issues] == ["engine-option"] * 3
