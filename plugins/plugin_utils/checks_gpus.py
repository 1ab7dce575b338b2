# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs that a plan computes on: there, free, sound and joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.plugin_utils import xids as known_xids

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.look import Look
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import Context

_FRACTION = 0.9
"""The part of a GPU's memory that an engine takes unless it is told otherwise."""
_NVIDIA = {None, "nvidia"}


def lost(context: Context, findings: Findings) -> None:
    """A GPU that is on the bus and does not answer, where others do."""
    rows = list(context.gpus())
    if not any(row.text("source") == "driver" for _, _, row, _ in rows):
        return
    silent = [
        (position, gpu.pci)
        for position, gpu, row, _ in rows
        if row.text("source") == "pci" and row.text("kernel_driver") in _NVIDIA
    ]
    if not silent:
        return
    fact = f"the bus lists {len(rows)} GPUs, nvidia-smi not {', '.join(pci for _, pci in silent)}"
    fix = (
        "power-cycle the host; where the GPU stays away see to its slot and power, then replace it"
    )
    if any(context.users_of(position) for position, _ in silent):
        findings.add("gpu-lost", fact=fact, fix=fix)
    else:
        findings.add("gpu-count", fact=fact, fix=fix)


def memory_used(context: Context, findings: Findings) -> None:
    """Memory of a GPU that somebody else holds, so that an engine cannot have its part."""
    for position, gpu, row, health in context.gpus():
        used, total = health.number("memory_used_mib"), row.number("memory_mib")
        users = context.users_of(position)
        if not used or not total or not users:
            continue
        part = sum(one.memory_fraction or _FRACTION for one in users)
        holders = health.rows("processes")
        ours = all(map(context.is_own, holders)) if holders else context.own_services_run
        if ours or used <= total * (1 - min(part, 1.0)):
            continue
        who = ", ".join(_who(process) for process in holders)
        findings.add(
            "gpu-memory-used",
            fact=f"GPU {position} ({gpu.pci}): {used} of {total} MiB are used by "
            f"{who or 'a process that cannot be seen'}; {users[0].name} takes {part:.0%}",
            fix="end that process by its id (nvidia-smi and fuser -v /dev/nvidia* show it), take "
            "another "
            "GPU, or set gpu-memory-utilization in the instance's options",
        )


def _who(process: Look) -> str:
    name = process.text("unit") or process.text("program") or "?"
    return f"process {process.number('pid')} ({name})"


def memory_faults(context: Context, findings: Findings) -> None:
    """Memory that fails, or that a reset would take out of use."""
    waiting, failing = [], []
    for position, _, row, health in context.gpus():
        if row.flag("row_remap", "pending") or health.flag("retirement_pending"):
            waiting.append(str(position))
        if row.flag("row_remap", "failure"):
            failing.append(f"GPU {position}: a row could not be remapped")
        elif errors := row.number("ecc", "volatile_uncorrected"):
            failing.append(f"GPU {position}: {errors} uncorrected memory errors since the reset")
    if waiting:
        findings.add(
            "row-remap-pending",
            fact=f"GPU {', '.join(waiting)}",
            fix="drain the host and reset the GPU (nvidia-smi --gpu-reset), or reboot",
        )
    if failing:
        findings.add(
            "gpu-memory-faults",
            fact="; ".join(failing),
            fix="reset the GPU; where errors come back have it replaced, and keep it out of gpus",
        )


def xids(context: Context, findings: Findings) -> None:
    """Errors of the hardware in the kernel's log of this boot."""
    says = known_xids.of_hardware()
    seen = [
        f"{row.text('pci_address')}: Xid {number} ({says[number]}), {row.number('count')} times"
        for row in context.look.at("kernel_log").rows("xids")
        if (number := row.number("xid")) in says
    ]
    if seen:
        findings.add(
            "xid-history",
            fact="; ".join(seen),
            fix="read journalctl -k -g Xid before blaming an engine; reset the GPU, and have it "
            "replaced "
            "where the error comes back",
        )


def link(context: Context, findings: Findings) -> None:
    """A PCIe link that lost lanes or makes errors. Its speed says nothing: it falls in idle."""
    seen = []
    for position, _, _, health in context.gpus():
        width, able = health.number("link", "width"), health.number("link", "max_width")
        slot = health.number("link", "slot_width")
        if width and able and slot and width < min(able, slot):
            seen.append(f"GPU {position}: {width} of {min(able, slot)} lanes")
        errors = (health.number("aer_fatal") or 0) + (health.number("aer_nonfatal") or 0)
        if errors:
            seen.append(f"GPU {position}: {errors} uncorrected link errors since the boot")
    if seen:
        findings.add(
            "pcie-degraded",
            fact="; ".join(seen),
            fix="seat the card, its cable or riser anew; else force a lower PCIe generation in "
            "the firmware",
        )


def sick(context: Context, findings: Findings) -> None:
    """A GPU for which nvidia-smi prints errors in place of values."""
    seen = [
        f"GPU {position} ({', '.join(values[:3])})"
        for position, _, _, health in context.gpus()
        if (values := health.texts("sick"))
    ]
    if seen:
        findings.add(
            "gpu-sick",
            fact="; ".join(seen),
            fix="drain and reset it, or have it replaced; programs that open all GPUs fail "
            "meanwhile",
        )


def mig(context: Context, findings: Findings) -> None:
    """A GPU in slices, of which an index names only the first."""
    seen = [
        str(position)
        for position, _, row, _ in context.gpus()
        if row.flag("mig", "current") and context.users_of(position)
    ]
    if seen:
        findings.add(
            "mig-on",
            fact=f"GPU {', '.join(seen)}",
            fix="nvidia-smi -i <index> -mig 0 with the GPU drained, or leave the GPU out of gpus",
        )


def fabric(context: Context, findings: Findings) -> None:
    """GPUs behind NVSwitches whose fabric is not up although it should be."""
    if context.wants_driver and not context.facts.fabric_active:
        return
    if context.look.flag("gpu", "reboot_required"):
        return
    seen = []
    for position, _, row, _ in context.gpus():
        state, status = row.text("fabric", "state"), row.text("fabric", "status")
        done = state in {None, "Completed"} and (state is None or status in {None, "Success"})
        if not done and context.users_of(position):
            seen.append(f"GPU {position}: {state}, {status or 'no status'}")
    if seen:
        findings.add(
            "fabric-not-completed",
            fact="; ".join(seen),
            fix="drain the host, restart nvidia-fabricmanager and reset the GPUs; first see that "
            "none is "
            "missing",
        )


def peer_path(context: Context, findings: Findings) -> None:
    """GPUs that talk over PCIe, and a root that their traffic has to pass."""
    if context.facts.is_virtual_machine:
        return
    many = {position for one in context.on_gpus if one.ranks > 1 for position in one.gpus}
    rows = [(row, health) for position, _, row, health in context.gpus() if position in many]
    if not any(row.text("nvlink_state") == "none" for row, _ in rows):
        return
    translated = [t for t in context.look.texts("iommu", "types") if t.startswith("DMA")]
    if any(health.flag("acs") for _, health in rows):
        fact = "a PCIe bridge above the GPUs has ACS redirection on"
    elif context.look.flag("iommu", "on") and translated:
        fact = f"the IOMMU translates addresses ({', '.join(translated)})"
    else:
        return
    findings.add(
        "iommu-acs",
        fact=f"{fact}, and the GPUs of an instance have no NVLink",
        fix="boot with iommu=pt, switch ACS off on these bridges, or set NCCL_P2P_LEVEL=NVL or "
        "NCCL_P2P_DISABLE=1",
    )


CHECKS = (lost, memory_used, memory_faults, xids, link, sick, mig, fabric, peer_path)
