# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Break a running host, and mend it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import hardware, ssh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.scenario import (
        Fault,
        Scenario,
    )
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

_TIMEOUT = 180.0


def active(settings: Settings, name: str) -> dict[str, dict[str, Any]]:
    """The faults that are on, with their data."""
    text = read_text(settings.host(name).faults)
    if not text:
        return {}
    faults: dict[str, dict[str, Any]] = json.loads(text)
    return faults


def set_faults(
    settings: Settings, name: str, scenario: Scenario | None, wanted: Sequence[Fault]
) -> bool:
    """Switch exactly these faults on and every other one off.

    The record is written before the command of a fault is run, so that a run that was interrupted
    there can be undone.

    Returns:
        Whether anything was switched.

    Raises:
        LlmetalError: the scenario has nothing to break in that way, or the command failed.
    """
    for fault in wanted:
        _refuse_unfit(scenario, fault, name)
    before = active(settings, name)
    after = {fault.name: asdict(fault) for fault in wanted}
    hardware.write_outputs(settings, settings.host(name).root, name, scenario, wanted)
    if before == after:
        return False
    write_atomic(settings.host(name).faults, json.dumps(after, indent=2) + "\n")
    for gone in sorted(before.keys() - after.keys()):
        _run(settings, name, gone, before[gone]["off"])
    for new in sorted(after.keys() - before.keys()):
        _run(settings, name, new, after[new]["on"])
    return True


def _refuse_unfit(scenario: Scenario | None, fault: Fault, name: str) -> None:
    if not fault.hardware:
        return
    link = fault.hardware.get("link_down") or fault.hardware.get("link_errors") or {}
    has_links = bool(scenario and scenario.nvlink and scenario.nvlink.links > link.get("link", 0))
    needed = max(effect["gpu"] for effect in fault.hardware.values())
    if scenario is None or len(scenario.gpus) <= needed or (link and not has_links):
        raise LlmetalError(
            what=f"fault {fault.name} does not fit sandbox host {name}",
            why=f"{fault.what}; its scenario is {scenario.name if scenario else 'none'}",
            fix="use a host whose scenario has that part",
        )


def _run(settings: Settings, name: str, fault: str, command: str) -> None:
    if not command:
        return
    done = ssh.on_host(settings, name, command, timeout=_TIMEOUT)
    if not done.ok:
        raise LlmetalError(
            what=f"fault {fault} cannot be switched on sandbox host {name}",
            why=done.tail(),
            fix="see whether the host answers and has what the fault breaks",
        )
