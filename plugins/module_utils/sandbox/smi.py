# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says on a simulated machine: a recording's structure, a scenario's values.

Words that only the running guest knows stand as `@DRIVER@`, `@CUDA@`, `@TIMESTAMP@`,
`@PERSISTENCE@`, `@FABRIC_STATE@`, `@FABRIC_STATUS@` and `@LINK_ERRORS@`; the guest's nvidia-smi
fills them in.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.scenario import (
        Gpu,
        Scenario,
    )

    _AboutLink = Callable[[Scenario, "Damage", int, int], list[str]]

_XML_OPEN = re.compile(r"^\t*<(?P<tag>[\w]+)(?: [^>]*)?>$")
_XML_VALUE = re.compile(r"^(?P<head>\t*<(?P<tag>[\w]+)>)(?P<value>.*)(?P<tail></[\w]+>)$")
_XML_CLOSE = re.compile(r"^\t*</[\w]+>$")
_TEXT_LINE = re.compile(r"^(?P<indent> *)(?P<key>\S.*?) *(?:: (?P<value>.*))?$")
_TEXT_GPU = re.compile(r"^GPU [0-9A-F]{8}:", re.MULTILINE)
_NAMESPACE = uuid.UUID("6f1b9a52-4f2e-4b0c-9a67-0a8f2f0f5a11")
_CLOCKS = re.compile(r"<supported_clocks>.*?</supported_clocks>", re.DOTALL)
_REMAPPED = re.compile(r"<remapped_rows>.*?</remapped_rows>", re.DOTALL)
_REMAPPED_TEXT = re.compile(r"^    Remapped Rows\n(?:     .*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Damage:
    """Which GPU a fault hits."""

    link_down: tuple[int, int] | None = None
    link_errors: tuple[int, int] | None = None
    off_bus: int | None = None
    values: Mapping[str, int] = field(default_factory=dict)
    """A kind of `HURTS`, and the GPU that has it."""


@dataclass(frozen=True)
class _Field:
    """One value and where the two forms of `nvidia-smi -q` have it."""

    xml: str
    text: str
    value: str
    text_value: str = ""


_ECC, _ECC_TEXT = "ecc_errors", "ECC Errors"
_PAGES = "retired_pages/double_bit_retirement"
HURTS = {
    "row_remap": (
        _Field("remapped_rows/remapped_row_unc", "Remapped Rows/Uncorrectable Error", "1"),
        _Field("remapped_rows/remapped_row_pending", "Remapped Rows/Pending", "Yes"),
        _Field("gpu_recovery_action", "GPU Recovery Action", "Reset"),
    ),
    "row_remap_failure": (
        _Field("remapped_rows/remapped_row_unc", "Remapped Rows/Uncorrectable Error", "8"),
        _Field(
            "remapped_rows/remapped_row_failure", "Remapped Rows/Remapping Failure Occurred", "Yes"
        ),
    ),
    "ecc_errors": (
        _Field(
            f"{_ECC}/volatile/dram_uncorrectable", f"{_ECC_TEXT}/Volatile/DRAM Uncorrectable", "3"
        ),
        _Field(
            f"{_ECC}/aggregate/dram_uncorrectable", f"{_ECC_TEXT}/Aggregate/DRAM Uncorrectable", "5"
        ),
    ),
    "retired_pages": (
        _Field(f"{_PAGES}/retired_count", "Retired Pages/Double Bit ECC", "2"),
        _Field("retired_pages/pending_blacklist", "Retired Pages/Pending Page Blacklist", "Yes"),
        _Field("retired_pages/pending_retirement", "", "Yes"),
    ),
    "recovery_action": (_Field("gpu_recovery_action", "GPU Recovery Action", "Reboot"),),
}
"""What a fault makes a GPU say, in the words of `nvidia-smi -q`."""


def render(
    scenario: Scenario, host: str, *, xml: str, text: str, damage: Damage | None = None
) -> dict[str, str]:
    """Every output of a machine, by file name.

    Args:
        scenario: the machine.
        host: its name, so that two machines have different serial numbers.
        xml: the recording of `nvidia-smi -q -x` that gives the structure.
        text: the recording of `nvidia-smi -q`.
        damage: what is broken.
    """
    hurt = damage or Damage()
    return {
        "q_x.xml": _render_xml(scenario, host, xml, hurt),
        "q.txt": _render_text(scenario, host, text, hurt),
        "list.txt": "".join(f"{_title(scenario, host, i)}\n" for i in range(len(scenario.gpus))),
        "table.txt": _render_table(scenario),
        "nvlink_status.txt": _render_nvlink(scenario, host, hurt),
        "nvlink_errors.txt": _render_links(scenario, host, hurt, _errors_of_link),
        "nvlink_remote.txt": _render_links(scenario, host, hurt, _remote_of_link),
        "nvlink_capabilities.txt": _render_links(scenario, host, hurt, _capabilities_of_link),
        "topo_m.txt": _render_topology(scenario, hurt),
    }


def bus_id(address: str) -> str:
    """A PCI address as nvidia-smi writes it."""
    return f"0000{address}".upper()


def uuid_of(scenario: Scenario, host: str, index: int) -> str:
    """A GPU's UUID: the recorded one, or one of its own for each host."""
    recorded = scenario.gpus[index].uuid
    return recorded or f"GPU-{uuid.uuid5(_NAMESPACE, f'{host}/{scenario.name}/{index}')}"


def _title(scenario: Scenario, host: str, index: int) -> str:
    return f"GPU {index}: {scenario.kind.name} (UUID: {uuid_of(scenario, host, index)})"


def _fields(scenario: Scenario, host: str, index: int, hurt: Damage) -> list[_Field]:
    """The values of one GPU that differ from the recording."""
    gpu, kind = scenario.gpus[index], scenario.kind
    fields = [
        _Field("product_name", "Product Name", kind.name),
        _Field("product_brand", "Product Brand", kind.brand),
        _Field("product_architecture", "Product Architecture", kind.architecture),
        _Field("persistence_mode", "Persistence Mode", "@PERSISTENCE@"),
        _Field("uuid", "GPU UUID", uuid_of(scenario, host, index)),
        _Field("minor_number", "Minor Number", str(index)),
        _Field("vbios_version", "VBIOS Version", kind.vbios),
        _Field("platformInfo/module_id", "Platform Info/Module Id", str(index + 1)),
        _Field("gsp_firmware_version", "GSP Firmware Version", "@DRIVER@"),
        *_pci_fields(scenario, gpu),
        _Field("fb_memory_usage/total", "FB Memory Usage/Total", f"{kind.memory_mib} MiB"),
    ]
    if gpu.serial:
        fields.append(_Field("serial", "Serial Number", gpu.serial))
    if not scenario.recorded:
        fields += _unrecorded_fields(scenario, host, index)
    if scenario.fabric_reported:
        fields += [
            _Field("fabric/state", "Fabric/State", "@FABRIC_STATE@"),
            _Field("fabric/status", "Fabric/Status", "@FABRIC_STATUS@"),
        ]
    for what, hit in hurt.values.items():
        if hit == index:
            fields += HURTS[what]
    return fields


def _pci_fields(scenario: Scenario, gpu: Gpu) -> list[_Field]:
    kind = scenario.kind
    domain, bus, device = gpu.address.split(".")[0].upper().split(":")
    base, sub = kind.pci_class[1], kind.pci_class[3]
    device_id = f"{kind.device}10de".upper()
    board = f"{kind.subsystem_device}{kind.subsystem_vendor}".upper()
    return [
        _Field("board_id", "Board ID", hex(int(bus, 16) * 256 + int(device, 16))),
        _Field("pci/pci_bus", "PCI/Bus", bus, f"0x{bus}"),
        _Field("pci/pci_device", "PCI/Device", device, f"0x{device}"),
        _Field("pci/pci_domain", "PCI/Domain", domain, f"0x{domain}"),
        _Field("pci/pci_base_class", "PCI/Base Classcode", base, f"0x{base}"),
        _Field("pci/pci_sub_class", "PCI/Sub Classcode", sub, f"0x{sub}"),
        _Field("pci/pci_device_id", "PCI/Device Id", device_id, f"0x{device_id}"),
        _Field("pci/pci_bus_id", "PCI/Bus Id", bus_id(gpu.address)),
        _Field("pci/pci_sub_system_id", "PCI/Sub System Id", board, f"0x{board}"),
    ]


def _unrecorded_fields(scenario: Scenario, host: str, index: int) -> list[_Field]:
    """What is true of the recorded machine only."""
    kind = scenario.kind
    reserved = 616 if kind.ecc else 430
    serial = str(uuid.uuid5(_NAMESPACE, f"serial/{host}/{scenario.name}/{index}").int)[:13]
    mode = "gpu_virtualization_mode/virtualization_mode"
    limit = f"{kind.power_limit_w:.2f} W"
    power, power_text = "gpu_power_readings", "GPU Power Readings"
    fields = [
        _Field("serial", "Serial Number", serial if kind.ecc else "N/A"),
        _Field(mode, "GPU Virtualization Mode/Virtualization Mode", "None"),
        _Field("fb_memory_usage/reserved", "FB Memory Usage/Reserved", f"{reserved} MiB"),
        _Field("fb_memory_usage/free", "FB Memory Usage/Free", f"{kind.memory_mib - reserved} MiB"),
        _Field(f"{power}/current_power_limit", f"{power_text}/Current Power Limit", limit),
        _Field(f"{power}/requested_power_limit", f"{power_text}/Requested Power Limit", limit),
        _Field(f"{power}/default_power_limit", f"{power_text}/Default Power Limit", limit),
        _Field(f"{power}/max_power_limit", f"{power_text}/Max Power Limit", limit),
        _Field(f"{power}/min_power_limit", f"{power_text}/Min Power Limit", "100.00 W"),
    ]
    if not kind.ecc:
        fields += [
            _Field("ecc_mode/current_ecc", "ECC Mode/Current", "N/A"),
            _Field("ecc_mode/pending_ecc", "ECC Mode/Pending", "N/A"),
            _Field("fan_speed", "Fan Speed", "0 %"),
        ]
    return fields


def _render_xml(scenario: Scenario, host: str, recording: str, hurt: Damage) -> str:
    start = recording.index("\t<gpu id=")
    stop = recording.rindex("</gpu>\n") + len("</gpu>\n")
    block = recording[start : recording.index("</gpu>\n") + len("</gpu>\n")]
    blocks = []
    for index, gpu in enumerate(scenario.gpus):
        fields = {f.xml: f.value for f in _fields(scenario, host, index, hurt)}
        text = _replace_in_xml(block, fields)
        text = re.sub(r'<gpu id="[^"]*">', f'<gpu id="{bus_id(gpu.address)}">', text)
        if not scenario.recorded:
            text = _CLOCKS.sub("<supported_clocks>N/A</supported_clocks>", text)
        if not scenario.kind.ecc:
            text = _REMAPPED.sub("<remapped_rows>N/A</remapped_rows>", text)
        blocks.append(text)
    head = _replace_in_xml(
        recording[:start],
        {
            "timestamp": "@TIMESTAMP@",
            "driver_version": "@DRIVER@",
            "cuda_version": "@CUDA@",
            "attached_gpus": str(len(scenario.gpus)),
        },
        root="nvidia_smi_log",
    )
    return head + "\n".join(blocks) + recording[stop:]


def _replace_in_xml(block: str, values: Mapping[str, str], root: str = "gpu") -> str:
    """Replace values by their path below the root element, and nothing else."""
    path: list[str] = []
    lines = []
    for line in block.split("\n"):
        value = _XML_VALUE.match(line)
        opened = _XML_OPEN.match(line)
        new = line
        if value:
            key = "/".join([*path, value["tag"]]).replace(f"{root}/", "", 1)
            if key in values:
                new = f"{value['head']}{values[key]}{value['tail']}"
        elif opened:
            path.append(opened["tag"])
        elif _XML_CLOSE.match(line) and path:
            path.pop()
        lines.append(new)
    return "\n".join(lines)


def _render_text(scenario: Scenario, host: str, recording: str, hurt: Damage) -> str:
    starts = [match.start() for match in _TEXT_GPU.finditer(recording)]
    ends = [*starts[1:], len(recording)]
    block = recording[starts[0] : ends[0]]
    blocks = []
    for index, gpu in enumerate(scenario.gpus):
        fields = {f.text: f.text_value or f.value for f in _fields(scenario, host, index, hurt)}
        text = re.sub(r"^GPU \S+", f"GPU {bus_id(gpu.address)}", block)
        text = _replace_in_text(text, fields)
        if not scenario.kind.ecc:
            text = _REMAPPED_TEXT.sub(f"    {'Remapped Rows':<51}: N/A\n", text)
        blocks.append(text)
    head = _replace_in_text(
        recording[: starts[0]],
        {
            "Timestamp": "@TIMESTAMP@",
            "Driver Version": "@DRIVER@",
            "CUDA Version": "@CUDA@",
            "Attached GPUs": str(len(scenario.gpus)),
        },
        depth=0,
    )
    return head + "".join(blocks)


def _replace_in_text(block: str, values: Mapping[str, str], depth: int = 1) -> str:
    """Replace values by the path that their indentation gives, and nothing else."""
    path: list[str] = []
    lines = []
    for line in block.split("\n"):
        match = _TEXT_LINE.match(line)
        new = line
        if match and match["indent"] is not None:
            level = len(match["indent"]) // 4 - depth
            if level >= 0:
                path = [*path[:level], match["key"]]
                key = "/".join(path)
                if match["value"] is not None and key in values:
                    new = line[: len(line) - len(match["value"])] + values[key]
        lines.append(new)
    return "\n".join(lines)


def _render_nvlink(scenario: Scenario, host: str, hurt: Damage) -> str:
    return _render_links(scenario, host, hurt, _state_of_link)


def _render_links(scenario: Scenario, host: str, hurt: Damage, about: _AboutLink) -> str:
    """What a subcommand of `nvidia-smi nvlink` says of every link of every GPU."""
    if scenario.nvlink is None:
        return ""
    lines = []
    for index in range(len(scenario.gpus)):
        lines.append(_title(scenario, host, index))
        if scenario.nvlink.speed == "inactive":
            lines.append("\t NVML: Unable to retrieve NVLink information as all links are inActive")
            continue
        for link in range(scenario.nvlink.links):
            if hurt.link_down == (index, link):
                lines.append(f"\t Link {link}: <inactive>")
                continue
            lines += about(scenario, hurt, index, link)
    return "".join(f"{line}\n" for line in lines)


def _state_of_link(scenario: Scenario, hurt: Damage, index: int, link: int) -> list[str]:
    del hurt, index
    return [f"\t Link {link}: {scenario.nvlink.speed if scenario.nvlink else ''} GB/s"]


_COUNTERS_OF_NVLINK_5 = {
    "Tx packets": "6138",
    "Tx bytes": "497652",
    "Rx packets": "6141",
    "Rx bytes": "497700",
    "Malformed packet Errors": "0",
    "Buffer overrun Errors": "0",
    "Rx Errors": "0",
    "Rx remote Errors": "0",
    "Rx General Errors": "0",
    "Local link integrity Errors": "0",
    "Tx discards": "0",
    "Link recovery successful events": "0",
    "Link recovery failed events": "0",
    "Total link recovery events": "0",
    "Effective Errors": "0",
    "Effective BER": "15e-255",
    "Symbol Errors": "0",
    "Symbol BER": "15e-255",
    "FEC Errors - 0": "36140749276",
    "FEC Errors - 1": "0",
    "FEC Errors - 2": "0",
}
"""The lines of a link in the order of the real ones."""


def _errors_of_link(scenario: Scenario, hurt: Damage, index: int, link: int) -> list[str]:
    count = "@LINK_ERRORS@" if hurt.link_errors == (index, link) else "0"
    if scenario.kind.architecture == "Blackwell":
        bad = ("Effective Errors", "Symbol Errors")
        rows = [
            f"\t Link {link}: {kind}: {count if kind in bad else fixed}"
            for kind, fixed in _COUNTERS_OF_NVLINK_5.items()
        ]
        return [*rows, ""]
    kinds = {"Replay": count, "Recovery": "0", "CRC": count}
    return [*(f"\t Link {link}: {kind} Errors: {number}" for kind, number in kinds.items()), ""]


def _remote_of_link(scenario: Scenario, hurt: Damage, index: int, link: int) -> list[str]:
    """An NVSwitch that the host sees, each with its share of the links; else an unknown device."""
    del hurt
    device, far = "FFFFFFFF:FF:FF.0", 0
    switches = scenario.switches
    if switches and switches.vendor == "10de":
        count = len(switches.addresses)
        device = bus_id(switches.addresses[link % count])
        far = index * -(-(scenario.nvlink.links if scenario.nvlink else 0) // count) + link // count
    return [f"\t Link {link}: Remote Device {device}: Link {far}"]


def _capabilities_of_link(scenario: Scenario, hurt: Damage, index: int, link: int) -> list[str]:
    del scenario, hurt, index
    kinds = (
        "P2P is supported",
        "Access to system memory supported",
        "P2P atomics supported",
        "System memory atomics supported",
        "SLI is supported",
        "Link is supported",
    )
    return [f"\t Link {link}, {kind}: true" for kind in kinds]


def _render_topology(scenario: Scenario, hurt: Damage) -> str:
    gpus = scenario.gpus
    columns = [f"GPU{i}" for i in range(len(gpus))]
    heading = "\t".join([*columns, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\t\x1b[4m{heading}\x1b[0m"]
    for row, gpu in enumerate(gpus):
        cells = [
            " X " if row == column else _path_between(scenario, hurt, (row, column))
            for column in range(len(gpus))
        ]
        lines.append(
            "\t".join([f"GPU{row}", *cells, scenario.cpus, str(max(gpu.numa, 0)), "", "N/A"])
        )
    legend = {
        "X   ": "Self",
        "SYS ": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes"
        " (e.g., QPI/UPI)",
        "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges"
        " within a NUMA node",
        "PHB ": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
        "PXB ": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host"
        " Bridge)",
        "PIX ": "Connection traversing at most a single PCIe bridge",
        "NV# ": "Connection traversing a bonded set of # NVLinks",
    }
    lines += ["", "Legend:", ""]
    lines += [f"  {key} = {meaning}" for key, meaning in legend.items()]
    return "\n".join(lines) + "\n"


def _path_between(scenario: Scenario, hurt: Damage, pair: tuple[int, int]) -> str:
    if scenario.nvlink and scenario.nvlink.topo.startswith("NV"):
        is_hurt = hurt.link_down is not None and hurt.link_down[0] in pair
        return f"NV{int(scenario.nvlink.topo[2:]) - is_hurt}"
    one, other = (scenario.gpus[index] for index in pair)
    return "NODE" if one.numa == other.numa else "SYS"


_TABLE_HEAD = """\
@TIMESTAMP@       
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI @DRIVER:<22@ Driver Version: @DRIVER:<14@ CUDA Version: @CUDA:<8@ |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""  # noqa: W291 - as nvidia-smi writes it
_TABLE_GPU = """\
|{index:>4}  {name:<26.26}@PERSISTENCE:>7@  |   {bus} Off |{ecc:>21} |
| {fan}   35C    P0{draw:>15}W / {limit:>4}W |{used:>8}MiB / {total:>6}MiB |      0%      Default |
|                                         |                        |{mig:>21} |
+-----------------------------------------+------------------------+----------------------+
"""
_TABLE_TAIL = f"""
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name{"":24}GPU Memory |
|        ID   ID                                       {"":24}Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""


def _render_table(scenario: Scenario) -> str:
    kind = scenario.kind
    rows = [
        _TABLE_GPU.format(
            index=index,
            name=kind.name,
            bus=bus_id(gpu.address),
            ecc="0" if kind.ecc else "N/A",
            mig="Disabled" if kind.ecc else "N/A",
            fan="N/A" if kind.ecc else " 0%",
            draw=97,
            limit=kind.power_limit_w,
            used=0,
            total=kind.memory_mib,
        )
        for index, gpu in enumerate(scenario.gpus)
    ]
    return _TABLE_HEAD + "".join(rows) + _TABLE_TAIL
