# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan --gpus`: a question about hardware not there yet, read and answered."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_compat
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Finding
    from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
    from ansible_collections.llmetal.inference.plugins.plugin_utils.hypothetical import Hardware
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Plan

MOST_GPUS = 64
_ENGINE_BY_DEFAULT = "vllm"
_MOST = 10**9
"""No number of a question is larger; what is, was mistyped."""

_SHOWN = 60
"""So many characters of a wrong value are shown."""

_LIST = "`llmetal plan --list-gpus` prints all of them"
_GPU = re.compile(r"(?:(?P<count>-?\d{1,4000})\s*[xX]\s*)?(?P<key>[A-Za-z]\w*)", re.ASCII)
_DRIVER = re.compile(r"\d{3}(\.\d+){0,2}", re.ASCII)
_CUDA = re.compile(r"\d{1,2}(\.\d{1,2}){0,2}|cuda_[\w.]+\.run", re.ASCII)
_ENGINE = re.compile(r"(?P<name>[A-Za-z_-]+)(?:==(?P<version>\d+(\.\w+)*(\+[\w.]+)?))?", re.ASCII)
_REPOSITORY = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_NUMBER = re.compile(r"\d{1,10}(\.\d{1,10})?", re.ASCII)
_SCALAR = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)

_CREDENTIALS = re.compile(r"://.*@")

_OF_MODEL = (
    "context",
    "concurrency",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
)
"""What is decided for a model only."""

_FIRST_HAND = ("survey", "inventory", "candidates")
"""Sources that are a run's own: a question has neither hosts nor an inventory."""
_ASKED = "the question asked"


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
    engine, version = _engine(arguments.engine or _ENGINE_BY_DEFAULT, compat)
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
        "engine_only": arguments.engine is not None and arguments.model is None,
    }
    _check_purpose(found)
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
    compat = load_compat()
    answer = hypothetical.plan(hardware, metadata, compat, error)
    named = [_source(compat, name) for name in _FIRST_HAND]
    return dataclasses.replace(
        answer,
        refusals=tuple(_asked(one, named) for one in answer.refusals),
        warnings=tuple(_asked(one, named) for one in answer.warnings),
    )


def _source(compat: Compat, name: str) -> str:
    """A source as findings name it."""
    row = compat.sources[name]
    return f"{row['what']} ({row['where']})"


def _asked(finding: Finding, named: Sequence[str]) -> Finding:
    """A finding that names the question where a run would name its hosts and its inventory."""
    source = finding.source
    for text in named:
        source = source.replace(text, _ASKED)
    parts = dict.fromkeys(source.split("; "))
    return dataclasses.replace(finding, source="; ".join(parts))


def _check_purpose(found: Mapping[str, Any]) -> None:
    """See that what is asked of a model or an engine comes with one."""
    if found["model"] is not None:
        return
    for name in _OF_MODEL:
        if found[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise LlmetalError(
                what=f"{option} needs --model",
                where=option,
                fix="name the model with --model, or leave it out",
            )
    if found["options"] and not found["engine_only"]:
        raise LlmetalError(
            what="--engine-option needs --model or --engine",
            where="--engine-option",
            fix="name the engine with --engine, or the model with --model",
        )


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
            "host_arch": (arch := str(row.get("host_arch") or "x86_64").split()[0]),
            "installable": arch == "x86_64",
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
    return model.startswith(("/", "./", "../", "~")) or _is(model, Path.is_dir)


def _is(model: str, asked: Callable[[Path], bool]) -> bool:
    """Whether a path is of a kind; what cannot be one (too long, of no user) is of none."""
    try:
        return asked(Path(model).expanduser())
    except (OSError, ValueError, RuntimeError):
        return False


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
        match = _GPU.fullmatch(word.strip(" "))
        if match is None:
            raise LlmetalError(
                what=f"{_shown(word.strip(' '))} is no GPU",
                where="--gpus",
                fix=f"write COUNTxKEY, as in 8xa100_sxm4_80; {_LIST}",
            )
        count = int(match["count"] or 1)
        if not 0 < count <= MOST_GPUS:
            raise LlmetalError(
                what=f"a host has no {str(count)[:_SHOWN]} GPUs",
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
    """A key of the data; capitals are as good."""
    if (key := name.lower()) in keys:
        return key
    raise LlmetalError(
        what=f"{_shown(name)} is not known",
        where=option,
        fix=f"{_meant(name, keys)}{_LIST}",
    )


def _shown(text: str) -> str:
    """A wrong value as errors show it."""
    text = _CREDENTIALS.sub("://(hidden)@", text)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


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
            what=f"{_shown(text)} is no engine",
            where="--engine",
            fix="write NAME or NAME==VERSION, as in vllm==0.33.0",
        )
    name = match["name"].lower()
    if name not in compat.engines:
        raise LlmetalError(
            what=f"there is no engine {match['name']}",
            where="--engine",
            fix=f"name one of {', '.join(compat.engines)}",
        )
    return name, match["version"]


def _model(text: str | None) -> str | None:
    if text is None:
        return None
    forms = "write OWNER/NAME, OWNER/NAME@REVISION, or the path of a folder"
    if not text:
        raise LlmetalError(what="--model is empty", where="--model", fix=forms)
    if _is(text, Path.is_file):
        raise LlmetalError(
            what="this is a file, and the folder of a model is wanted",
            where=f"--model {text}",
            fix=f"name the folder that it is in: {Path(text).parent}",
        )
    if is_folder(text):
        if not _is(text, Path.is_dir):
            raise LlmetalError(
                what="there is no such folder",
                where=f"--model {_shown(text)}",
                fix="name a folder with the model's config.json, or a repository as OWNER/NAME",
            )
        return text
    if _REPOSITORY.fullmatch(text) is None:
        raise LlmetalError(
            what=f"{_shown(text)} is neither a folder nor a repository",
            where="--model",
            fix=forms,
        )
    return text


def _form(option: str, text: str | None, form: re.Pattern[str], example: str) -> str | None:
    if text is None or form.fullmatch(text):
        return text
    what = f"{_shown(text)} is no version"
    raise LlmetalError(what=what, where=option, fix=f"write it as {example}")


def _number(option: str, text: str | None) -> float | None:
    """A positive number, written with ASCII digits alone."""
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not 0 < float(text) <= _MOST:
        raise _no_number(option, text, f"a number above 0 and up to {_MOST}")
    return float(text)


def _count(option: str, text: str | None) -> int | None:
    """A positive whole number, likewise."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII) or not 0 < int(text) <= _MOST:
        raise _no_number(option, text, f"a whole number from 1 to {_MOST}")
    return int(text)


def _no_number(option: str, text: str, allowed: str) -> LlmetalError:
    what = f"{_shown(text)} is not {allowed}"
    return LlmetalError(what=what, where=option, fix=f"write {allowed}")


def _options(pairs: Collection[str]) -> Mapping[str, Any]:
    """The engine's own options; a name without a value is a switch."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name, re.ASCII):
            raise LlmetalError(
                what=f"{_shown(pair)} is no option of an engine",
                where="--engine-option",
                fix="write NAME=VALUE without dashes in front, as in kv-cache-dtype=fp8",
            )
        found[name] = _scalar(value) if equals else True
    return found


def _scalar(text: str) -> Any:  # noqa: ANN401 - a text, a number or a boolean
    if text in {"true", "false"}:
        return text == "true"
    if not _SCALAR.fullmatch(text):
        return text
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text
