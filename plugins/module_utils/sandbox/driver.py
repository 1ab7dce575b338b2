# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver: packages named and versioned like those of NVIDIA's repository for Debian.

Only the names, the relations and the behaviour that a host shows are simulated; not one byte of
NVIDIA's software is in them. A program of a package only starts the one of the same name in the
host's folder of simulated hardware.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import elf
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.deb import (
    File,
    Link,
    Package,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSIONS = ("570.211.01", "580.159.04", "580.178.04", "595.91.07")
FIRST_UNVERSIONED_FABRIC = 580
NVLSM = "2025.10.11-1"
"""The subnet manager has versions of its own."""
NEWER_KERNEL = "6.99.0-1-sandbox-amd64"
"""A kernel that a host can install and that no machine runs."""
_LAST_BRANCH_METAPACKAGE = 580
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_HARDWARE = "/usr/lib/sandbox-hardware"
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
ExecStart={program}
{service}
[Install]
WantedBy=multi-user.target
"""
_FILES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")


def branch_of(version: str) -> int:
    """The driver branch of a version."""
    return int(version.split(".", 1)[0])


@dataclass(frozen=True)
class Maker:
    """Makes the packages of one driver version, as one repository names and numbers them."""

    version: str
    revision: str = "-1"

    @property
    def full(self) -> str:
        """The version of the packages."""
        return f"{self.version}{self.revision}"

    @property
    def exactly(self) -> str:
        """The relation to another package of the set."""
        return f"(= {self.full})"

    def package(  # noqa: PLR0913 - what a package has
        self,
        name: str,
        what: str,
        depends: str = "",
        *,
        fields: Mapping[str, str] | None = None,
        files: Mapping[str, File | Link] | None = None,
        scripts: Mapping[str, str] | None = None,
    ) -> Package:
        """Any package."""
        return Package(
            name,
            self.full,
            f"{what} (simulated)\n{_NOTE}",
            depends,
            fields=fields or {},
            files=files or {},
            scripts=scripts or {},
        )

    def tools(self, name: str, depends: str, fields: Mapping[str, str] | None = None) -> Package:
        """The package with nvidia-smi."""
        return self.package(
            name,
            "NVIDIA driver tools",
            depends,
            fields=fields,
            files={"usr/bin/nvidia-smi": starter("nvidia-smi.py")},
        )

    def libraries(
        self, name: str, *libraries: str, fields: Mapping[str, str] | None = None
    ) -> Package:
        """A package of shared libraries, each with its soname."""
        files: dict[str, File | Link] = {}
        for library in libraries:
            content = File(elf.shared_library(f"{library}.1"))
            files[f"{_LIBRARIES}/{library}.{self.version}"] = content
            files[f"{_LIBRARIES}/{library}.1"] = Link(f"{library}.{self.version}")
        return self.package(
            name,
            f"NVIDIA library {libraries[0]}.1",
            fields=fields,
            files=files,
            scripts={"postinst": "#!/bin/sh\nset -e\nldconfig\n"},
        )

    def persistenced(self, name: str, fields: Mapping[str, str] | None = None) -> Package:
        """The package with the persistence daemon."""
        unit = _UNIT.format(
            what="NVIDIA Persistence Daemon",
            program="/usr/bin/nvidia-persistenced",
            conditions="",
            service=f"ExecStopPost=-{_HARDWARE}/kernel.py refresh\n",
        )
        return self.package(
            name,
            "daemon to maintain persistent software state in the NVIDIA driver",
            fields=fields,
            files={
                "usr/bin/nvidia-persistenced": starter("persistenced.sh"),
                "usr/lib/systemd/system/nvidia-persistenced.service": File(unit.encode()),
            },
            scripts=unit_scripts("nvidia-persistenced", enable=True),
        )

    def modules(
        self, name: str, *, is_open: bool, depends: str = "", fields: Mapping[str, str]
    ) -> Package:
        """The package that builds the kernel modules."""
        build, version = f"{_HARDWARE}/kernel.py", self.version
        files: dict[str, File | Link] = {
            f"usr/src/nvidia-{version}/{module}.ko": File(self._module(module, is_open=is_open))
            for module in _FILES
        }
        for folder in ("header_postinst.d", "postinst.d"):
            files[f"etc/kernel/{folder}/dkms-nvidia-sandbox"] = File(
                f'#!/bin/sh\nexec {build} dkms installed "$1"\n'.encode(), 0o755
            )
        return self.package(
            name,
            f"NVIDIA {'open' if is_open else 'proprietary'} kernel module DKMS source",
            depends,
            fields=fields,
            files=files,
            scripts={
                "postinst": "#!/bin/sh\nset -e\n"
                f'if [ "$1" = configure ]; then\n  {build} dkms {version} all\nfi\n',
                "prerm": f"#!/bin/sh\nset -e\n{build} undkms {version}\n",
            },
        )

    def _module(self, name: str, *, is_open: bool) -> bytes:
        return elf.kernel_module(
            {
                "license": "Dual MIT/GPL" if is_open else "NVIDIA",
                "version": self.version,
                "supported": "external",
                "alias": "pci:v000010DEd*sv*sd*bc03sc02i00*",
                "depends": "" if name == "nvidia" else "nvidia",
                "name": name.replace("-", "_"),
                "vermagic": "simulated",
            }
        )

    def fabric_manager(self, suffix: str = "", depends: str = "") -> Package:
        """The package with the fabric manager and its unit."""
        unit = _UNIT.format(
            what="NVIDIA fabric manager service",
            program="/usr/bin/nv-fabricmanager",
            conditions="After=network-online.target\nRequires=network-online.target\n",
            service="RuntimeDirectory=nvidia-fabricmanager\n"
            f"ExecStopPost=-{_HARDWARE}/kernel.py refresh\n",
        )
        return self.package(
            f"nvidia-fabricmanager{suffix}",
            "fabric manager for NVSwitch based systems",
            depends,
            files={
                "usr/bin/nv-fabricmanager": starter("fabricmanager.sh", self.version),
                "usr/lib/systemd/system/nvidia-fabricmanager.service": File(unit.encode()),
                "usr/share/nvidia/nvswitch/fabricmanager.cfg": File(b"# simulated\n"),
            },
            scripts=unit_scripts("nvidia-fabricmanager", enable=False),
        )

    def fabric(self, *, versioned: bool, nvlink5: bool = True, depends: str = "") -> list[Package]:
        """The fabric manager and what comes with it; with a branch in the name, or without."""
        suffix = f"-{branch_of(self.version)}" if versioned else ""
        packages = [
            self.fabric_manager(suffix, depends),
            self.libraries(f"libnvidia-nscq{suffix}", "libnvidia-nscq.so"),
            self.package(f"nvidia-imex{suffix}", "NVIDIA IMEX service"),
        ]
        if not nvlink5:
            return packages
        subnet_manager = Package(
            "nvlsm",
            NVLSM,
            f"NVLink subnet manager (simulated)\n{_NOTE}",
            files={"opt/nvidia/nvlsm/sbin/nvlsm": starter("nvlsm.sh")},
        )
        return [
            *packages,
            self.libraries(f"libnvsdm{suffix}", "libnvsdm.so"),
            subnet_manager,
            self.package(
                f"nvlink5{suffix}",
                "NVLink 5 stack metapackage",
                f"nvidia-fabricmanager{suffix} {self.exactly},"
                f" libnvsdm{suffix} {self.exactly}, nvlsm",
            ),
        ]

    def pinning(self) -> list[Package]:
        """The packages that pin this version, and its branch."""
        names = (
            "nvidia-* libnvidia-* libcuda1 cuda-drivers cuda-drivers-* nvlink5 nvlink5-*"
            " libnvsdm libnvsdm-*"
        )
        branch = str(branch_of(self.version))
        packages = []
        for name, pattern in ((self.version, f"{self.version}-*"), (branch, f"{branch}.*")):
            text = f"Package: {names}\nPin: version {pattern}\nPin-Priority: 1001\n"
            packages.append(
                self.package(
                    f"nvidia-driver-pinning-{name}",
                    f"apt preferences that keep the driver at {name}",
                    fields={
                        "Provides": "nvidia-driver-pinning",
                        "Conflicts": "nvidia-driver-pinning",
                    },
                    files={"etc/apt/preferences.d/nvidia-driver-pinning": File(text.encode())},
                )
            )
        return packages


def driver_packages(versions: tuple[str, ...] = VERSIONS) -> list[Package]:
    """Every package of every version, each once."""
    return unique(package for version in versions for package in _one_version(Maker(version)))


def header_packages(kernel: str) -> list[Package]:
    """The headers of the running kernel, as a distribution would have them, and a newer kernel."""
    return [_headers(kernel), _headers(NEWER_KERNEL), _image(NEWER_KERNEL)]


def unique(packages: Iterable[Package]) -> list[Package]:
    """The packages without those that are there already in the same version."""
    return list({(package.name, package.version): package for package in packages}.values())


def starter(program: str, *words: str) -> File:
    """A program that starts another one of the simulated hardware."""
    argv = " ".join((f"{_HARDWARE}/{program}", *words))
    text = f'#!/bin/sh\n# Simulated by the llmetal sandbox.\nexec {argv} "$@"\n'
    return File(text.encode(), 0o755)


def unit_scripts(unit: str, *, enable: bool) -> dict[str, str]:
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


def _version_of(kernel: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+~-]", "~", kernel) + "-1"


def _headers(kernel: str) -> Package:
    source = f"usr/src/linux-headers-{kernel}"
    return Package(
        name=f"linux-headers-{kernel}",
        version=_version_of(kernel),
        description=f"Header files for Linux {kernel} (simulated)\n"
        "Made by the llmetal sandbox. No module can be compiled with it.",
        files={
            f"{source}/include/generated/utsrelease.h": File(
                f'#define UTS_RELEASE "{kernel}"\n'.encode()
            ),
            f"{source}/include/generated/autoconf.h": File(b"/* simulated */\n"),
            f"{source}/Makefile": File(b"# simulated\n"),
            f"lib/modules/{kernel}/build": Link(f"/{source}"),
        },
        scripts={"postinst": _run_parts(kernel, "header_postinst.d")},
    )


def _image(kernel: str) -> Package:
    return Package(
        name=f"linux-image-{kernel}",
        version=_version_of(kernel),
        description=f"Linux {kernel} (simulated)\n"
        "Made by the llmetal sandbox. It boots nothing: a host runs the machine's kernel.",
        files={
            f"boot/vmlinuz-{kernel}": File(b"simulated\n"),
            f"boot/config-{kernel}": File(b"# simulated\n"),
            f"lib/modules/{kernel}/modules.order": File(b""),
        },
        scripts={
            "postinst": f"#!/bin/sh\nset -e\ndepmod {kernel} 2>/dev/null || true\n"
            + _run_parts(kernel, "postinst.d").removeprefix("#!/bin/sh\nset -e\n"),
            "postrm": f"#!/bin/sh\nset -e\nrm -f /lib/modules/{kernel}/modules.*\n",
        },
    )


def _run_parts(kernel: str, folder: str) -> str:
    return (
        "#!/bin/sh\nset -e\n"
        f"if [ -d /etc/kernel/{folder} ]; then\n"
        f'  run-parts --arg="{kernel}" /etc/kernel/{folder}\nfi\n'
    )


def _one_version(make: Maker) -> list[Package]:
    exactly, branch = make.exactly, branch_of(make.version)
    kernels = f"nvidia-kernel-open-dkms {exactly} | nvidia-kernel-dkms {exactly}"
    packages = [
        make.tools(
            "nvidia-driver-cuda",
            f"libcuda1 {exactly}, libnvidia-ml1 {exactly},"
            f" nvidia-persistenced {exactly}, {kernels}",
        ),
        make.libraries("libcuda1", "libcuda.so"),
        make.libraries("libnvidia-ml1", "libnvidia-ml.so"),
        make.persistenced("nvidia-persistenced"),
        make.package("nvidia-open", "NVIDIA driver metapackage, open", _both("open-", exactly)),
        make.package("cuda-drivers", "NVIDIA driver metapackage, proprietary", _both("", exactly)),
        *_kernel_modules(make),
        *make.pinning(),
        *make.fabric(versioned=branch < FIRST_UNVERSIONED_FABRIC),
    ]
    return packages + branch_metapackages(make)


def branch_metapackages(make: Maker) -> list[Package]:
    """The metapackages with a branch in their name, which only promise a floor."""
    branch = branch_of(make.version)
    if branch != _LAST_BRANCH_METAPACKAGE:
        return []
    return [
        make.package(
            f"{name}-{branch}", f"NVIDIA driver metapackage, {branch}", f"{name} (>= 580.65.06)"
        )
        for name in ("nvidia-open", "cuda-drivers")
    ]


def _both(flavour: str, exactly: str) -> str:
    return f"nvidia-driver-cuda {exactly}, nvidia-kernel-{flavour}dkms {exactly}"


def _kernel_modules(make: Maker) -> list[Package]:
    pair = ("nvidia-kernel-open-dkms", "nvidia-kernel-dkms")
    return [
        make.modules(
            name,
            is_open=name == pair[0],
            fields={
                "Conflicts": other,
                "Provides": f"nvidia-kernel-dkms-any (= {make.version})",
            },
        )
        for name, other in (pair, pair[::-1])
    ]
