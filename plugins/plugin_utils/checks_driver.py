# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the driver: what is on the host already, and whether the planned one can work."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_data
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    is_at_least,
    numbers,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import Context

_FOREIGN = {"nouveau", "nova_core", "nova-core"}


def headers(context: Context, findings: Findings) -> None:
    """Headers that are installed and of no use: DKMS then builds nothing."""
    facts = context.facts
    if not context.wants_driver or not facts.headers_installed:
        return
    seen = context.look.at("kernel", "headers")
    folder = f"/lib/modules/{facts.kernel}/build"
    if seen.flag("build") is False:
        fact = f"{folder} leads nowhere"
    elif seen.flag("complete") is False:
        fact = f"{folder}/include/generated/autoconf.h is missing"
    else:
        return
    findings.add(
        "headers-broken",
        fact=fact,
        fix=f"apt-get install --reinstall linux-headers-{facts.kernel}; where the archive has "
        "them no "
        "longer, upgrade the kernel and reboot first",
    )


def kernel_pair(context: Context, findings: Findings) -> None:
    """A driver that is known not to build for this kernel."""
    release = context.driver_release
    if not context.wants_driver or release is None:
        return
    kernel = kernel_version(context.facts.kernel, context.facts.packages)
    for pair in _pairs():
        closed_only = pair["modules"] == "proprietary" and context.driver_modules == "open"
        if closed_only or not _between(release, pair["driver_from"], pair["driver_below"]):
            continue
        if _between(kernel, pair["kernel_from"], pair["kernel_below"]):
            findings.add(
                "dkms-kernel-pair",
                fact=f"driver {release} on Linux {kernel}: {pair['says']}",
                fix="take a newer driver release, open kernel modules, or an older kernel",
            )
            return


@functools.cache
def _pairs() -> Sequence[dict[str, Any]]:
    pairs: list[dict[str, Any]] = load_data("kernel_pairs.yml")["pairs"]
    return pairs


def _between(version: str, first: str, below: str | None) -> bool:
    return is_at_least(version, first) and not (below and is_at_least(version, below))


def kernel_version(running: str, packages: Any) -> str:  # noqa: ANN401 - a mapping of texts
    """The kernel's own version: Debian's 6.1.0-18 is 6.1.76, which only its package says."""
    package = upstream(str(packages.get(f"linux-image-{running}", "")))
    own = ".".join(map(str, numbers(running)))
    return package if package and is_at_least(package, own) else own


def module_mismatch(context: Context, findings: Findings) -> None:
    """A loaded module and libraries of two versions, and no run that would mend it."""
    driver = context.look.at("gpu", "driver")
    loaded, libraries = driver.text("loaded"), driver.text("user_space")
    if not context.uses_own_driver or not loaded or not libraries or loaded == libraries:
        return
    disk = driver.text("on_disk")
    if disk == libraries:
        fix = "reboot: the module on disk is the one that the libraries need"
    else:
        fix = "apt-get --fix-broken install; install module and libraries of one version; reboot"
    findings.add(
        "kernel-module-mismatch",
        fact=f"module {loaded}, libraries {libraries}, module on disk {disk or 'none'}",
        fix=fix,
    )


def no_module(context: Context, findings: Findings) -> None:
    """A driver that is there, but not for the kernel that runs."""
    driver, kernel = context.look.at("gpu", "driver"), context.facts.kernel
    kernels = context.look.texts("modules", "kernels")
    if not context.uses_own_driver or driver.text("loaded") or driver.text("on_disk"):
        return
    installed = driver.text("user_space") or kernels
    if not installed or kernel in kernels or not context.look.known("modules", "kernels"):
        return
    by_hand = context.look.text("modules", "installer") and not context.look.texts(
        "modules", "dkms"
    )
    fix = "run the installer again with --dkms, or use packages (llmetal_driver.source)"
    findings.add(
        "kernel-no-module",
        fact=f"Linux {kernel} has no nvidia module; those that have: "
        f"{', '.join(kernels) or 'none'}",
        fix=fix
        if by_hand
        else f"install linux-headers-{kernel}, then dkms autoinstall -k {kernel}",
    )


def run_file(context: Context, findings: Findings) -> None:
    """A driver from a .run file beside which packages would be installed."""
    installer = context.look.text("modules", "installer")
    alone = context.facts.driver_loaded and not context.facts.has_driver_packages
    if context.wants_driver and installer and not alone:
        findings.add(
            "run-file-driver",
            fact=f"{installer} is there",
            fix="run nvidia-uninstall and reboot; then packages bring the driver",
        )


def libraries(context: Context, findings: Findings) -> None:
    """Libraries of two drivers, of which the loader takes whichever it finds first."""
    versions = context.look.texts("libraries", "libnvidia-ml")
    if context.needs_gpu and len(versions) > 1:
        findings.add(
            "driver-libraries-twice",
            fact=f"ldconfig -p lists libnvidia-ml of {' and '.join(versions)}",
            fix="remove the older one (its package, or nvidia-uninstall), then run ldconfig",
        )


def foreign_modules(context: Context, findings: Findings) -> None:
    """GPUs that another driver holds."""
    held, vfio = [], []
    for position, gpu, row, _ in context.gpus():
        bound = row.text("kernel_driver")
        used = bool(context.users_of(position))
        if bound in _FOREIGN:
            held.append((gpu.pci, bound, used))
        elif bound not in {None, "nvidia"} and used:
            vfio.append(f"{gpu.pci} is bound to {bound}")
    if held and context.wants_driver:
        findings.add(
            "nouveau-bound",
            fact=", ".join(f"{pci} is bound to {bound}" for pci, bound, _ in held),
            fix="nothing before the run, which keeps it from loading; then the host must reboot "
            "(never "
            "unload it by hand)",
        )
    elif any(used for _, _, used in held):
        findings.add(
            "nouveau-holds-gpu",
            fact=", ".join(f"{pci} is bound to {bound}" for pci, bound, used in held if used),
            fix="let llmetal install the driver (llmetal_driver.source), or blacklist the module "
            "in "
            "/etc/modprobe.d, run update-initramfs -u and reboot",
        )
    if vfio:
        findings.add(
            "gpu-other-driver",
            fact=", ".join(vfio),
            fix="give the GPU back to this host (driverctl unset-override), or leave it out of "
            "gpus",
        )


def nouveau_returns(context: Context, findings: Findings) -> None:
    """A driver that works now, and nouveau that nothing keeps out at the next boot."""
    modules = context.look.at("modules")
    if not context.uses_own_driver or not context.facts.driver_loaded:
        return
    if (
        modules.flag("nouveau")
        and modules.known("kept_out")
        and not modules.texts("kept_out", "nouveau")
    ):
        findings.add(
            "nouveau-returns",
            fact="no file of modprobe.d blacklists nouveau",
            fix="write 'blacklist nouveau' to a file of /etc/modprobe.d and run update-initramfs "
            "-u",
        )


def operator(context: Context, findings: Findings) -> None:
    """A host whose driver is Kubernetes' business."""
    if context.wants_driver and context.look.flag("platform", "operator_driver"):
        findings.add(
            "operator-driver",
            fact="the GPU operator of Kubernetes has its driver under /run/nvidia/driver",
            fix="set llmetal_driver.source to none, or switch the operator's driver off",
        )


CHECKS = (
    headers,
    kernel_pair,
    module_mismatch,
    no_module,
    run_file,
    libraries,
    foreign_modules,
    nouveau_returns,
    operator,
)
