# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why the driver does not work: what was seen on the host, and a pure judgement of it in words."""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    dpkg,
    driver_leftovers,
    driver_state,
    kernel_modules,
    machine,
    pci,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.driver_leftovers import (
        Leftovers,
        Package,
        Request,
        Stays,
    )

_CHANGED = re.compile(r"^(?:missing|..5......) +(?P<conf>c )?(?P<path>/.+)$", re.MULTILINE)
_SHOWN = 4
_FOREIGN = {"nouveau": "nouveau", "nova_core": "nova_core", "nova-core": "nova_core"}
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Evidence:
    """What was seen; null for what is not there."""

    kernel: str = ""
    release: str | None = None
    """The driver release that belongs here."""
    loaded: str | None = None
    on_disk: str | None = None
    user_space: str | None = None
    packages: tuple[Package, ...] = ()
    strangers: tuple[Package, ...] = ()
    interrupted: bool = False
    changed: tuple[str, ...] = ()
    """Files of the driver's packages that are not as the packages brought them."""
    headers: Mapping[str, bool] | None = None
    headers_version: str | None = None
    """That of the package of headers, where it is installed."""
    foreign: Mapping[str, str] | None = None
    """PCI address of a GPU, and the other kernel driver that holds it."""
    missing: tuple[str, ...] = ()
    """PCI addresses of GPUs that should be on the bus and are not."""
    secure_boot: str = "unknown"
    signer: str = ""


@dataclass(frozen=True)
class Finding:
    """A cause, in words."""

    kind: str
    what: str
    why: str
    fix: str
    grade: str = "broken"
    """`broken`: the driver does not work, or will not. `minor`: in the way of the next
    installation. `by_hand`: only a person can mend it."""
    reports: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return {**asdict(self), "reports": list(self.reports)}


def parse_verify(text: str) -> list[str]:
    """Files that are gone or have another content, from `dpkg --verify`; not configuration."""
    return sorted({m["path"] for m in _CHANGED.finditer(text) if not m["conf"]})


def gather(request: Request, gpus: Sequence[str]) -> Evidence:
    """Look at the host."""
    kernel = request.kernel or platform.release()
    packages = driver_leftovers.query_packages()
    installed = [p.name for p in packages if p.installed]
    devices = [one for one in pci.scan(request.base / "sys/bus/pci/devices") if one.is_gpu]
    loaded, _ = driver_state.parse_proc_version(
        read_text(request.base / "proc/driver/nvidia/version")
    )
    on_disk = driver_state.version_on_disk(request.base, kernel)
    told = run(["modinfo", "-k", kernel, "-F", "signer", "nvidia"], timeout=_TIMEOUT)
    on_bus = {one.address for one in devices}
    bound = {one.address: one.kernel_driver or "" for one in devices}
    verified = run(["dpkg", "--verify", *installed], timeout=_TIMEOUT).stdout if installed else ""
    versions = {p.bare: p.version for p in packages if p.installed}
    return Evidence(
        kernel=kernel,
        release=driver_leftovers.reference(packages, request.version),
        loaded=loaded,
        on_disk=on_disk,
        user_space=driver_state.user_space_version(request.base, versions),
        packages=tuple(packages),
        strangers=tuple(driver_leftovers.strangers(packages, request)),
        interrupted=dpkg.interrupted(),
        changed=tuple(parse_verify(verified)),
        headers=kernel_modules.headers(kernel),
        headers_version=dpkg.query([f"linux-headers-{kernel}"]).version(f"linux-headers-{kernel}"),
        foreign={pci_: name for pci_, name in bound.items() if name in _FOREIGN},
        missing=tuple(sorted(set(map(pci.normal_address, gpus)) - on_bus)),
        secure_boot=machine.secure_boot(),
        signer=told.stdout.strip() if told.ok else "",
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _bus(seen: Evidence, _: Leftovers) -> Finding | None:
    if not seen.missing:
        return None
    return Finding(
        "gpu_off_bus",
        f"GPU {_some(seen.missing)} is not on the PCI bus",
        "no driver can reach a device that the bus does not list",
        "power-cycle the host (a reboot may not be enough); then see to seat, power and risers",
        "by_hand",
        ("xid-003",),
    )


def _headers(seen: Evidence, _: Leftovers) -> Finding | None:
    headers = seen.headers or {}
    if headers.get("build") and headers.get("complete"):
        return None
    folder = f"/lib/modules/{seen.kernel}/build"
    why = (
        f"{folder}/include/generated/autoconf.h is missing"
        if headers.get("build")
        else f"{folder} is not there"
    )
    what = f"the running kernel {seen.kernel} has no usable headers"
    cause = f"{why}, so DKMS builds no module for it and says nothing"
    fix = "they are installed before the driver"
    grade = "broken" if seen.release and seen.on_disk != seen.release else "minor"
    if seen.headers_version is not None:
        fix = (
            f"apt-get install --reinstall linux-headers-{seen.kernel}; where the archive has it no"
            " longer, boot a kernel that it has"
        )
        grade = "by_hand"
    return Finding("headers_missing", what, cause, fix, grade, ("drv-001", "drv-002"))


def _module(seen: Evidence, _: Leftovers) -> Finding | None:
    if not seen.release or seen.on_disk == seen.release:
        return None
    if seen.on_disk is None:
        what = f"there is no nvidia module for the running kernel {seen.kernel}"
        why = f"driver {seen.release} is meant to be here, and modinfo finds no module"
    else:
        what = f"the nvidia module on disk is {seen.on_disk} and not {seen.release}"
        why = "the next boot loads the one on disk"
    fix = "the driver is purged and installed anew, with the headers of the running kernel"
    return Finding("no_module", what, why, fix, "broken", ("drv-007", "drv-025"))


def _loaded(seen: Evidence, _: Leftovers) -> Finding | None:
    if not seen.release or seen.on_disk != seen.release or seen.loaded == seen.release:
        return None
    what = (
        f"module {seen.loaded} is loaded and {seen.on_disk} is on disk"
        if seen.loaded
        else f"the module {seen.on_disk} is on disk and not loaded"
    )
    why = "the host was not rebooted since it was installed, or something keeps it from loading"
    return Finding("not_loaded", what, why, "reboot", "broken", ("drv-005",))


def _libraries(seen: Evidence, _: Leftovers) -> Finding | None:
    library, module = seen.user_space, seen.loaded or seen.on_disk
    if not library or not module or library == module:
        return None
    fix = "module and libraries are installed anew in one version; then a reboot"
    if library == seen.on_disk == seen.release:
        fix = "reboot: the module on disk is the one that the libraries need"
    return Finding(
        "mismatch",
        "module and libraries are of two versions",
        f"module {module}, libraries {library}: NVML says `Driver/library version mismatch`",
        fix,
        "broken",
        ("drv-004", "drv-005"),
    )


def _half(seen: Evidence, _: Leftovers) -> Finding | None:
    broken = [f"{p.name} ({p.status})" for p in seen.strangers if p.broken]
    if not broken and not seen.interrupted:
        return None
    return Finding(
        "half_configured",
        f"packages are half installed: {_some(broken)}" if broken else "dpkg was interrupted",
        "an installation failed or was interrupted, and stops every other one",
        "they are purged and installed anew",
        "broken",
        ("drv-034",),
    )


def _mixed(seen: Evidence, _: Leftovers) -> Finding | None:
    foreign = [f"{p.name} {p.version}" for p in seen.strangers if not p.broken]
    if not foreign:
        return None
    return Finding(
        "mixed_sources",
        "packages of the driver are of two versions or sources",
        f"beside {seen.release}: {_some(foreign)}",
        "all of them are purged, then one set comes from one source",
        "broken",
        ("drv-004", "drv-007"),
    )


def _runfile(seen: Evidence, left: Leftovers) -> Finding | None:
    if not left.runfile:
        return None
    beside = "over the packages" if any(p.installed for p in seen.packages) else "and no packages"
    return Finding(
        "runfile",
        f"NVIDIA's installer was at work here, {beside}",
        f"{left.runfile} is there, and no package has it",
        "nvidia-uninstall -s, or what its log lists is taken away; then packages bring the driver",
        "broken",
        ("drv-007", "drv-025"),
    )


def _changed(seen: Evidence, _: Leftovers) -> Finding | None:
    if not seen.changed:
        return None
    return Finding(
        "files_changed",
        "files of the driver's packages are gone or were overwritten",
        f"dpkg --verify names {_some(seen.changed)}",
        "the packages are purged and installed anew",
        "broken",
        ("drv-004",),
    )


def _foreign(seen: Evidence, _: Leftovers) -> Finding | None:
    if not seen.foreign:
        return None
    held = [f"{pci_} by {name}" for pci_, name in sorted(seen.foreign.items())]
    return Finding(
        "nouveau_bound",
        "another kernel driver holds the GPU",
        _some(held),
        "it is kept out of modprobe and initramfs; then a reboot (never unload it by hand)",
        "broken",
        ("drv-021", "drv-022"),
    )


def _signed(seen: Evidence, _: Leftovers) -> Finding | None:
    if seen.secure_boot != "enabled" or seen.loaded or not seen.on_disk or seen.signer:
        return None
    return Finding(
        "secure_boot",
        "Secure Boot refuses the module",
        f"the module {seen.on_disk} is on disk, nobody signed it, and Secure Boot is enabled",
        "set llmetal_driver.secure_boot to enrol and confirm the key at the console, or turn"
        " Secure Boot off in the firmware",
        "by_hand",
    )


def _left_modules(_: Evidence, left: Leftovers) -> Finding | None:
    found = [*left.modules, *(f"DKMS {tree}" for tree in left.dkms)]
    if not found:
        return None
    return Finding(
        "old_modules",
        "modules of other installations are left",
        _some(found),
        "they are removed, and the index of modules is made anew",
        "minor",
        ("drv-025",),
    )


def _left_files(_: Evidence, left: Leftovers) -> Finding | None:
    if not left.files:
        return None
    return Finding(
        "stray_files",
        "libraries, programs or configuration of the driver belong to no package",
        _some(left.files),
        "they are removed, and the loader's cache is made anew",
        "minor",
        ("drv-004",),
    )


def _left_choices(_: Evidence, left: Leftovers) -> Finding | None:
    found = [f"diversion of {one}" for one in left.diversions]
    found += [f"alternative {one}" for one in left.alternatives]
    if not found:
        return None
    return Finding(
        "diverted",
        "diversions or alternatives of packages that are gone",
        _some(found),
        "they are removed, and diverted files put back",
        "minor",
    )


def _purged(_: Evidence, left: Leftovers) -> Finding | None:
    found = [p.name for p in left.packages if p.status == "config-files"]
    if not found:
        return None
    return Finding(
        "old_configuration",
        "removed packages of the driver left their configuration",
        _some(found),
        "it is purged",
        "minor",
    )


_CHECKS: tuple[Callable[[Evidence, Leftovers], Finding | None], ...] = (
    _bus,
    _signed,
    _runfile,
    _half,
    _mixed,
    _module,
    _headers,
    _libraries,
    _loaded,
    _foreign,
    _changed,
    _left_modules,
    _left_files,
    _left_choices,
    _purged,
)
_REINSTALL = {"no_module", "files_changed", "runfile", "half_configured"}


def diagnose(seen: Evidence, left: Leftovers) -> list[Finding]:
    """Every cause that can be seen, the deepest first."""
    return [finding for check in _CHECKS if (finding := check(seen, left))]


def wants_reinstall(seen: Evidence, left: Leftovers) -> bool:
    """Whether the driver's packages go although each of them may look right."""
    kinds = {finding.kind for finding in diagnose(seen, left)}
    return bool(_REINSTALL & kinds) or ("mismatch" in kinds and seen.user_space != seen.release)


def in_words(findings: Sequence[Finding], stays: Sequence[Stays]) -> list[str]:
    """Findings and what nobody can attribute, a line each."""
    lines = []
    for finding in findings:
        reports = f" [{', '.join(finding.reports)}]" if finding.reports else ""
        lines.append(f"{finding.what}: {finding.why}. What to do: {finding.fix}{reports}")
    lines += [
        f"{one.path} stays, for nobody can say whose it is: {one.why}. What to do: remove it by"
        " hand if it is not wanted"
        for one in stays
    ]
    return lines
