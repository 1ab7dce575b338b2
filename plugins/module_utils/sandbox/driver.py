# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver: packages named and versioned like those of NVIDIA's repository for Debian.

Only the names, the relations and the behaviour that a host shows are simulated; not one byte of
NVIDIA's software is in them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import elf
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.deb import (
    File,
    Link,
    Package,
)

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ("570.211.01", "580.159.04", "580.178.04", "595.91.07")
FIRST_UNVERSIONED_FABRIC = 580
_LAST_BRANCH_METAPACKAGE = 580
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_NOTE = (
    "Simulated by the llmetal sandbox: it has the name and the relations of\n"
    "NVIDIA's package, and behaves like it towards an administrator. It holds\n"
    "none of NVIDIA's software and drives no hardware."
)
_UNIT = """\
[Unit]
Description={what} (simulated)
{conditions}
[Service]
Type=simple
ExecStart=/usr/bin/{program}
{service}
[Install]
WantedBy=multi-user.target
"""


def branch_of(version: str) -> int:
    """The driver branch of a version."""
    return int(version.split(".", 1)[0])


def driver_packages(guest: Path, versions: tuple[str, ...] = VERSIONS) -> list[Package]:
    """Every package of every version."""
    return [package for version in versions for package in _one_version(guest, version)]


def header_packages(kernel: str) -> list[Package]:
    """The headers of the running kernel, as a distribution would have them."""
    upstream = re.sub(r"[^A-Za-z0-9.+~-]", "~", kernel)
    return [
        Package(
            name=f"linux-headers-{kernel}",
            version=f"{upstream}-1",
            description=f"Header files for Linux {kernel} (simulated)\n"
            "Made by the llmetal sandbox for the kernel that this machine runs.\n"
            "No module can be compiled with it.",
            files={
                f"usr/src/linux-headers-{kernel}/include/generated/utsrelease.h": File(
                    f'#define UTS_RELEASE "{kernel}"\n'.encode()
                ),
                f"usr/src/linux-headers-{kernel}/include/generated/autoconf.h": File(
                    b"/* simulated */\n"
                ),
                f"usr/src/linux-headers-{kernel}/Makefile": File(b"# simulated\n"),
                f"lib/modules/{kernel}/build": Link(f"/usr/src/linux-headers-{kernel}"),
            },
            scripts={
                "postinst": "#!/bin/sh\nset -e\n"
                "if [ -d /etc/kernel/header_postinst.d ]; then\n"
                f'  run-parts --arg="{kernel}" /etc/kernel/header_postinst.d\nfi\n'
            },
        )
    ]


def _one_version(guest: Path, version: str) -> list[Package]:
    full, branch = f"{version}-1", branch_of(version)
    exactly = f"(= {full})"

    def make(name: str, what: str, depends: str = "", **more: object) -> Package:
        text = f"{what} (simulated)\n{_NOTE}"
        return Package(name, full, text, depends, **more)  # type: ignore[arg-type] # passed on

    def program(name: str) -> File:
        text = (guest / name).read_text(encoding="utf-8").replace("@VERSION@", version)
        return File(text.encode(), 0o755)

    kernels = f"nvidia-kernel-open-dkms {exactly} | nvidia-kernel-dkms {exactly}"
    packages = [
        make(
            "nvidia-driver-cuda",
            "NVIDIA driver CUDA integration components",
            f"libcuda1 {exactly}, libnvidia-ml1 {exactly},"
            f" nvidia-persistenced {exactly}, {kernels}",
            files={"usr/bin/nvidia-smi": program("nvidia-smi.py")},
        ),
        _library(make, "libcuda1", "libcuda.so", version),
        _library(make, "libnvidia-ml1", "libnvidia-ml.so", version),
        make(
            "nvidia-persistenced",
            "daemon to maintain persistent software state in the NVIDIA driver",
            files={
                "usr/bin/nvidia-persistenced": program("nvidia-persistenced.sh"),
                "usr/lib/systemd/system/nvidia-persistenced.service": File(
                    _UNIT.format(
                        what="NVIDIA Persistence Daemon",
                        program="nvidia-persistenced",
                        conditions="",
                        service="",
                    ).encode()
                ),
            },
            scripts=_unit_scripts("nvidia-persistenced", enable=True),
        ),
        make("nvidia-open", "NVIDIA driver metapackage, open modules", _both("open-", exactly)),
        make("cuda-drivers", "NVIDIA driver metapackage, proprietary modules", _both("", exactly)),
        *_kernel_modules(make, guest, version),
        *_pinning(make, version),
        *_fabric(make, program, version),
    ]
    if branch == _LAST_BRANCH_METAPACKAGE:
        floor = "(>= 580.65.06)"
        packages += [
            make(f"{name}-{branch}", f"NVIDIA driver metapackage, {branch}", f"{name} {floor}")
            for name in ("nvidia-open", "cuda-drivers")
        ]
    return packages


def _both(flavour: str, exactly: str) -> str:
    return f"nvidia-driver-cuda {exactly}, nvidia-kernel-{flavour}dkms {exactly}"


def _library(make: _Make, package: str, library: str, version: str) -> Package:
    return make(
        package,
        f"NVIDIA library {library}.1",
        files={
            f"{_LIBRARIES}/{library}.{version}": File(elf.shared_library(f"{library}.1")),
            f"{_LIBRARIES}/{library}.1": Link(f"{library}.{version}"),
        },
        scripts={"postinst": "#!/bin/sh\nset -e\nldconfig\n"},
    )


def _kernel_modules(make: _Make, guest: Path, version: str) -> list[Package]:
    packages = []
    build = (guest / "dkms-build.sh").read_text(encoding="utf-8")
    for flavour, name, other, licence in (
        ("Open", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms", "Dual MIT/GPL"),
        ("Proprietary", "nvidia-kernel-dkms", "nvidia-kernel-open-dkms", "NVIDIA"),
    ):
        module = elf.kernel_module(
            {
                "license": licence,
                "version": version,
                "supported": "external",
                "alias": "pci:v000010DEd*sv*sd*bc03sc02i00*",
                "depends": "",
                "name": "nvidia",
                "vermagic": "simulated",
            }
        )
        script = build.replace("@VERSION@", version)
        packages.append(
            make(
                name,
                f"NVIDIA {flavour.lower()} kernel module DKMS source",
                fields={"Conflicts": other, "Provides": f"nvidia-kernel-dkms-any (= {version})"},
                files={
                    f"usr/src/nvidia-{version}/nvidia.ko": File(module),
                    "usr/lib/dkms/nvidia-sandbox-build": File(script.encode(), 0o755),
                    "etc/kernel/header_postinst.d/dkms-nvidia-sandbox": File(
                        b'#!/bin/sh\nexec /usr/lib/dkms/nvidia-sandbox-build "$1"\n', 0o755
                    ),
                },
                scripts={
                    "postinst": "#!/bin/sh\nset -e\n"
                    'if [ "$1" = configure ]; then\n'
                    '  /usr/lib/dkms/nvidia-sandbox-build "$(uname -r)"\nfi\n',
                    "prerm": "#!/bin/sh\nset -e\n"
                    "rm -f /lib/modules/*/updates/dkms/nvidia.ko\n"
                    'depmod "$(uname -r)" 2>/dev/null || true\n',
                },
            )
        )
    return packages


def _pinning(make: _Make, version: str) -> list[Package]:
    names = (
        "nvidia-* libnvidia-* libcuda1 cuda-drivers cuda-drivers-* nvlink5 nvlink5-*"
        " libnvsdm libnvsdm-*"
    )
    packages = []
    for name, pattern in ((version, f"{version}-*"), (str(branch_of(version)), "")):
        wanted = pattern or f"{name}.*"
        preferences = f"Package: {names}\nPin: version {wanted}\nPin-Priority: 1001\n"
        packages.append(
            make(
                f"nvidia-driver-pinning-{name}",
                f"apt preferences that keep the driver at {name}",
                fields={
                    "Provides": "nvidia-driver-pinning",
                    "Conflicts": "nvidia-driver-pinning",
                },
                files={"etc/apt/preferences.d/nvidia-driver-pinning": File(preferences.encode())},
            )
        )
    return packages


def _fabric(make: _Make, program: _Program, version: str) -> list[Package]:
    branch = branch_of(version)
    suffix = "" if branch >= FIRST_UNVERSIONED_FABRIC else f"-{branch}"
    unit = _UNIT.format(
        what="NVIDIA fabric manager service",
        program="nv-fabricmanager",
        conditions="After=network-online.target\nRequires=network-online.target\n",
        service="RuntimeDirectory=nvidia-fabricmanager\n",
    )
    packages = [
        make(
            f"nvidia-fabricmanager{suffix}",
            "fabric manager for NVSwitch based systems",
            files={
                "usr/bin/nv-fabricmanager": program("nv-fabricmanager.sh"),
                "usr/lib/systemd/system/nvidia-fabricmanager.service": File(unit.encode()),
                "usr/share/nvidia/nvswitch/fabricmanager.cfg": File(b"# simulated\n"),
            },
            scripts=_unit_scripts("nvidia-fabricmanager", enable=False),
        ),
        _library(make, f"libnvidia-nscq{suffix}", "libnvidia-nscq.so", version),
    ]
    if not suffix:
        exactly = f"(= {version}-1)"
        packages += [
            _library(make, "libnvsdm", "libnvsdm.so", version),
            make("nvlsm", "NVLink subnet manager"),
            make(
                "nvlink5",
                "NVLink 5 stack metapackage",
                f"nvidia-fabricmanager {exactly}, libnvsdm {exactly}, nvlsm {exactly}",
            ),
        ]
    return packages


def _unit_scripts(unit: str, *, enable: bool) -> dict[str, str]:
    """What a package with a unit does: after an upgrade, restart the unit where it runs."""
    configure = (
        "  systemctl daemon-reload\n"
        + (f'  if [ -z "$2" ]; then systemctl -q enable {unit}.service; fi\n' if enable else "")
        + f"  systemctl try-restart {unit}.service || true\n"
    )
    running = "[ -d /run/systemd/system ]"
    return {
        "postinst": "#!/bin/sh\nset -e\n"
        f'if [ "$1" = configure ] && {running}; then\n{configure}fi\n',
        "prerm": "#!/bin/sh\nset -e\n"
        f'if [ "$1" = remove ] && {running}; then\n'
        f"  systemctl disable --now {unit}.service || true\nfi\n",
    }


if TYPE_CHECKING:
    from collections.abc import Callable

    _Make = Callable[..., Package]
    _Program = Callable[[str], File]
