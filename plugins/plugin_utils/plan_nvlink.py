# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what the links between a host's GPUs must be like, for the proof to measure them by.

Pure. On metal, where a board joins its GPUs, a link that is down is a fault. In a virtual machine
whoever runs the machine below decides, and bridges on PCIe cards are nobody's duty: there no link
at all is as healthy as all of them, and only some of them is a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import plan_fabric
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts, SeenGpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_REPORTS_FABRIC = 4
"""The generation from which on a GPU says how far its fabric is; A100 says N/A."""
_MESH = frozenset({4, 8})
"""GPUs of a board whose links go from GPU to GPU, all of them used."""
_TOPOLOGY = re.compile(r"NV\d+")


@dataclass(frozen=True)
class _Wired:
    """A GPU, its row of data, and what is known of its links on this host."""

    gpu: SeenGpu
    row: Mapping[str, Any]
    name: str
    required: bool
    topology: str | None
    why: str

    @property
    def generation(self) -> int:
        found = self.row.get("generation")
        return found if isinstance(found, int) else 0


def decide(request: HostRequest, facts: Facts, compat: Compat) -> dict[str, Any] | None:
    """What the links must be like; None where no GPU of the host has links that lead anywhere.

    Args:
        request: what the inventory asks.
        facts: what the survey saw.
        compat: the compatibility data.
    """
    wired = [one for one in (_wired(gpu, facts, compat) for gpu in facts.gpus) if one is not None]
    required = [one for one in wired if one.required]
    # Of a host with both, those that must have links are looked at: no silence about them.
    chosen = required or wired
    if not chosen:
        return None
    return {
        "required": bool(required),
        "fabric_state": bool(required) and _says_fabric(required, facts, compat),
        "topology": _topology(required),
        "bandwidth_fraction": accepted_fraction(),
        "gpus": [
            {
                "pci": "not known" if request.hypothetical else one.gpu.pci,
                "links": int(one.row["links"]),
                "gbps": one.row["per_link_gbps_shown"],
            }
            for one in chosen
        ],
        "why": list(dict.fromkeys(f"{one.name}: {one.why}" for one in chosen)),
    }


def accepted_fraction() -> float:
    """The part of the links' nominal bandwidth that a measurement must reach."""
    return float(load_data("nvlink.yml")["bandwidth"]["accepted_fraction"])


def _topology(required: Sequence[_Wired]) -> str | None:
    """What `topo -m` shows between each two of the GPUs; None where it differs, or is not known."""
    found = {one.topology for one in required}
    return found.pop() if len(found) == 1 else None


def _says_fabric(required: Sequence[_Wired], facts: Facts, compat: Compat) -> bool:
    """Whether each GPU says that its fabric is complete: behind switches, from Hopper on."""
    switched = plan_fabric.switches(facts, compat) or any(
        compat.gpus[key]["fabric_manager"] == "required"
        for one in required
        if (key := _key(one.gpu, compat))
    )
    return bool(switched) and all(one.generation >= _REPORTS_FABRIC for one in required)


def _key(gpu: SeenGpu, compat: Compat) -> str | None:
    known = compat.gpu(gpu.device_id)
    return known.key if known else None


def _wired(gpu: SeenGpu, facts: Facts, compat: Compat) -> _Wired | None:
    """What is known of a GPU's links on this host; None where it has none that lead anywhere."""
    key = _key(gpu, compat)
    if key is None:
        return None
    row: Mapping[str, Any] = compat.gpus[key]["nvlink"]
    joined = row.get("by")
    if not row["links"] or joined in {"chip", "rack"}:
        return None
    count = sum(1 for other in facts.gpus if _key(other, compat) == key)
    always = compat.gpus[key]["fabric_manager"] == "required"
    seen = plan_fabric.switches(facts, compat)
    required, topology, why = _expected(row, count, seen, facts, always=always)
    if joined == "bridge" and count == 1:
        return None
    name = str(compat.gpus[key]["model"])
    return _Wired(gpu, row, name, required, topology, why)


def _expected(
    row: Mapping[str, Any], count: int, switches: int, facts: Facts, *, always: bool
) -> tuple[bool, str | None, str]:
    """Whether all links must be active, between which pairs, and why.

    Args:
        row: the links of the GPU in the data.
        count: how many of its kind the host has.
        switches: how many NVSwitches the host shows.
        facts: what the survey saw.
        always: whether the GPU is sold on boards with switches only.
    """
    links = f"{row['links']} links of {row['per_link_gbps_shown']} GB/s"
    if optional := _optional(row, switches, facts, links):
        return False, None, optional
    full, board = _plain(row.get("topo_m")), row["by"] == "mesh"
    direct = (row.get("direct") or {}).get(str(count))
    if board and count in _MESH:
        return True, None, f"{links} between the GPUs of the board"
    if not board and (switches or always):
        where = f"{switches} NVSwitches" if switches else "the NVSwitches of its board"
        return True, full, f"{links} to {where}"
    if direct:
        return True, _plain(direct), f"{links} between the {count} GPUs of the board, no NVSwitch"
    if row["by"] == "switch" and count > plan_fabric.BOARD:
        return True, full, f"{links} to NVSwitches, though the PCI bus shows none"
    # A module on metal that nothing visible joins to another: its links may well be up, and
    # lead to what another tenant or nobody has. That they are all up or all down is asked.
    alone = "it is alone" if count == 1 else f"how {count} of them are joined is not known"
    return False, None, f"no NVSwitch on the PCI bus, and {alone}"


def _optional(row: Mapping[str, Any], switches: int, facts: Facts, links: str) -> str:
    """Why a GPU need not have any active link, whatever board it is on; empty where it may not."""
    if facts.look.flag("modules", "nvlink_disabled"):
        return "NVLink is switched off in the driver (NvLinkDisable)"
    if row["by"] == "bridge" or (row["by"] == "switch_or_bridge" and not switches):
        return f"{links} where bridges join the cards, none where not"
    if facts.is_virtual_machine and (not switches or row["by"] == "mesh"):
        return "in a virtual machine links may be off, or run by the machine below"
    return ""


def _plain(topology: object) -> str | None:
    text = str(topology or "")
    return text if _TOPOLOGY.fullmatch(text) else None
