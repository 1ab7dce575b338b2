# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan --gpus`: a question about hardware not there yet, read and answered."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_compat
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
    from ansible_collections.llmetal.inference.plugins.plugin_utils.hypothetical import Hardware
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

MOST_GPUS = 64
_MOST = 10**9
"""No number of a question is larger; what is, was mistyped."""

_LIST = "`llmetal plan --list-gpus` prints all of them"
_GPU = re.compile(r"(?:(?P<count>-?\d{1,9})\s*x\s*)?(?P<key>[A-Za-z]\w*)")
_DRIVER = re.compile(r"\d{3}(\.\d+){0,2}")
_CUDA = re.compile(r"\d{1,2}(\.\d{1,2}){0,2}|cuda_[\w.]+\.run")
_ENGINE = re.compile(r"(?P<name>[A-Za-z_-]+)(?:==(?P<version>\d+(\.\w+)*(\+[\w.]+)?))?")
_REPOSITORY = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w./-]+))?")


def read(arguments: argparse.Namespace) -> Hardware:
    """The question that the arguments ask.

    Raises:
        LlmetalError: an argument is wrong; the error names the option.
    """
    compat = load_compat()
    gpus = _gpus(arguments.gpus, compat)
    if arguments.os is None:
        raise LlmetalError(
            what="--gpus needs the operating system",
            where="--os",
            fix=f"name one of {', '.join(compat.systems)}",
        )
    engine, version = _engine(arguments.engine, compat)
    found: dict[str, Any] = {
        "gpus": gpus,
        "os": _key("--os", arguments.os, compat.systems),
        "driver": _form("--driver", arguments.driver, _DRIVER, "580 or 580.95.05"),
        "cuda": _form("--cuda", arguments.cuda, _CUDA, "13.0, 12.9.1 or a runfile's name"),
        "ram_gb": _number("--ram-gb", arguments.ram_gb),
        "disk_gb": _number("--disk-gb", arguments.disk_gb),
        "engine": engine,
        "engine_version": version,
        "model": _model(arguments.model),
        "tensor_parallel": _count("--tensor-parallel", arguments.tensor_parallel),
        "pipeline_parallel": _count("--pipeline-parallel", arguments.pipeline_parallel),
        "data_parallel": _count("--data-parallel", arguments.data_parallel),
        "expert_parallel": True if arguments.expert_parallel else None,
        "context": _count("--context", arguments.context),
        "concurrency": _count("--concurrency", arguments.concurrency),
        "options": _options(arguments.engine_option),
    }
    from ansible_collections.llmetal.inference.plugins.plugin_utils import (  # noqa: PLC0415 - imports the planner
        hypothetical,
    )

    return hypothetical.Hardware(**found)


def plan(hardware: Hardware) -> Plan:
    """Answer a question; a model that cannot be read is part of the answer."""
    from ansible_collections.llmetal.inference.plugins.plugin_utils import (  # noqa: PLC0415 - as above
        hypothetical,
    )

    metadata, error = None, None
    if hardware.model is not None:
        try:
            metadata = _metadata(hardware.model)
        except LlmetalError as found:
            error = found
    return hypothetical.plan(hardware, metadata, load_compat(), error)


def known() -> dict[str, list[dict[str, Any]]]:
    """The GPUs and operating systems that a question may name, as JSON has them."""
    compat = load_compat()
    gpus = [
        {
            "key": key,
            "model": str(row["model"]),
            "memory_gb": row.get("memory_gb"),
            "compute_capability": str(row["cc"]),
            "fp8": str(row.get("fp8")),
            "architecture": str(row["arch"]),
        }
        for key, row in compat.gpus.items()
    ]
    systems = [
        {"key": key, "family": str(row["family"]), "codename": str(row["codename"])}
        for key, row in compat.systems.items()
    ]
    return {"gpus": gpus, "os": systems}


def is_folder(model: str) -> bool:
    """Whether a model's name is that of a folder of this machine."""
    return model.startswith(("/", "./", "../", "~")) or Path(model).is_dir()


def _metadata(model: str) -> Metadata:
    from ansible_collections.llmetal.inference.plugins.plugin_utils import (  # noqa: PLC0415 - not for every question
        hub,
        site,
    )

    if is_folder(model):
        return hub.read_folder(Path(model).expanduser())
    found = _REPOSITORY.fullmatch(model)
    revision = found["revision"] if found else None
    cache = site.cache_folder() / "hub"
    return hub.fetch(found["repo"] if found else model, revision, cache=cache)


def _gpus(text: str, compat: Compat) -> tuple[str, ...]:
    found: list[str] = []
    for word in text.split(","):
        match = _GPU.fullmatch(word.strip())
        if match is None:
            raise LlmetalError(
                what=f"{word.strip()!r} is no GPU",
                where="--gpus",
                fix=f"write COUNTxKEY, as in 8xa100_sxm4_80; {_LIST}",
            )
        count = int(match["count"] or 1)
        if not 0 < count <= MOST_GPUS:
            raise LlmetalError(
                what=f"a host has no {count} GPUs",
                where="--gpus",
                fix=f"write a count from 1 to {MOST_GPUS} in front of the key",
            )
        found += [_key("--gpus", match["key"], compat.gpus)] * count
    if len(found) > MOST_GPUS:
        raise LlmetalError(
            what=f"a host has no {len(found)} GPUs",
            where="--gpus",
            why="GPUs that are joined by commas are those of one host",
            fix=f"name {MOST_GPUS} at most",
        )
    return tuple(found)


def _key(option: str, name: str, keys: Collection[str]) -> str:
    """A key of the data, which is to be written as it stands there."""
    if name in keys:
        return name
    raise LlmetalError(
        what=f"{name!r} is not known",
        where=option,
        fix=f"{_meant(name, keys)}{_LIST}",
    )


def _meant(name: str, keys: Collection[str]) -> str:
    """Which keys someone may have meant: those that begin so, else the nearest one."""
    wanted = name.lower()
    longer = [key for key in keys if wanted and key.startswith(wanted)]
    close = longer or [key for key in [nearest(wanted, keys)] if key]
    return f"did you mean {' or '.join(close)}? " if close else ""


def _engine(text: str, compat: Compat) -> tuple[str, str | None]:
    match = _ENGINE.fullmatch(text)
    if match is None:
        raise LlmetalError(
            what=f"{text!r} is no engine",
            where="--engine",
            fix="write NAME or NAME==VERSION, as in vllm==0.33.0",
        )
    if match["name"] not in compat.engines:
        raise LlmetalError(
            what=f"there is no engine {match['name']}",
            where="--engine",
            fix=f"name one of {', '.join(compat.engines)}",
        )
    return match["name"], match["version"]


def _model(text: str | None) -> str | None:
    if text is None:
        return None
    if is_folder(text):
        if not Path(text).expanduser().is_dir():
            raise LlmetalError(
                what="there is no such folder",
                where=f"--model {text}",
                fix="name a folder with the model's config.json, or a repository as OWNER/NAME",
            )
        return text
    if _REPOSITORY.fullmatch(text) is None:
        raise LlmetalError(
            what=f"{text!r} is neither a folder nor a repository",
            where="--model",
            fix="write OWNER/NAME, OWNER/NAME@REVISION, or the path of a folder",
        )
    return text


def _form(option: str, text: str | None, form: re.Pattern[str], example: str) -> str | None:
    if text is None or form.fullmatch(text):
        return text
    raise LlmetalError(what=f"{text!r} is no version", where=option, fix=f"write it as {example}")


def _number(option: str, text: str | None) -> float | None:
    """A positive number."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MOST:  # false for what is no number, too
        raise _no_number(option, text, "a number above 0")
    return value


def _count(option: str, text: str | None) -> int | None:
    """A positive whole number."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII) or not 0 < int(text) <= _MOST:
        raise _no_number(option, text, "a whole number above 0")
    return int(text)


def _no_number(option: str, text: str, allowed: str) -> LlmetalError:
    return LlmetalError(what=f"{text!r} is not {allowed}", where=option, fix=f"write {allowed}")


def _options(pairs: Collection[str]) -> Mapping[str, Any]:
    """The engine's own options; a name without a value is a switch."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise LlmetalError(
                what=f"{pair!r} is no option of an engine",
                where="--engine-option",
                fix="write NAME=VALUE without dashes in front, as in kv-cache-dtype=fp8",
            )
        found[name] = _scalar(value) if equals else True
    return found


def _scalar(text: str) -> Any:  # noqa: ANN401 - a text, a number or a boolean
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text
