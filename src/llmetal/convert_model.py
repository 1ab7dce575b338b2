# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn a GGUF model into safetensors with its tokenizer. Run by the converting environment."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(source: Path, target: Path) -> None:
    """Write `target` as a model folder: bf16 weights, config, tokenizer and chat template."""
    folder = str(source.parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=source.name,
        quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    # The weights are plain numbers now; what still calls them quantised would stop the saving.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
