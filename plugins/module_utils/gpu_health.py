# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How each GPU is: its memory, its link, its errors, and who uses it.

What gpu_info does not report; from the answer of nvidia-smi that gpu_info asked for, and sysfs.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import processes
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SICK = re.compile(r"ERR!|\[?(GPU is lost|GPU requires reset)\]?", re.IGNORECASE)
_TOTAL = re.compile(r"^TOTAL_ERR_\w+\s+(\d+)", re.MULTILINE)
_YES = "yes"
_WIDTH_UNKNOWN = 255
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECTS = 0x001C
"""P2P request redirect, completion redirect, upstream forwarding."""
_EXTENDED = 0x100
_BRIDGE = "0604"


def _mib(element: ET.Element, path: str) -> int | None:
    found = re.match(r"\d+", (element.findtext(path) or "").strip())
    return int(found[0]) if found else None


def _yes(element: ET.Element, *paths: str) -> bool | None:
    words = [(element.findtext(path) or "").strip().lower() for path in paths]
    if _YES in words:
        return True
    return False if "no" in words else None


def parse_query(text: str) -> dict[str, dict[str, Any]]:
    """Read `nvidia-smi -q -x` for what gpu_info leaves out, by PCI address."""
    if "<!ENTITY" in text:
        return {}
    try:
        root = ET.fromstring(text)  # noqa: S314 - no entities, no DTD loaded
    except ET.ParseError:
        return {}
    found = {}
    for gpu in root.findall("gpu"):
        sick = [
            element.tag for element in gpu.iter() if element.text and _SICK.search(element.text)
        ]
        found[normal_address(gpu.get("id") or "")] = {
            "memory_used_mib": _mib(gpu, "fb_memory_usage/used"),
            "retirement_pending": _yes(
                gpu, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"
            ),
            "sick": sorted(set(sick)),
        }
    return found


def _lanes(folder: Path, name: str) -> int | None:
    text = (read_text(folder / name) or "").strip()
    value = int(text) if text.isdigit() else 0
    return value if 0 < value < _WIDTH_UNKNOWN else None


def _speed(folder: Path, name: str) -> str | None:
    text = (read_text(folder / name) or "").strip()
    return text.partition(" PCIe")[0] if text and "Unknown" not in text else None


def link(folder: Path) -> dict[str, Any]:
    """The PCIe link of a device. Its speed falls when it idles; its width does not."""
    try:
        above = folder.resolve(strict=True).parent
    except OSError:
        above = folder.parent
    return {
        "width": _lanes(folder, "current_link_width"),
        "max_width": _lanes(folder, "max_link_width"),
        "slot_width": _lanes(above, "max_link_width"),
        "speed": _speed(folder, "current_link_speed"),
        "max_speed": _speed(folder, "max_link_speed"),
    }


def _aer(folder: Path, name: str) -> int | None:
    found = _TOTAL.search(read_text(folder / name) or "")
    return int(found[1]) if found else None


def _capability(stream: Any) -> int | None:  # noqa: ANN401 - an open file
    """The ACS control word in a configuration space; None where the device has no ACS."""
    position, seen = _EXTENDED, set()
    while position >= _EXTENDED and position not in seen:
        seen.add(position)
        stream.seek(position)
        head = int.from_bytes(stream.read(4), "little")
        if head in {0, 0xFFFFFFFF}:
            return None
        if head & 0xFFFF == _ACS_CAPABILITY:
            stream.seek(position + 6)
            return int.from_bytes(stream.read(2), "little")
        position = head >> 20
    return None


def acs_on(folder: Path) -> bool | None:
    """Whether a bridge above a device sends its peers' traffic to the root; None: not readable."""
    try:
        whole = folder.resolve(strict=True)
    except OSError:
        return None
    found = None
    for bridge in whole.parents:
        if not (read_text(bridge / "class") or "").strip().removeprefix("0x").startswith(_BRIDGE):
            continue
        try:
            with (bridge / "config").open("rb", buffering=0) as stream:
                if stream.seek(0, 2) <= _EXTENDED or len(_at(stream)) < 4:  # noqa: PLR2004 - a word
                    return None
                control = _capability(stream)
        except OSError:
            return None
        found = bool(found) or bool(control and control & _ACS_REDIRECTS)
    return found


def _at(stream: Any) -> bytes:  # noqa: ANN401 - an open file
    """The first word beyond what everybody may read; empty without root."""
    stream.seek(_EXTENDED)
    word: bytes = stream.read(4)
    return word


def collect(
    gpus: Iterable[Mapping[str, Any]], query: str | None, root: str = "/"
) -> list[dict[str, Any]]:
    """The health of each GPU; null for what could not be read.

    Args:
        gpus: those of gpu_info.
        query: the answer to `nvidia-smi -q -x`, where there was one.
        root: the root of the file system, another one only in tests.
    """
    told = parse_query(query) if query else {}
    unknown = {"memory_used_mib": None, "retirement_pending": None, "sick": None}
    rows = []
    for gpu in gpus:
        address = gpu["pci_address"]
        folder = Path(root) / "sys/bus/pci/devices" / address
        pids = [process["pid"] for process in gpu["processes"] if process["pid"]]
        rows.append(
            {
                "pci_address": address,
                **told.get(address, unknown),
                "link": link(folder),
                "aer_fatal": _aer(folder, "aer_dev_fatal"),
                "aer_nonfatal": _aer(folder, "aer_dev_nonfatal"),
                "acs": acs_on(folder),
                "processes": [processes.describe(pid) for pid in pids],
            }
        )
    return rows


def iommu(root: str = "/") -> dict[str, Any]:
    """Whether an IOMMU is on, and how it maps: `identity` passes addresses through."""
    base = Path(root) / "sys/kernel/iommu_groups"
    try:
        groups = list(base.iterdir())
    except OSError:
        return {"on": None, "types": []}
    kinds = {(read_text(group / "type") or "").strip() for group in groups}
    return {"on": bool(groups), "types": sorted(kinds - {""})}
