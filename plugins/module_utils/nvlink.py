# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVLinks as nvidia-smi prints them: their state, their error counters, the paths between GPUs."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Counters = Mapping[str, Mapping[str, Mapping[str, int]]]
    """By UUID of the GPU, number of the link, and name of the counter."""

_LINK = re.compile(
    r"^\s+Link\s+(\d{1,4}):\s+(?:(\d{1,6}(?:\.\d+)?)\s*GB/s|<?(inactive)>?)", re.IGNORECASE
)
_GPU = re.compile(r"^GPU\s+(\d{1,4}):\s.*?(?:\(UUID:\s*([^)]+)\))?\s*$")
_ALL_INACTIVE = "all links are inactive"
_COUNTER = re.compile(r"^\s+Link\s+(\d{1,4}):\s+([A-Z][A-Za-z ]+?)\s*:\s+(\d{1,20})\s*$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ROW = re.compile(r"GPU(\d{1,4})")
_TRAFFIC = re.compile(r"(tx|rx)_(packets|bytes)|plr_\w+")
_FATAL = {
    "recovery_errors",
    "link_recovery_failed_events",
    "effective_errors",
    "malformed_packet_errors",
    "buffer_overrun_errors",
    "local_link_integrity_errors",
}
"""Counters of what a link did not make good by itself. DCGM fails on the first two as well."""


@dataclass(frozen=True)
class Link:
    """One NVLink of a GPU."""

    link: int
    state: str
    gbps: float | None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return asdict(self)


@dataclass(frozen=True)
class GpuLinks:
    """What `nvidia-smi nvlink --status` says of one GPU."""

    index: int
    uuid: str | None
    links: list[Link]
    all_inactive: bool = False

    @property
    def state(self) -> str:
        """`none` (the GPU has no links or they are disabled), `active`, `partial`, `inactive`."""
        active = sum(link.state == "active" for link in self.links)
        if self.all_inactive or (self.links and not active):
            return "inactive"
        if not self.links:
            return "none"
        return "active" if active == len(self.links) else "partial"


def parse_nvlink(text: str) -> list[GpuLinks]:
    """Read the output of `nvidia-smi nvlink --status`; it is empty where there are no links."""
    found: list[GpuLinks] = []
    for line in text.splitlines():
        if header := _GPU.match(line):
            uuid = header[2].strip() if header[2] else None
            found.append(GpuLinks(int(header[1]), uuid, []))
        elif found and _ALL_INACTIVE in line.lower():
            last = found[-1]
            found[-1] = GpuLinks(last.index, last.uuid, last.links, all_inactive=True)
        elif found and (link := _LINK.match(line)):
            state = "inactive" if link[3] else "active"
            found[-1].links.append(Link(int(link[1]), state, float(link[2]) if link[2] else None))
    return found


def is_status(text: str) -> bool:
    """Whether a text can be what `nvidia-smi nvlink --status` prints, and nothing else.

    A complaint beside it, or in place of it, is not a status: nobody can tell what it leaves out.
    Nor is one that describes a GPU twice.
    """
    seen = [header[2] for line in text.splitlines() if (header := _GPU.match(line))]
    return len(seen) == len(set(seen)) and all(
        not line.strip()
        or ((header := _GPU.match(line)) and header[2])
        or _LINK.match(line)
        or _ALL_INACTIVE in line.lower()
        or line.strip().lower().startswith("nvlink is not supported")
        for line in text.splitlines()
    )


def parse_errors(text: str) -> dict[str, dict[str, dict[str, int]]]:
    """Read the error counters that `nvidia-smi nvlink -e` prints.

    The names differ: up to NVLink 4 replay, recovery and CRC errors, from NVLink 5 on a dozen
    others. Traffic, bit error rates and the corrections by codeword are no errors and left out.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    links: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        if header := _GPU.match(line):
            links = found.setdefault((header[2] or f"index {header[1]}").strip(), {})
        elif found and (row := _COUNTER.match(line)):
            name = "_".join(row[2].lower().split())
            if not _TRAFFIC.fullmatch(name):
                links.setdefault(row[1], {})[name] = int(row[3])
    return found


def is_fatal(counter: str) -> bool:
    """Whether a counter counts what the link could not make good."""
    return counter in _FATAL


@dataclass(frozen=True)
class Growth:
    """A counter that stands higher than it did."""

    uuid: str
    link: str
    counter: str
    before: int
    now: int


def growth(before: Counters, now: Counters) -> list[Growth]:
    """The counters that grew. A lower one started anew, as after a reset, and did not grow."""
    return [
        Growth(uuid, link, counter, old, value)
        for uuid, links in sorted(now.items())
        for link, counters in sorted(links.items(), key=lambda item: int(item[0]))
        for counter, value in sorted(counters.items())
        if value > (old := before.get(uuid, {}).get(link, {}).get(counter, 0))
    ]


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """Read `nvidia-smi topo -m`: the class of the path between each two GPUs, by their numbers."""
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    head: list[str] = next((line.split("\t") for line in lines if "GPU0" in line), [])
    columns = {place: int(row[1]) for place, name in enumerate(head) if (row := _cell(name))}
    found = {}
    for line in lines:
        cells = line.split("\t")
        row = _cell(cells[0])
        if not row:
            continue
        for place, other in columns.items():
            if place < len(cells) and other != int(row[1]):
                found[int(row[1]), other] = cells[place].strip()
    return found


def _cell(text: str) -> re.Match[str] | None:
    return _ROW.fullmatch(text.strip())
