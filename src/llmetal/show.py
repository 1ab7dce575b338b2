# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `llmetal survey` and `llmetal plan` found, as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llmetal.progress import Progress

_SURVEY = "llmetal.inference.survey"
_PLAN = "llmetal.inference.plan"
_GIB = 1024**3


def facts_of(state: Progress) -> dict[str, Mapping[str, Any]]:
    """The facts of each host that was surveyed."""
    found = state.results.get(_SURVEY, {})
    return {host: result["facts"] for host, result in sorted(found.items()) if "facts" in result}


def locks_of(state: Progress) -> dict[str, Mapping[str, Any]]:
    """The lock of each host that was planned (the action plans all hosts in one task)."""
    found: dict[str, Mapping[str, Any]] = {}
    for result in state.results.get(_PLAN, {}).values():
        for host, planned in (result.get("hosts") or {}).items():
            found[host] = yaml.safe_load(planned["lock_text"])
    return dict(sorted(found.items()))


def document(command: str, state: Progress) -> dict[str, Any]:
    """What was found, as one JSON document."""
    failures = [failure.as_json() for failure in state.failures]
    if command == "survey":
        return {"facts": facts_of(state), "failures": failures}
    refusals = [
        refusal
        for result in state.results.get(_PLAN, {}).values()
        for refusal in result.get("refusals") or []
    ]
    return {"locks": locks_of(state), "refusals": refusals, "failures": failures}


def print_found(command: str, state: Progress) -> None:
    """Print what was found, one table a host."""
    from rich.text import Text  # noqa: PLC0415 - rich is slow to import

    from llmetal.display import make_console, new_table  # noqa: PLC0415 - likewise

    console = make_console()
    found = facts_of(state) if command == "survey" else locks_of(state)
    rows = survey_rows if command == "survey" else plan_rows
    for host, content in found.items():
        table = new_table(host, "")
        for label, text in rows(content):
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


def plan_rows(lock: Mapping[str, Any], /) -> Iterator[tuple[str, str]]:
    """What a lock would put on its host."""
    host = lock.get("host") or {}
    yield "system", f"{host.get('os_pretty') or host.get('os')} ({host.get('scope')} scope)"
    yield "kernel", str(_get(lock, "kernel", "running"))
    driver = lock.get("driver")
    if driver:
        source = _get(driver, "source", "name")
        yield "driver", f"{driver.get('version')}, {driver.get('modules')} modules, from {source}"
        for why in driver.get("why") or []:
            yield "", str(why)
    else:
        yield "driver", "none"
    fabric = lock.get("fabric")
    if fabric:
        yield "fabric", f"{fabric.get('package')} {fabric.get('version')}"
    for environment in _get(lock, "python", "environments") or []:
        count = len(environment.get("requirements") or [])
        version = _get(environment, "python", "version")
        yield "environment", f"{environment.get('name')}: Python {version}, {count} packages"
    for engine in lock.get("engines") or []:
        name = f"{engine.get('name')} {engine.get('version')}"
        yield "engine", f"{name} on {engine.get('device')}, torch {engine.get('torch')}"
    for model in lock.get("models") or []:
        size = sum(int(one.get("size") or 0) for one in model.get("files") or []) / _GIB
        yield "model", f"{model.get('name')} at {model.get('revision')}, {size:.2f} GiB"
    for one in lock.get("instances") or []:
        gpus = ", ".join(str(gpu) for gpu in one.get("gpus") or []) or one.get("device")
        address = f"http://{one.get('host')}:{one.get('port')}/v1"
        yield "instance", f"{one.get('name')}: {one.get('model')} on {gpus}, {address}"
    for one in lock.get("unresolved") or []:
        yield "unresolved", f"{one.get('field')}: {one.get('why')}"


def _get(content: object, *keys: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value below some keys, or None where one of them is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content
