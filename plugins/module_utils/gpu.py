# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host: gathered once as evidence, then read as a pure function of it."""

from __future__ import annotations

import os
import platform
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_state,
    kernel_log,
    pci,
    processes,
    units,
    xids,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.driver_state import DriverState
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.nvidia_smi import (
    SmiGpu,
    SmiReport,
    parse_query,
)
from ansible_collections.llmetal.inference.plugins.module_utils.nvlink import GpuLinks, parse_nvlink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.pci import PciDevice

_NO_FABRIC: dict[str, Any] = {
    "state": None,
    "status": None,
    "clique": None,
    "cluster": None,
    "health": {},
}
_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")
_SMI_TIMEOUT = 60.0
_TOOL_TIMEOUT = 10.0
_SMI_PATHS = "/usr/bin:/bin:/usr/local/bin:/usr/lib/wsl/lib:/opt/bin"


@dataclass(frozen=True)
class Evidence:
    """What was read on the host, unjudged."""

    pci: Sequence[PciDevice] = ()
    driver: DriverState = field(default_factory=DriverState)
    kernel: str = ""
    boot_id: str | None = None
    smi_path: str | None = None
    query: CommandResult | None = None
    nvlink: CommandResult | None = None
    smi_error: str | None = None
    nvlink_error: str | None = None


def _loaded(root: Path, module: str, devices: Sequence[PciDevice]) -> bool:
    bound = any((d.kernel_driver or "").replace("-", "_") == module for d in devices)
    return bound or (root / "sys/module" / module).exists()


def gather(
    *,
    root: str = "/",
    packages: Mapping[str, str] | None = None,
    timeout: float = _SMI_TIMEOUT,
) -> Evidence:
    """Look at the host; what does not wait for something else runs beside it.

    Args:
        root: the root of the file system, another one only in tests.
        packages: installed packages and their versions, where the caller has them.
        timeout: seconds that one nvidia-smi may take.
    """
    base = Path(root)
    kernel = platform.release()
    boot_id = (read_text(base / "proc/sys/kernel/random/boot_id") or "").strip() or None
    smi = find_smi() if root == "/" else None
    with ThreadPoolExecutor() as pool:
        asked = {}
        if smi:
            asked = {
                "query": pool.submit(ask, [smi, "-q", "-x"], timeout),
                "nvlink": pool.submit(ask, [smi, "nvlink", "--status"], timeout),
            }
        devices = pci.scan(base / "sys/bus/pci/devices")
        state = _driver(base, kernel, devices, packages)
    query, error = asked["query"].result() if asked else (None, None)
    nvlink, nvlink_error = asked["nvlink"].result() if asked else (None, None)
    if query is None or not query.ok:
        nvlink = nvlink_error = None
    return Evidence(
        devices, state, kernel, boot_id, smi, query, nvlink, error, nvlink_error=nvlink_error
    )


def find_smi() -> str | None:
    """The path of nvidia-smi, in the usual places too: a sudo PATH may lack them."""
    return shutil.which("nvidia-smi", path=f"{os.environ.get('PATH', '')}:{_SMI_PATHS}")


def ask(argv: Sequence[str], timeout: float) -> tuple[CommandResult | None, str | None]:
    """What a program answered, or why it did not."""
    try:
        return run(argv, timeout=timeout), None
    except LlmetalError as problem:
        return None, str(problem)


def _driver(
    base: Path, kernel: str, devices: Sequence[PciDevice], packages: Mapping[str, str] | None
) -> DriverState:
    """The driver in its places."""
    loaded, flavour = driver_state.parse_proc_version(
        read_text(base / "proc/driver/nvidia/version")
    )
    user_space = driver_state.user_space_version(base, packages or {})
    if user_space is None and packages is None and base == Path("/"):
        user_space = driver_state.user_space_version(base, _driver_packages())
    on_disk, disk_flavour = driver_state.module_on_disk(base, kernel)
    newest = driver_state.newest_kernel(base, kernel)
    return DriverState(
        loaded=loaded,
        flavour=flavour,
        on_disk=on_disk,
        user_space=user_space,
        nouveau=_loaded(base, "nouveau", devices),
        nova=_loaded(base, "nova_core", devices),
        disk_flavour=disk_flavour,
        newest_kernel=newest,
        newest_on_disk=driver_state.version_on_disk(base, newest) if newest else None,
    )


def _driver_packages() -> dict[str, str]:
    """The driver's installed packages, where nobody listed them yet."""
    told, _ = ask(
        ["dpkg-query", "-W", "-f=${Package}\t${Version}\t${db:Status-Status}\n", "*nvidia*"],
        _TOOL_TIMEOUT,
    )
    rows = (line.split("\t") for line in (told.stdout if told else "").splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}  # noqa: PLR2004 - the three fields asked for


def _problem(what: str, why: str, fix: str) -> dict[str, str]:
    return {"what": what, "why": why, "fix": fix}


def _read_query(evidence: Evidence) -> tuple[SmiReport, list[dict[str, str]]]:
    """What nvidia-smi reported, and what was wrong with it."""
    empty = SmiReport(None, None)
    if evidence.smi_error:
        fix = "look for Xid messages in the journal; a GPU that hangs needs a reset or a reboot"
        return empty, [_problem("nvidia-smi does not answer", evidence.smi_error, fix)]
    if evidence.query is None:
        return empty, []
    if evidence.query.ok:
        try:
            return parse_query(evidence.query.stdout), []
        except LlmetalError as error:
            return empty, [_problem(error.what, error.why, error.fix)]
    message = _message(evidence.query)
    if "version mismatch" in message:
        fix = "reboot, so that the module on disk is loaded; keep both of one version from then on"
    elif "communicate" in message:
        fix = "reboot if reboot_required says so; else install kernel headers and build the module"
    else:
        fix = "run nvidia-smi on the host and look for Xid messages in the journal"
    return empty, [_problem("nvidia-smi has failed", message, fix)]


def _message(result: CommandResult) -> str:
    lines = [line.strip() for line in (result.stdout + "\n" + result.stderr).splitlines()]
    return " ".join(line for line in lines if line)[:400]


def _gpu(
    device: PciDevice | None,
    smi: SmiGpu | None,
    links: GpuLinks | None,
) -> dict[str, Any]:
    """One GPU, from the bus and from the driver; either may be missing."""
    result: dict[str, Any] = {
        "index": smi.index if smi else None,
        "pci_address": device.address if device else smi.pci_address if smi else "",
        "vendor_id": device.vendor if device else pci.NVIDIA,
        "device_id": device.device if device else smi.device_id if smi else None,
        "subsystem_id": (device.subsystem or None) if device else None,
        "pci_class": device.pci_class if device else None,
        "kernel_driver": device.kernel_driver if device else None,
        "numa_node": device.numa_node if device else None,
        "name": smi.name if smi else None,
        "uuid": smi.uuid if smi else None,
        "memory_mib": smi.memory_mib if smi else None,
        "persistence": smi.persistence if smi else None,
        "mig": smi.mig if smi else None,
        "ecc": smi.ecc if smi else None,
        "row_remap": smi.row_remap if smi else None,
        "power_w": smi.power_w if smi else None,
        "power_limit_w": smi.power_limit_w if smi else None,
        "slowdown": smi.slowdown if smi else None,
        "clocks_limited_by": smi.clocks_limited_by if smi else None,
        "temperature_c": smi.temperature_c if smi else None,
        "memory_temperature_c": smi.memory_temperature_c if smi else None,
        "slowdown_temperature_c": smi.slowdown_temperature_c if smi else None,
        "retired_pages": smi.retired_pages if smi else None,
        "virtualization": smi.virtualization if smi else None,
        "recovery_action": smi.recovery_action if smi else None,
        "nvlink": [link.as_dict() for link in links.links] if links else [],
        "nvlink_state": links.state if links else "none" if smi else None,
        "fabric": smi.fabric if smi else _NO_FABRIC,
        "processes": smi.processes if smi else [],
        "source": "driver" if smi else "pci",
    }
    return result


def _merge(evidence: Evidence, smi: SmiReport) -> list[dict[str, Any]]:
    """Bus and driver side by side, joined by PCI address."""
    parsed = parse_nvlink(evidence.nvlink.stdout) if evidence.nvlink else []
    by_uuid = {links.uuid: links for links in parsed if links.uuid}
    by_index = {links.index: links for links in parsed}
    reported = {gpu.pci_address: gpu for gpu in smi.gpus}

    def links_of(gpu: SmiGpu | None) -> GpuLinks | None:
        if gpu is None:
            return None
        found = by_uuid.get(gpu.uuid or "") or by_index.get(gpu.index)
        # The number alone may be that of another GPU, where one of them was left out.
        is_other = found and found.uuid and gpu.uuid and found.uuid != gpu.uuid
        return None if is_other else found

    gpus = []
    for device in (device for device in evidence.pci if device.is_gpu):
        found = reported.pop(device.address, None)
        gpus.append(_gpu(device, found, links_of(found)))
    gpus += [_gpu(None, gpu, links_of(gpu)) for gpu in reported.values()]
    return gpus


def _gpu_problems(gpu: dict[str, Any]) -> list[dict[str, str]]:
    """What one GPU says of itself."""
    where = gpu["pci_address"]
    found = []
    remap = gpu["row_remap"] or {}
    if remap.get("failure"):
        why = "the driver reports a row remap failure"
        found.append(_problem(f"GPU {where} has failed memory", why, "have the GPU replaced"))
    if remap.get("pending"):
        why = "a row remap is pending"
        found.append(_problem(f"GPU {where} waits for a reset", why, "drain and reset the GPU"))
    if (gpu["retired_pages"] or {}).get("pending"):
        why = "memory pages are to be retired"
        found.append(_problem(f"GPU {where} waits for a reset", why, "drain and reset the GPU"))
    if errors := (gpu["ecc"] or {}).get("volatile_uncorrected"):
        why = f"{errors} uncorrected memory errors since the driver was loaded"
        fix = "drain and reset the GPU; have it replaced where they come back"
        found.append(_problem(f"GPU {where} has memory errors", why, fix))
    if gpu["slowdown"]:
        why = f"active: {', '.join(gpu['slowdown'])}"
        fix = "see to cooling, power cables and power supplies"
        found.append(_problem(f"GPU {where} is slowed down", why, fix))
    action = gpu["recovery_action"]
    if action and action.lower() != "none":
        why = f"its recovery action is {action}"
        found.append(_problem(f"GPU {where} asks for recovery", why, "drain it and do as it says"))
    if gpu["nvlink_state"] == "partial":
        down = [str(link["link"]) for link in gpu["nvlink"] if link["state"] == "inactive"]
        why = f"link {', '.join(down)} inactive, the others active"
        fix = "drain the host, reset its GPUs, then restart it; a link that stays down is hardware"
        found.append(_problem(f"GPU {where} has NVLinks down", why, fix))
    return found


def _host_problems(
    state: DriverState, gpus: Sequence[dict[str, Any]], smi: SmiReport
) -> list[dict[str, str]]:
    """What does not fit together on the host."""
    found = []
    if state.loaded and state.user_space and state.loaded != state.user_space:
        why = f"module {state.loaded}, libraries {state.user_space}, on disk {state.on_disk}"
        fix = "reboot where the disk has the libraries' version; else install both of one version"
        found.append(_problem("module and libraries are of two versions", why, fix))
    if state.user_space and state.on_disk is None and state.loaded is None and gpus:
        why = f"libraries {state.user_space} and no module for the running kernel"
        fix = "install the headers of the running kernel and have the module built"
        found.append(_problem("the driver has no module for this kernel", why, fix))
    lost = [gpu["pci_address"] for gpu in gpus if smi.gpus and gpu["source"] == "pci"]
    if lost:
        why = f"the bus lists {', '.join(lost)} and nvidia-smi does not"
        fix = "look for Xid 79 in the journal; power-cycle the host, then see to slot and power"
        found.append(_problem("a GPU is off the bus", why, fix))
    if state.newest_kernel and state.newest_on_disk is None and gpus:
        why = f"{state.newest_kernel}, the newest installed kernel, has no driver on its disk"
        fix = "install its headers and have the module built before the host is rebooted"
        if state.loaded or state.on_disk:
            found.append(_problem("a reboot would lose the driver", why, fix))
    if state.loaded and (state.nouveau or state.nova):
        why = "nouveau or nova_core is loaded beside nvidia"
        fix = "keep it out of the initramfs and reboot"
        found.append(_problem("two drivers want the GPUs", why, fix))
    return found


def report(evidence: Evidence) -> dict[str, Any]:
    """What gpu_info and the survey say of the GPUs, from the evidence alone."""
    smi, problems = _read_query(evidence)
    gpus = _merge(evidence, smi)
    on_bus = [device for device in evidence.pci if device.is_gpu]
    state = evidence.driver
    reasons = driver_state.reboot_reasons(state, on_bus)
    problems += _host_problems(state, gpus, smi)
    for gpu in gpus:
        problems += _gpu_problems(gpu)
    query = evidence.query
    return {
        "gpus": gpus,
        "switches": [
            {"pci_address": device.address, "device_id": device.device}
            for device in evidence.pci
            if device.is_switch
        ],
        "driver": {
            **asdict(state),
            "smi": {
                "path": evidence.smi_path,
                "rc": query.rc if query else None,
                "message": evidence.smi_error or (_message(query) if query and query.rc else None),
            },
        },
        "cuda_version": smi.cuda_version,
        "kernel": evidence.kernel,
        "boot_id": evidence.boot_id,
        "reboot_required": bool(reasons),
        "reboot_reasons": reasons,
        "problems": problems,
    }


def collect(
    *, timeout: float = _SMI_TIMEOUT, table: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Look at this host and say all that it has.

    Args:
        timeout: seconds that one nvidia-smi may take.
        table: what the Xids mean, by number.
    """
    with ThreadPoolExecutor() as pool:
        boot_id = (read_text("/proc/sys/kernel/random/boot_id") or "").strip() or None
        asked = pool.submit(kernel_log.history, boot_id)
        services = pool.submit(show_units)
        info = report(gather(timeout=timeout))
        history = asked.result()
    for gpu in info["gpus"]:
        gpu["processes"] = [_with_owner(process) for process in gpu["processes"]]
    return {
        **info,
        "units": services.result(),
        "xid_history": history and {**history, "xids": xids.explain(history["xids"], table)},
    }


def show_units() -> Mapping[str, Mapping[str, str]] | None:
    """The units that serve the driver; None where systemd does not answer."""
    try:
        return units.show(_UNITS)
    except LlmetalError:
        return None


def _with_owner(process: Mapping[str, Any]) -> dict[str, Any]:
    """A process with its unit and program, where /proc shows them."""
    told = processes.describe(process["pid"]) if process["pid"] else {}
    return {**process, "unit": told.get("unit"), "program": told.get("program")}


def prove(info: dict[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the driver is what was asked for; fail-closed, what cannot be read is not right.

    Args:
        info: the result of `report`.
        expected: `version`, `modules` (open, proprietary) and `gpus`, a list of PCI addresses;
            what is absent or null is not asked.
    """
    driver = info["driver"]
    why = []
    version = expected.get("version")
    if version:
        why += [
            f"{place.replace('_', ' ')} is {driver[place] or 'none'}, not {version}"
            for place in ("loaded", "on_disk", "user_space")
            if driver[place] != version
        ]
    modules = expected.get("modules")
    if modules and driver["flavour"] != modules:
        why.append(f"the loaded modules are {driver['flavour'] or 'none'}, not {modules}")
    if driver["smi"]["rc"] != 0:
        why.append(driver["smi"]["message"] or "there is no nvidia-smi")
    answering = {gpu["pci_address"] for gpu in info["gpus"] if gpu["source"] == "driver"}
    on_bus = {gpu["pci_address"] for gpu in info["gpus"]}
    wanted = {pci.normal_address(address) for address in expected.get("gpus") or []} | on_bus
    if not wanted:
        why.append("the PCI bus shows no NVIDIA GPU")
    if wanted - answering:
        why.append(f"no answer from the GPU {', '.join(sorted(wanted - answering))}")
    return {
        "name": "driver",
        "ok": not why,
        "version": driver["loaded"],
        "modules": driver["flavour"],
        "gpus": len(answering),
        "why": why,
    }
