# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the files of a model hold, read within limits: JSON objects and headers of safetensors."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import TensorInfo
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import presentable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_HEADER_LIMIT = 25 << 20
"""As in huggingface_hub; the largest published headers have a few MB."""
_FIRST_READ = 256 << 10
"""Most headers fit in it, and one request is faster than two."""
_MOST_AXES = 16
_WORDS = 200
_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
"""Bits of a value by the name that safetensors has for its type."""
_TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("tekken.json",),
    ("tiktoken.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
)
"""Files that make a tokenizer, one row each."""


def has_tokenizer(names: Collection[str]) -> bool:
    """Whether files of these names make a tokenizer."""
    other = any(name.endswith((".tiktoken", ".gguf")) for name in names)
    return other or any(all(one in names for one in row) for row in _TOKENIZERS)


def in_words(text: str) -> str:
    """A text of someone else, short, on one line and without credentials."""
    line = presentable(" ".join(text.split()))
    return line if len(line) <= _WORDS else f"{line[:_WORDS]}..."


def too_large(where: str, size: int, limit: int) -> LlmetalError:
    """The error for a file that has more bytes than are read."""
    return LlmetalError(
        what="a file of the model is too large to be what its name says",
        where=where,
        why=f"it has {size} bytes or more, and at most {limit} are read",
        fix="fetch the model again from where it was published",
    )


def parse_object(raw: bytes, limit: int, where: str) -> dict[str, Any]:
    """A JSON object out of bytes."""
    if len(raw) > limit:
        raise too_large(where, len(raw), limit)
    why = ""
    try:
        values = json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        why = f"line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError as error:
        # No UTF-8, or a number of thousands of digits.
        why = in_words(str(error))
    else:
        if isinstance(values, dict):
            return values
        why = f"it holds {type(values).__name__}, not an object"
    raise LlmetalError(
        what="a file of the model is not a JSON object",
        where=where,
        why=why,
        fix="fetch the file again from where the model was published",
    )


def read_header(read: Callable[[int], bytes], size: int, where: str) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file.

    Args:
        read: gives so many first bytes of the file, or all where it has fewer.
        size: the bytes of the file; 0 where they are not known.
        where: how errors name it.

    Returns:
        The tensors by name.

    Raises:
        LlmetalError: the header is no good, or the file is shorter than it says.
    """
    raw = read(_FIRST_READ)
    if len(raw) < 8:  # noqa: PLR2004 - the length of the header comes first
        raise _bad_header(where, f"it has only {len(raw)} bytes")
    length = int.from_bytes(raw[:8], "little")
    if length > _HEADER_LIMIT or (size and length > size - 8):
        why = f"its header claims {length} bytes"
        raise _bad_header(where, f"{why}, the file has {size}" if size else why)
    if length + 8 > len(raw):
        # From the start again: not every mirror keeps to the start of a range.
        raw = read(length + 8)
    if length + 8 > len(raw):
        raise _bad_header(where, "it ends within its header")
    values = parse_object(raw[8 : length + 8], _HEADER_LIMIT, where)
    tensors: dict[str, TensorInfo] = {}
    ends: list[tuple[int, int, str]] = []
    for tensor, said in values.items():
        if tensor == "__metadata__":
            continue
        info = _tensor(said)
        if isinstance(info, str):
            raise _bad_header(where, f"tensor {in_words(repr(tensor))} {info}")
        tensors[tensor], start = info
        ends.append((start, start + tensors[tensor].size, tensor))
    _check_places(where, sorted(ends), size - 8 - length if size else None)
    return tensors


def _check_places(where: str, places: Sequence[tuple[int, int, str]], room: int | None) -> None:
    """Refuse tensors that lie over another or beyond the end of the file."""
    last = 0
    for start, end, tensor in places:
        if start < last:
            raise _bad_header(where, f"tensor {in_words(repr(tensor))} lies over another one")
        last = max(last, end)
    if room is not None and last > room:
        why = f"its tensors need {last} bytes, and the file has {room} for them: it is cut off"
        raise _bad_header(where, why)


def _tensor(said: object) -> tuple[TensorInfo, int] | str:
    """A tensor and where it starts, or what is wrong with its description."""
    if not isinstance(said, dict):
        return "has no description"
    dtype, shape, places = said.get("dtype"), said.get("shape"), said.get("data_offsets")
    if not isinstance(dtype, str) or shape is None or places is None:
        return "has no dtype, shape or data_offsets"
    if not _are_sizes(shape) or not _are_sizes(places):
        return "has a shape or data_offsets that are no lists of whole numbers"
    if len(places) != 2 or places[0] > places[1]:  # noqa: PLR2004 - start and end
        return "has data_offsets that are no start and end"
    size = places[1] - places[0]
    bits = _BITS.get(dtype)
    if len(shape) > _MOST_AXES or (bits and -(-math.prod(shape) * bits // 8) != size):
        return f"has {size} bytes, which its shape and dtype do not give"
    return TensorInfo(dtype, tuple(shape), size), places[0]


def _are_sizes(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 62 for one in value
    )


def _bad_header(where: str, why: str) -> LlmetalError:
    return LlmetalError(
        what="a safetensors file of the model is damaged",
        where=where,
        why=why,
        fix="fetch the file again from where the model was published",
    )
