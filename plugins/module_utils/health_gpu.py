# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether each GPU that answers is sound: its memory, its recovery, its clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.finding import RESET, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible_collections.llmetal.inference.plugins.module_utils.finding import Seen, Wanted

_REPLACE = "reset the GPU; have it replaced where the errors come back"


def readable(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """The driver prints of each GPU what it always prints, and no errors in place of values."""
    for gpu in seen.answering:
        pci = gpu["pci_address"]
        told = seen.told(pci)
        if told is None or told.unread:
            left_out = ", ".join(told.unread) if told else "all of it"
            yield Finding(
                "readable",
                "nvidia-smi does not say how the GPU is",
                f"left out: {left_out}",
                "read what `nvidia-smi -q` says on the host",
                "none",
                pci,
            )
        if told and told.sick:
            yield Finding(
                "readable",
                "the GPU gives errors in place of values",
                ", ".join(told.sick[:6]),
                RESET,
                "drain_and_reset",
                pci,
            )


def ecc(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """No uncorrected memory errors since the driver was loaded."""
    for gpu in seen.answering:
        pci, counts = gpu["pci_address"], gpu["ecc"] or {}
        errors = counts.get("volatile_uncorrected")
        if errors:
            yield Finding(
                "ecc",
                "the GPU has uncorrected memory errors",
                f"{errors} since the driver was loaded",
                _REPLACE,
                "drain_and_reset",
                pci,
            )
        elif errors is None and counts.get("current"):
            yield Finding(
                "ecc",
                "the memory errors cannot be read",
                "ECC is on and nvidia-smi gives no count",
                "read `nvidia-smi -q -d ECC` on the host",
                "none",
                pci,
            )
        if counts.get("unrepairable") or counts.get("sram_threshold_exceeded"):
            yield Finding(
                "ecc",
                "the GPU's memory is worn out",
                "nvidia-smi says unrepairable, or more SRAM errors than its threshold",
                "have it replaced",
                "replace",
                pci,
            )
        if counts.get("repair_pending"):
            yield Finding(
                "ecc",
                "the GPU waits for a reset",
                "a repair of its memory is pending",
                RESET,
                "drain_and_reset",
                pci,
            )


def remap(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """No memory row or page waits to be taken out of use, and none failed to be."""
    for gpu in seen.answering:
        pci, rows, pages = gpu["pci_address"], gpu["row_remap"] or {}, gpu["retired_pages"] or {}
        if rows.get("failure"):
            yield Finding(
                "remap",
                "a memory row could not be remapped",
                "the driver reports a row remap failure",
                "take the GPU out of use and have it replaced",
                "replace",
                pci,
            )
        for what, waits in (("row remap", rows.get("pending")), ("page", pages.get("pending"))):
            if waits:
                yield Finding(
                    "remap",
                    "the GPU waits for a reset",
                    f"a {what} is pending" if what == "row remap" else "pages are to be retired",
                    RESET,
                    "drain_and_reset",
                    pci,
                )
        counted = rows.get("corrected") is not None or rows.get("uncorrected") is not None
        if counted and (rows.get("pending") is None or rows.get("failure") is None):
            yield Finding(
                "remap",
                "the row remaps cannot be read",
                "nvidia-smi counts them and does not say whether one is pending or failed",
                "read `nvidia-smi -q -d ROW_REMAPPER` on the host",
                "none",
                pci,
            )


def recovery_action(asked: str) -> str:
    """The action for what the driver asks for, in its words."""
    words = asked.lower()
    if "imex" in words:
        return "restart_service"
    if "reboot" in words:
        return "reboot"
    return "none" if words == "none" else "drain_and_reset"


def recovery(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """The driver asks for no recovery."""
    fixes = {
        "reboot": "drain the host and reboot it",
        "restart_service": "restart nvidia-imex on every node of the domain",
        "drain_and_reset": RESET,
    }
    for gpu in seen.answering:
        asked = gpu["recovery_action"]
        if asked and (action := recovery_action(asked)) != "none":
            why = f"its recovery action is {asked}"
            yield Finding(
                "recovery",
                "the GPU asks for recovery",
                why,
                fixes[action],
                action,
                gpu["pci_address"],
            )


def slowdown(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """Nothing slows the GPU down: heat, its power supply."""
    fixes = {
        "hw_power_brake_slowdown": "see to the power supplies and the rack's power limit",
        "hw_slowdown": "see to cooling, and to power cables and supplies",
    }
    for gpu in seen.answering:
        for reason in gpu["slowdown"] or ():
            heat = f" at {gpu['temperature_c']} degrees" if "thermal" in reason else ""
            yield Finding(
                "slowdown",
                "the GPU is slowed down",
                f"{reason.replace('_', ' ')} is active{heat}",
                fixes.get(reason, "see to fans, airflow and the temperature of the room"),
                "none",
                gpu["pci_address"],
                fails=False,
            )


CHECKS = (readable, ecc, remap, recovery, slowdown)
