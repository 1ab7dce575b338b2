# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check of a host's GPUs is given, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.nvidia_smi import (
        SmiGpu,
        SmiReport,
    )

ACTIONS = (
    "none",
    "restart_service",
    "drain_and_reset",
    "reboot",
    "power_cycle",
    "replace",
    "install",
)
RESET = (
    "drain the host and reset the GPU (nvidia-smi --gpu-reset; behind NVSwitches all of them), or "
    "reboot"
)


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    what: str
    why: str
    fix: str
    action: str = "none"
    gpu: str | None = None
    fails: bool = True

    def as_dict(self) -> dict[str, str | None]:
        """As it stands in a result; whether it fails is said by the list that it is in."""
        return {
            "check": self.check,
            "gpu": self.gpu,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "action": self.action,
        }


@dataclass(frozen=True)
class LinksOf:
    """The links that one GPU should have."""

    pci: str
    links: int | None
    gbps: float | None


@dataclass(frozen=True)
class WantedLinks:
    """What the plan says of the links."""

    required: bool = False
    fabric_state: bool = False
    topology: str | None = None
    gpus: Sequence[LinksOf] = ()


@dataclass(frozen=True)
class Wanted:
    """What is expected of a host's GPUs; null and false are not asked."""

    version: str | None = None
    modules: str | None = None
    gpus: Sequence[str] = ()
    persistence: bool = False
    xids: bool = False
    nvlink: WantedLinks | None = None
    baseline: str | None = None

    @classmethod
    def of(cls, expect: Mapping[str, Any], baseline: str | None = None) -> Wanted:
        """From the parameters of gpu_health."""
        links = expect.get("nvlink")
        return cls(
            version=expect.get("version"),
            modules=expect.get("modules"),
            gpus=list(dict.fromkeys(normal_address(pci) for pci in expect.get("gpus") or ())),
            persistence=bool(expect.get("persistence")),
            xids=bool(expect.get("xids")),
            nvlink=links
            and WantedLinks(
                required=bool(links.get("required")),
                fabric_state=bool(links.get("fabric_state")),
                topology=links.get("topology"),
                gpus=list(
                    {
                        (pci := normal_address(row["pci"])): LinksOf(
                            pci, row.get("links"), row.get("gbps")
                        )
                        for row in links.get("gpus") or ()
                    }.values()
                ),
            ),
            baseline=baseline,
        )


@dataclass(frozen=True)
class Answer:
    """What a program said: its text, or why there is none."""

    text: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Seen:
    """What was read on a host. None is what could not be read."""

    info: Mapping[str, Any]
    """The report of gpu_info."""
    smi: SmiReport | None = None
    why_no_smi: str = ""
    links: Answer = Answer()
    errors: Answer = Answer()
    topology: Answer = Answer()
    baseline: Answer = Answer()
    units: Mapping[str, Mapping[str, str]] | None = None
    log: Mapping[str, Any] | None = None
    xids: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpus(self) -> Sequence[Mapping[str, Any]]:
        """The GPUs that the bus or the driver shows."""
        rows: Sequence[Mapping[str, Any]] = self.info["gpus"]
        return rows

    @property
    def answering(self) -> Sequence[Mapping[str, Any]]:
        """The GPUs that nvidia-smi lists."""
        return [gpu for gpu in self.gpus if gpu["source"] == "driver"]

    def of(self, pci: str) -> Mapping[str, Any] | None:
        """A GPU that answers, by its address."""
        return next((gpu for gpu in self.answering if gpu["pci_address"] == pci), None)

    def told(self, pci: str) -> SmiGpu | None:
        """What nvidia-smi printed of a GPU."""
        return next((g for g in self.smi.gpus if g.pci_address == pci), None) if self.smi else None
