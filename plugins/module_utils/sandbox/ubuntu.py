# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver as Ubuntu names it: NVIDIA's repositories for Ubuntu, and Ubuntu's archive.

To branch 580 NVIDIA's names have the branch in them, from 590 on they have not. The archive's are
those of the server branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.driver import (
    FIRST_UNVERSIONED_FABRIC,
    VERSIONS,
    Maker,
    branch_metapackages,
    branch_of,
    unique,
)

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.deb import Package

RELEASES = {"ubuntu2204": "22.04", "ubuntu2404": "24.04"}
FIRST_UNVERSIONED = 590


def cuda_packages(versions: tuple[str, ...] = VERSIONS) -> list[Package]:
    """What NVIDIA's repository for an Ubuntu release has."""
    packages: list[Package] = []
    for version in versions:
        branch = branch_of(version)
        is_old = branch < FIRST_UNVERSIONED
        make = Maker(version, "-0ubuntu1" if is_old else "-1ubuntu1")
        packages += _set(make, f"-{branch}") if is_old else _unversioned(make)
        packages += [*_metapackages(make, f"-{branch}" if is_old else ""), *make.pinning()]
        packages += Maker(version).fabric(versioned=branch < FIRST_UNVERSIONED_FABRIC)
    return unique(packages)


def archive_packages(os: str, versions: tuple[str, ...] = VERSIONS) -> list[Package]:
    """What an Ubuntu release's own archive has: the server branches."""
    packages: list[Package] = []
    for version in versions:
        branch = branch_of(version)
        make = Maker(version, f"-0ubuntu0.{RELEASES[os]}.1")
        packages += _set(make, f"-{branch}-server")
        common = f"nvidia-kernel-common-{branch}-server {make.exactly}"
        packages += make.fabric(versioned=True, nvlink5=False, depends=common)
    return unique(packages)


def _set(make: Maker, suffix: str) -> list[Package]:
    """A driver set whose names carry a branch (and `-server`)."""
    exactly = make.exactly
    common = f"nvidia-kernel-common{suffix} {exactly}"
    libraries = f"libnvidia-compute{suffix}"
    return [
        make.package(f"nvidia-kernel-common{suffix}", "shared files of the kernel modules",
                     fields=_only_one("nvidia-kernel-common")),
        make.package(f"nvidia-firmware{suffix}-{make.version}", "firmware of the kernel modules"),
        make.libraries(libraries, "libcuda.so", "libnvidia-ml.so",
                       fields=_only_one("libnvidia-compute")),
        make.tools(f"nvidia-utils{suffix}", f"{libraries} {exactly}", _only_one("nvidia-utils")),
        make.persistenced(f"nvidia-compute-utils{suffix}", _only_one("nvidia-compute-utils")),
        *(
            make.modules(
                f"nvidia-dkms{suffix}{flavour}",
                is_open=bool(flavour),
                depends=f"{common}, nvidia-firmware{suffix}-{make.version}",
                fields=_only_one("nvidia-dkms-kernel"),
            )
            for flavour in ("", "-open")
        ),
    ]  # fmt: skip


def _unversioned(make: Maker) -> list[Package]:
    """The set of NVIDIA's repository from branch 590 on."""
    exactly = make.exactly
    return [
        make.package("nvidia-kernel-common", "shared files of the kernel modules"),
        make.package("nvidia-firmware", "firmware of the kernel modules"),
        make.libraries("libnvidia-compute", "libcuda.so", "libnvidia-ml.so"),
        make.tools("nvidia-driver-cuda", f"libnvidia-compute {exactly}"),
        make.persistenced("nvidia-persistenced"),
        *(
            make.modules(
                f"nvidia-dkms{flavour}",
                is_open=bool(flavour),
                depends=f"nvidia-kernel-common {exactly}, nvidia-firmware {exactly}",
                fields=_only_one("nvidia-dkms-kernel"),
            )
            for flavour in ("", "-open")
        ),
    ]


def _metapackages(make: Maker, suffix: str) -> list[Package]:
    exactly = make.exactly
    tools = f"nvidia-utils{suffix}" if suffix else "nvidia-driver-cuda"
    return [
        make.package(
            name,
            "NVIDIA driver metapackage",
            f"nvidia-dkms{suffix}{flavour} {exactly}, {tools} {exactly}",
        )
        for name, flavour in (("nvidia-open", "-open"), ("cuda-drivers", ""))
    ] + branch_metapackages(make)


def _only_one(what: str) -> dict[str, str]:
    """A package that cannot be there with another one of its kind."""
    return {"Provides": what, "Conflicts": what}
