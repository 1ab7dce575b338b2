# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `llmetal survey` found, as tables and as JSON (show_plan.py has the plans)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from llmetal.progress import Progress

_SURVEY = "llmetal.inference.survey"
_GIB = 1024**3


def facts_of(state: Progress) -> dict[str, Mapping[str, Any]]:
    """The facts of each host that was surveyed."""
    found = state.results.get(_SURVEY, {})
    return {host: result["facts"] for host, result in sorted(found.items()) if "facts" in result}


def document(state: Progress) -> dict[str, Any]:
    """What was found, as one JSON document."""
    failures = [failure.as_json() for failure in state.failures]
    return {"facts": facts_of(state), "failures": failures}


def save(folder: Path, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the facts of each host to a file of its own, for `--facts`.

    Raises:
        LlmetalError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for host, found in facts.items():
            text = json.dumps({"facts": found}, indent=1, ensure_ascii=False)
            write_atomic(folder / f"{host}.json", text + "\n", mode=0o600)
    except OSError as error:
        raise LlmetalError(
            what="the facts cannot be written",
            where=str(folder),
            why=str(error),
            fix="name a folder that you may write",
        ) from error


def print_found(state: Progress) -> None:
    """Print what was found, one table a host."""
    from rich.text import Text  # noqa: PLC0415 - rich is slow to import

    from llmetal.display import make_console, new_table  # noqa: PLC0415 - likewise

    console = make_console()
    for host, content in facts_of(state).items():
        table = new_table(host, "")
        for label, text in survey_rows(content):
            table.add_row(label, Text(text))
        console.print(table)


def survey_rows(facts: Mapping[str, Any], /) -> Iterator[tuple[str, str]]:
    """The facts of a host that a person asks for first."""
    gpu = facts.get("gpu") or {}
    kernel = facts.get("kernel") or {}
    yield "system", f"{_get(facts, 'os', 'pretty')} {facts.get('arch', '')}".strip()
    yield "kernel", str(kernel.get("running", "unknown"))
    headers = kernel.get("headers") or {}
    if headers:
        state = "installed" if headers.get("installed") else "not installed"
        yield "headers", f"{headers.get('package')}: {state}"
    yield "secure boot", str(kernel.get("secure_boot", "unknown"))
    memory = float(facts.get("memory_bytes") or 0) / _GIB
    yield "processors", f"{facts.get('cpus', '?')}, {memory:.0f} GiB of memory"
    names = [str(one.get("name") or one.get("device_id") or "?") for one in gpu.get("gpus") or []]
    for name in dict.fromkeys(names):
        yield "GPUs", f"{names.count(name)} x {name}"
    if not names:
        yield "GPUs", "none"
    driver = gpu.get("driver") or {}
    yield "driver", str(driver.get("loaded") or "not loaded")
    for service, status in sorted((facts.get("services") or {}).items()):
        yield "service", f"{service}: {_get(status, 'active')}"
    for problem in gpu.get("problems") or []:
        yield "problem", ". ".join(str(problem[k]) for k in ("what", "why", "fix") if k in problem)


def _get(content: object, *keys: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value below some keys, or None where one of them is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content
