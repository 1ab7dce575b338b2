# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi prints, read into plain data; what it leaves out is null, never an error."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address

_UNKNOWN = {"", "n/a", "[n/a]", "unknown error", "[unknown error]", "not supported"}
_LINK = re.compile(r"^\s+Link\s+(\d+):\s+(?:([\d.]+)\s*GB/s|<?(inactive)>?)", re.IGNORECASE)
_GPU = re.compile(r"^GPU\s+(\d+):\s.*?(?:\(UUID:\s*([^)]+)\))?\s*$")
_ALL_INACTIVE = "all links are inactive"


@dataclass(frozen=True)
class SmiGpu:
    """One `<gpu>` of `nvidia-smi -q -x`."""

    index: int
    pci_address: str
    device_id: str | None
    name: str | None
    uuid: str | None
    memory_mib: int | None
    persistence: bool | None
    mig: dict[str, bool | None]
    ecc: dict[str, bool | int | None]
    row_remap: dict[str, bool | int | None]
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    recovery_action: str | None
    fabric: dict[str, str | None]
    processes: list[dict[str, Any]]


@dataclass(frozen=True)
class SmiReport:
    """The whole of `nvidia-smi -q -x`."""

    driver_version: str | None
    cuda_version: str | None
    gpus: list[SmiGpu] = field(default_factory=list)


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


def _text(element: ET.Element | None, *paths: str) -> str | None:
    for path in paths:
        found = element.findtext(path) if element is not None else None
        if found is not None and found.strip().lower() not in _UNKNOWN:
            return found.strip()
    return None


def _float(text: str | None) -> float | None:
    match = re.match(r"-?\d+(?:\.\d+)?", text or "")
    return float(match[0]) if match else None


def _int(text: str | None) -> int | None:
    value = _float(text)
    return None if value is None else int(value)


def _flag(text: str | None) -> bool | None:
    """`Enabled`, `Yes`, `On` and their contraries; anything else is unknown."""
    word = (text or "").lower()
    if word in {"enabled", "yes", "on"}:
        return True
    return False if word in {"disabled", "no", "off"} else None


def _sum(element: ET.Element, *paths: str) -> int | None:
    values = [_int(_text(element, path)) for path in paths]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _device_id(text: str | None) -> str | None:
    """The device part of `233510DE` (device, then vendor) or of `0x233510DE`."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{4})10de", (text or "").lower())
    return match[1] if match else None


def _processes(element: ET.Element) -> list[dict[str, Any]]:
    return [
        {
            "pid": _int(_text(info, "pid")),
            "name": _text(info, "process_name"),
            "type": _text(info, "type"),
            "used_mib": _int(_text(info, "used_memory")),
        }
        for info in element.findall("processes/process_info")
    ]


def _ecc(gpu: ET.Element) -> dict[str, bool | int | None]:
    def errors(span: str, kind: str) -> int | None:
        """Newer drivers split SRAM errors by cause, older ones by memory."""
        base = f"ecc_errors/{span}"
        if kind == "corrected":
            return _sum(
                gpu,
                f"{base}/sram_correctable",
                f"{base}/dram_correctable",
                f"{base}/single_bit/total",
            )
        return _sum(
            gpu,
            f"{base}/sram_uncorrectable",
            f"{base}/sram_uncorrectable_parity",
            f"{base}/sram_uncorrectable_secded",
            f"{base}/dram_uncorrectable",
            f"{base}/double_bit/total",
        )

    return {
        "current": _flag(_text(gpu, "ecc_mode/current_ecc")),
        "pending": _flag(_text(gpu, "ecc_mode/pending_ecc")),
        "volatile_corrected": errors("volatile", "corrected"),
        "volatile_uncorrected": errors("volatile", "uncorrected"),
        "aggregate_corrected": errors("aggregate", "corrected"),
        "aggregate_uncorrected": errors("aggregate", "uncorrected"),
    }


def _gpu(element: ET.Element, index: int) -> SmiGpu:
    power = next(
        (
            found
            for name in ("gpu_power_readings", "power_readings")
            if (found := element.find(name)) is not None
        ),
        None,
    )
    return SmiGpu(
        index=index,
        pci_address=normal_address(element.get("id") or _text(element, "pci/pci_bus_id") or ""),
        device_id=_device_id(_text(element, "pci/pci_device_id")),
        name=_text(element, "product_name"),
        uuid=_text(element, "uuid"),
        memory_mib=_int(_text(element, "fb_memory_usage/total")),
        persistence=_flag(_text(element, "persistence_mode")),
        mig={
            "current": _flag(_text(element, "mig_mode/current_mig")),
            "pending": _flag(_text(element, "mig_mode/pending_mig")),
        },
        ecc=_ecc(element),
        row_remap={
            "corrected": _int(_text(element, "remapped_rows/remapped_row_corr")),
            "uncorrected": _int(_text(element, "remapped_rows/remapped_row_unc")),
            "pending": _flag(_text(element, "remapped_rows/remapped_row_pending")),
            "failure": _flag(_text(element, "remapped_rows/remapped_row_failure")),
        },
        power_w=_float(
            _text(power, "instant_power_draw", "average_power_draw", "power_draw"),
        ),
        power_limit_w=_float(_text(power, "current_power_limit", "power_limit")),
        temperature_c=_int(_text(element, "temperature/gpu_temp")),
        recovery_action=_text(element, "gpu_recovery_action"),
        fabric={
            "state": _text(element, "fabric/state"),
            "status": _text(element, "fabric/status"),
        },
        processes=_processes(element),
    )


def parse_query(text: str) -> SmiReport:
    """Read the output of `nvidia-smi -q -x`.

    Raises:
        LlmetalError: this is not its XML, or it declares entities, which nvidia-smi never does.
    """
    if "<!ENTITY" in text:
        raise LlmetalError(
            what="the output of nvidia-smi declares XML entities",
            why="nvidia-smi never does, so this is another program's output",
            fix="see which program nvidia-smi on the PATH is",
        )
    try:
        # The document type names a DTD that the parser does not load; entities are refused above.
        root = ET.fromstring(text)  # noqa: S314 - no entities, no DTD loaded
    except ET.ParseError as error:
        raise LlmetalError(
            what="the output of `nvidia-smi -q -x` is not XML",
            why=str(error),
            fix="run it on the host and read what it says",
        ) from error
    return SmiReport(
        driver_version=_text(root, "driver_version"),
        cuda_version=_text(root, "cuda_version"),
        gpus=[_gpu(element, index) for index, element in enumerate(root.findall("gpu"))],
    )


def parse_nvlink(text: str) -> list[GpuLinks]:
    """Read the output of `nvidia-smi nvlink --status`; it is empty where there are no links."""
    found: list[GpuLinks] = []
    for line in text.splitlines():
        if header := _GPU.match(line):
            uuid = header[2].strip() if header[2] else None
            found.append(GpuLinks(int(header[1]), uuid, []))
        elif found and _ALL_INACTIVE in line:
            last = found[-1]
            found[-1] = GpuLinks(last.index, last.uuid, last.links, all_inactive=True)
        elif found and (link := _LINK.match(line)):
            state = "inactive" if link[3] else "active"
            found[-1].links.append(Link(int(link[1]), state, float(link[2]) if link[2] else None))
    return found
