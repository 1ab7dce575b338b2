# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the fabric of a host: whether it needs a fabric manager, and what comes with it.

The manager, and all that is built with it, comes in the version of the driver: it ends at once
with any other. On B200 and B300 a subnet manager comes with it, in a version of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    is_at_least,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Candidates
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
        Compat,
        FabricExtras,
        FabricSet,
        Gpu,
        PackageSet,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings

NVLINK5_GPUS = frozenset({"b200", "b300"})
_NVLINK5_KERNEL = "5.17"
_MANY = 2
BOARD = 4
"""GPUs up to which a board can do without switches."""


@dataclass(frozen=True)
class Fabric:
    """The packages of a host's fabric."""

    packages: FabricSet
    extras: FabricExtras

    @property
    def one_version(self) -> tuple[str, ...]:
        """What comes in the one version of the driver."""
        return (self.packages.package, *self.extras.same)

    @property
    def questions(self) -> tuple[str, ...]:
        """The packages whose versions the resolve stage has to ask for."""
        return (*self.one_version, *self.extras.own, *self.extras.optional)


def switches(facts: Facts, compat: Compat) -> int:
    """How many NVSwitches a host shows."""
    real = {k for k, row in compat.switches.items() if row.get("pci_class") == "0680"}
    return sum(1 for device in facts.switches if device in real)


def is_wanted(facts: Facts, gpus: tuple[Gpu, ...], compat: Compat) -> bool:
    """Whether a package source has to have a fabric manager for the host."""
    return bool(switches(facts, compat)) or any(gpu.fabric == "required" for gpu in gpus)


def intend(
    facts: Facts,
    gpus: tuple[Gpu, ...],
    packages: PackageSet,
    compat: Compat,
    findings: Findings,
) -> Fabric | None:
    """The fabric that a host needs; None for none, or where it cannot have it.

    Args:
        facts: what the survey saw.
        gpus: the host's GPUs, each kind once.
        packages: the driver set.
        compat: the compatibility data.
        findings: collects what stands against it.
    """
    count = switches(facts, compat)
    nvlink5 = [gpu for gpu in gpus if gpu.key in NVLINK5_GPUS]
    always = [gpu for gpu in gpus if gpu.fabric == "required"]
    if rack := [gpu for gpu in gpus if gpu.fabric.startswith("rack_switch")]:
        fix = "set llmetal_driver.source to none and install the driver with nvidia-imex by hand"
        findings.add("fm-gb200", fact=rack[0].name, fix=fix)
        return None
    if not count and (facts.is_virtual_machine or not always):
        _look_for_hidden(facts, gpus, findings)
        return None
    seen = f"{count} NVSwitches" if count else f"{always[0].name} on metal"
    fabric = packages.fabric
    if fabric is None:
        fix = "take llmetal_driver.source cuda_repo, or ubuntu on Ubuntu"
        findings.add("fm-source", fact=f"{seen}, source {packages.source}", fix=fix)
    if not nvlink5:
        return None if fabric is None else Fabric(fabric, fabric.nvswitch)
    if fabric is None or fabric.nvlink5 is None:
        fix = "take llmetal_driver.source cuda_repo"
        findings.add("nvlink5-stack", fact=f"{seen}, source {packages.source}", fix=fix)
    if facts.kernel and not is_at_least(facts.kernel, _NVLINK5_KERNEL):
        fix = f"boot Linux {_NVLINK5_KERNEL} or newer"
        findings.add("nvlink5-stack", fact=f"{seen}, Linux {facts.kernel}", fix=fix)
    if fabric is None or fabric.nvlink5 is None:
        return None
    return Fabric(fabric, fabric.nvlink5)


def _look_for_hidden(facts: Facts, gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """GPUs that switches join on their boards, and no switch to be seen."""
    maybe = [gpu for gpu in gpus if gpu.fabric in {"required", "required_if_nvswitch"}]
    count = len(facts.gpus)
    if not maybe or count < _MANY:
        return
    if facts.is_virtual_machine:
        findings.add(
            "fm-hidden",
            fact=f"{count} x {maybe[0].name} in a virtual machine, no switch",
            fix="see that the fabric manager runs on the machine below",
        )
    elif count > BOARD:
        findings.add(
            "fm-hidden",
            fact=f"{count} x {maybe[0].name} on metal, no switch on the PCI bus",
            fix="see whether the switches have fallen off the bus (lspci -d 10de::0680, Xid and "
            "SXid messages), then power-cycle the host",
        )


def extras(
    fabric: Fabric, candidates: Candidates, release: str, findings: Findings
) -> list[dict[str, str]]:
    """What comes with the manager, in exact versions.

    Args:
        fabric: the fabric's packages.
        candidates: the versions that there are.
        release: the driver's; it is one that `one_version` has whole.
        findings: collects what stands against it.
    """
    found: list[tuple[str, str | None]] = [
        (name, candidates.releases(name).get(release)) for name in fabric.extras.same
    ]
    for name in fabric.extras.own:
        version = candidates.closest(name, release)
        found.append((name, version))
        if version is None:
            findings.add(
                "driver-set-incomplete",
                fact=f"no source has {name}",
                fix="see that llmetal_driver.mirror is a whole copy, and names the right suite",
            )
    found += [(name, candidates.releases(name).get(release)) for name in fabric.extras.optional]
    return [{"name": name, "version": version} for name, version in found if version]


def lock_of(
    fabric: Fabric | None,
    facts: Facts,
    *,
    version: str | None,
    packages: Sequence[Mapping[str, str | None]],
) -> dict[str, Any] | None:
    """The fabric as the lock has it."""
    if fabric is None:
        return None
    return {
        "package": fabric.packages.package,
        "version": version,
        "service": fabric.packages.service,
        "switches": len(facts.switches),
        "packages": list(packages),
        "services": [fabric.packages.service],
    }


def of_other_version(lock: Mapping[str, Any]) -> Iterator[str]:
    """What of a lock's fabric is of another version than its driver, which it ends at once with."""
    driver, fabric = lock["driver"], lock["fabric"]
    if driver is None or fabric is None or not driver["version"] or not fabric["version"]:
        return
    if upstream(fabric["version"]) != driver["version"]:
        yield f"{fabric['package']} {fabric['version']}, driver {driver['version']}"
