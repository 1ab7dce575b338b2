# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi prints, read into plain data; what it leaves out is null, never an error."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.pci import normal_address

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNKNOWN = {"", "n/a", "[n/a]", "unknown error", "[unknown error]", "not supported"}
_SICK = re.compile(
    r"ERR!|\[?(GPU is lost|GPU requires reset|Unknown Error|GPU access blocked)\]?", re.IGNORECASE
)
"""What nvidia-smi prints in place of a value of a GPU that does not answer for it."""
_UNCORRECTED = (
    (("sram_uncorrectable_parity", "sram_uncorrectable_secded"), ("dram_uncorrectable",)),
    (("sram_uncorrectable",), ("dram_uncorrectable",)),
    (("double_bit/total",), ()),
)
"""What makes up the uncorrected errors: of R535 and newer, before it, and up to Volta."""
_ALWAYS = (
    "persistence_mode",
    "mig_mode/current_mig",
    "ecc_mode/current_ecc",
    "ecc_errors/volatile",
    "retired_pages",
    "remapped_rows",
)
"""What every driver from R450 on prints of every GPU, be it `N/A`."""
_KNOWN = ("uuid", "product_name")
"""What no GPU that works lacks."""
_RECOVERY_SINCE = 570
"""The branch from which on the driver says what recovery a GPU needs."""
_SLOWING = {
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
}
_NO_LIMIT = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clocks_setting"}


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
    fabric: dict[str, Any]
    processes: list[dict[str, Any]]
    retired_pages: dict[str, bool | int | None]
    slowdown: list[str]
    clocks_limited_by: list[str]
    memory_temperature_c: int | None
    slowdown_temperature_c: int | None
    virtualization: str | None
    sick: list[str]
    unread: list[str]


@dataclass(frozen=True)
class SmiReport:
    """The whole of `nvidia-smi -q -x`."""

    driver_version: str | None
    cuda_version: str | None
    gpus: list[SmiGpu] = field(default_factory=list)
    attached: int | None = None


def _text(element: ET.Element | None, *paths: str) -> str | None:
    for path in paths:
        found = element.findtext(path) if element is not None else None
        if found is not None and found.strip().lower() not in _UNKNOWN:
            return found.strip()
    return None


def _float(text: str | None) -> float | None:
    match = re.match(r"-?\d{1,18}(?:\.\d+)?(?!\d)", text or "")
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


def _uncorrected(gpu: ET.Element, base: str) -> int | None:
    """The uncorrected errors; null where one of the counters that make them up is not printed."""
    for marks, others in _UNCORRECTED:
        if any(gpu.find(f"{base}/{name}") is not None for name in marks):
            paths = [f"{base}/{name}" for name in (*marks, *others)]
            return None if any(gpu.find(path) is None for path in paths) else _sum(gpu, *paths)
    return None


def _ecc(gpu: ET.Element) -> dict[str, bool | int | None]:
    def corrected(span: str) -> int | None:
        base = f"ecc_errors/{span}"
        names = ("sram_correctable", "dram_correctable", "single_bit/total")
        return _sum(gpu, *(f"{base}/{name}" for name in names))

    return {
        "current": _flag(_text(gpu, "ecc_mode/current_ecc")),
        "pending": _flag(_text(gpu, "ecc_mode/pending_ecc")),
        "volatile_corrected": corrected("volatile"),
        "volatile_uncorrected": _uncorrected(gpu, "ecc_errors/volatile"),
        "aggregate_corrected": corrected("aggregate"),
        "aggregate_uncorrected": _uncorrected(gpu, "ecc_errors/aggregate"),
        "sram_threshold_exceeded": _flag(
            _text(gpu, "ecc_errors/aggregate/sram_threshold_exceeded")
        ),
        "repair_pending": _any(
            _flag(_text(gpu, f"ecc_errors/{name}"))
            for name in ("channel_repair_pending", "tpc_repair_pending")
        ),
        "unrepairable": _flag(_text(gpu, "ecc_errors/unrepairable_memory")),
    }


def _any(flags: Iterable[bool | None]) -> bool | None:
    """True where one is; unknown where none is known."""
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _retired(gpu: ET.Element) -> dict[str, bool | int | None]:
    base = "retired_pages"
    return {
        "single_bit": _int(_text(gpu, f"{base}/multiple_single_bit_retirement/retired_count")),
        "double_bit": _int(_text(gpu, f"{base}/double_bit_retirement/retired_count")),
        "pending": _any(
            _flag(_text(gpu, f"{base}/{name}"))
            for name in ("pending_retirement", "pending_blacklist")
        ),
    }


def _fabric(gpu: ET.Element) -> dict[str, Any]:
    """The registration with the fabric; newer drivers add how it is."""
    health = gpu.find("fabric/health")
    return {
        "state": _text(gpu, "fabric/state"),
        "status": _text(gpu, "fabric/status"),
        "clique": _text(gpu, "fabric/cliqueId", "fabric/clique_id"),
        "cluster": _text(gpu, "fabric/clusterUuid", "fabric/cluster_uuid"),
        "health": {
            element.tag.lower(): told for element in health or () if (told := _text(element, "."))
        },
    }


def _clocks(gpu: ET.Element) -> list[str]:
    """The active reasons for lower clocks; drivers before R535 call them throttle reasons."""
    found = []
    for kind in ("clocks_event_reason", "clocks_throttle_reason"):
        section = gpu.find(f"{kind}s")
        found += [
            element.tag.replace(f"{kind}s_", "").replace(f"{kind}_", "")
            for element in (section if section is not None else ())
            if (element.text or "").strip().lower() == "active"
        ]
    return found


def _unread(gpu: ET.Element, branch: int) -> list[str]:
    """What the driver should have printed of a GPU, and did not."""
    names = [name for name in _ALWAYS if gpu.find(name) is None]
    names += [name for name in _KNOWN if _text(gpu, name) is None]
    if branch >= _RECOVERY_SINCE and gpu.find("gpu_recovery_action") is None:
        names.append("gpu_recovery_action")
    rows = gpu.find("remapped_rows")
    if rows is not None and len(rows):
        wanted = ("remapped_row_pending", "remapped_row_failure")
        names += [f"remapped_rows/{name}" for name in wanted if rows.find(name) is None]
    pages = gpu.find("retired_pages")
    if pages is not None and len(pages) and pages.find("pending_retirement") is None:
        names.append("retired_pages/pending_retirement")
    return names


def _gpu(element: ET.Element, index: int, branch: int) -> SmiGpu:
    power = next(
        (
            found
            for name in ("gpu_power_readings", "power_readings")
            if (found := element.find(name)) is not None
        ),
        None,
    )
    clocks = _clocks(element)
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
        fabric=_fabric(element),
        retired_pages=_retired(element),
        slowdown=[name for name in clocks if name in _SLOWING],
        clocks_limited_by=[name for name in clocks if name not in _NO_LIMIT],
        memory_temperature_c=_int(_text(element, "temperature/memory_temp")),
        slowdown_temperature_c=_int(_text(element, "temperature/gpu_temp_slow_threshold")),
        virtualization=_text(element, "gpu_virtualization_mode/virtualization_mode"),
        sick=sorted({e.tag for e in element.iter() if e.text and _SICK.search(e.text)}),
        unread=_unread(element, branch),
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
    version = _text(root, "driver_version")
    branch = _int((version or "").partition(".")[0]) or 0
    return SmiReport(
        driver_version=version,
        cuda_version=_text(root, "cuda_version"),
        gpus=[_gpu(gpu, index, branch) for index, gpu in enumerate(root.findall("gpu"))],
        attached=_int(_text(root, "attached_gpus")),
    )
