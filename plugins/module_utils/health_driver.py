# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the driver is the one that is expected, and answers for every GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils import xids
from ansible_collections.llmetal.inference.plugins.module_utils.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible_collections.llmetal.inference.plugins.module_utils.finding import Seen, Wanted

_PERSISTENCED = "nvidia-persistenced.service"
_PLACES = {"loaded": "loaded module", "on_disk": "module on disk", "user_space": "libraries"}
_OFF_BUS = 79
_INSTALL = "run the nvidia_driver role, which installs one version of all and reboots where needed"


def smi(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """nvidia-smi answers, for as many GPUs as it says, with the version of the loaded module."""
    if seen.smi is None:
        yield Finding(
            "smi",
            "nvidia-smi gives no answer",
            seen.why_no_smi or "there is no nvidia-smi",
            "see `dmesg | grep NVRM` on the host; reboot where a driver is loaded and hangs, else "
            "run the nvidia_driver role",
            "reboot" if seen.info["driver"]["loaded"] else "install",
        )
        return
    if seen.smi.attached != len(seen.smi.gpus):
        yield Finding(
            "smi",
            "nvidia-smi leaves GPUs out",
            f"it counts {seen.smi.attached} GPUs and describes {len(seen.smi.gpus)}",
            "read what `nvidia-smi -q` says on the host; reset or reboot",
            "drain_and_reset",
        )
    told = [gpu.pci_address for gpu in seen.smi.gpus] + [g.uuid for g in seen.smi.gpus if g.uuid]
    if twice := sorted({name for name in told if told.count(name) > 1}):
        yield Finding(
            "smi",
            "nvidia-smi describes a GPU twice",
            f"{', '.join(twice)} comes more than once",
            "see which nvidia-smi the PATH has, and what `nvidia-smi -L` says",
        )
    if seen.smi.driver_version != seen.info["driver"]["loaded"]:
        yield Finding(
            "smi",
            "nvidia-smi speaks of another driver",
            f"it says {seen.smi.driver_version}, the loaded module is "
            f"{seen.info['driver']['loaded'] or 'not readable'}",
            "see which nvidia-smi the PATH has; " + _INSTALL,
            "install",
        )


def versions(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """Module, module on disk and libraries are of one version, and of the expected one."""
    driver = seen.info["driver"]
    has = {place: driver[place] for place in _PLACES}
    told = ", ".join(f"{name} {has[place] or 'none'}" for place, name in _PLACES.items())
    action = "reboot" if seen.info["reboot_required"] else "install"
    fix = "reboot the host" if action == "reboot" else _INSTALL
    if wanted.version:
        if set(has.values()) != {wanted.version}:
            yield Finding(
                "versions", f"the driver is not {wanted.version} everywhere", told, fix, action
            )
        return
    known = {version for version in has.values() if version}
    if not driver["loaded"] or not driver["user_space"]:
        yield Finding("versions", "the driver's versions cannot be read", told, fix, action)
    elif len(known) > 1:
        yield Finding("versions", "the driver is of two versions", told, fix, action)


def modules(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """The kernel modules are of the expected flavour."""
    has = seen.info["driver"]["flavour"]
    if wanted.modules and has != wanted.modules:
        yield Finding(
            "modules",
            f"the loaded modules are not the {wanted.modules} ones",
            f"loaded: {has or 'not readable'}",
            "reboot the host" if seen.info["reboot_required"] else _INSTALL,
            "reboot" if seen.info["reboot_required"] else "install",
        )


def bus(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """Every GPU on the bus answers."""
    on_bus = [gpu for gpu in seen.gpus if gpu["pci_class"]]
    if not on_bus:
        yield Finding(
            "bus",
            "the PCI bus shows no NVIDIA GPU",
            "no device of class 0300 or 0302 in /sys/bus/pci/devices",
            "see lspci -d 10de: on the host, and its slots, cables and firmware",
            "power_cycle",
        )
    for gpu in on_bus:
        pci = gpu["pci_address"]
        fell = any(
            row["pci_address"] == pci and row["xid"] == _OFF_BUS
            for row in (seen.log or {}).get("xids", ())
        )
        # One lost GPU can silence nvidia-smi for all; then only the log tells which one it is.
        if gpu["source"] == "driver" or (seen.smi is None and not fell):
            continue
        yield Finding(
            "bus",
            "a GPU is off the bus" if fell else "a GPU does not answer",
            ("the bus lists it and nvidia-smi does not; " if seen.smi else "")
            + f"the kernel's log {'has' if fell else 'may have'} Xid 79 of it",
            "power-cycle the host; where it stays away see to its slot and power, then have it "
            "replaced",
            "power_cycle",
            pci,
        )


def present(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """Every expected GPU answers."""
    on_bus = {gpu["pci_address"] for gpu in seen.gpus if gpu["pci_class"]}
    for pci in wanted.gpus:
        if seen.of(pci) is not None:
            continue
        if pci in on_bus:
            why, fix = "it is on the bus and nvidia-smi does not list it", "see to the driver first"
            action = "power_cycle" if seen.smi else "install"
        else:
            why, fix = "it is not even on the bus", "power-cycle the host, then see to its slot"
            action = "power_cycle"
        yield Finding("present", "an expected GPU is missing", why, fix, action, pci)


def other_drivers(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """No other kernel driver holds a GPU."""
    driver = seen.info["driver"]
    for gpu in seen.gpus:
        held = gpu["kernel_driver"]
        if gpu["pci_class"] and held != "nvidia":
            yield Finding(
                "kernel_driver",
                f"{held or 'no kernel driver'} holds the GPU",
                f"nvidia should be bound to it, {held or 'nothing'} is",
                "keep the other driver out of the initramfs and reboot; " + _INSTALL,
                "reboot" if seen.info["reboot_required"] else "install",
                gpu["pci_address"],
            )
    for name, loaded in (("nouveau", driver["nouveau"]), ("nova_core", driver["nova"])):
        if loaded:
            yield Finding(
                "kernel_driver",
                f"{name} is loaded",
                "two drivers want the GPUs",
                "keep it out of the initramfs (modprobe.d, then update-initramfs) and reboot",
                "reboot",
            )


def persistence(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """The driver stays loaded with nobody using it: by the daemon, or by the mode."""
    if not wanted.persistence:
        return
    daemon = (seen.units or {}).get(_PERSISTENCED, {}).get("active")
    off = [gpu["pci_address"] for gpu in seen.answering if gpu["persistence"] is not True]
    if not seen.answering:
        off = ["every GPU"]
    if off and daemon != "active":
        yield Finding(
            "persistence",
            "the driver is not kept loaded",
            f"{_PERSISTENCED} is {daemon or 'not there'}; persistence mode is not on for "
            f"{', '.join(off)}",
            f"systemctl enable --now {_PERSISTENCED}",
            "restart_service",
        )


def reboot(seen: Seen, _: Wanted) -> Iterator[Finding]:
    """Nothing waits for a reboot, and a reboot would not lose the driver."""
    if seen.info["reboot_required"]:
        yield Finding(
            "reboot",
            "the host waits for a reboot",
            "; ".join(seen.info["reboot_reasons"]),
            "reboot the host",
            "reboot",
            fails=False,
        )
    for problem in seen.info["problems"]:
        if problem["what"] == "a reboot would lose the driver":
            yield Finding(
                "reboot", problem["what"], problem["why"], problem["fix"], "install", fails=False
            )


def xid(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """The kernel's log of this boot has no fatal Xid."""
    if not wanted.xids:
        return
    if seen.log is None or not seen.xids:
        yield Finding(
            "xids",
            "nobody can say what Xids there were",
            "neither dmesg nor the journal can be read"
            if seen.log is None
            else "the table of Xids is missing",
            "run as root on a host that keeps a journal",
        )
        return
    if not seen.log.get("whole"):
        yield Finding(
            "xids",
            "the kernel's log has lost its beginning",
            "the ring buffer starts after the boot, and the journal of the kernel is empty, cannot "
            "be searched, or has more Xids than are read",
            "let journald keep the kernel's messages (ReadKMsg, Storage)",
        )
    for row in seen.log["xids"]:
        known = xids.meaning(seen.xids, row["xid"])
        if known["severity"] == "info":
            continue
        yield Finding(
            "xids",
            f"Xid {row['xid']} ({known['says']})",
            f"{row['count']} times since the boot, last: {row['last']}",
            _after_xid(str(known["action"])),
            str(known["action"]),
            row["pci_address"],
            fails=known["severity"] == "fatal",
        )


def _after_xid(action: str) -> str:
    steps = {
        "drain_and_reset": "drain the host, then reboot it (a reset heals the GPU too, and leaves "
        "the message in the log of this boot); have the GPU replaced where it comes back",
        "power_cycle": "power-cycle the host, then see to the GPU's slot and power",
        "reboot": "drain the host and reboot it",
        "replace": "see to the board's power cable, then have it replaced",
    }
    return steps.get(action, "see which program ran then; journalctl -k -g Xid has all of it")


CHECKS = (smi, versions, modules, bus, present, other_drivers, persistence, reboot, xid)
