# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages, their index, and the two kinds of ELF file in them."""

from __future__ import annotations

import ctypes
import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (
    deb,
    driver,
    elf,
    ubuntu,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[3] / "plugins/plugin_utils/data/driver_packages.yml"


def members(data: bytes) -> dict[str, bytes]:
    """The members of an ar archive."""
    assert data.startswith(b"!<arch>\n")
    found, at = {}, 8
    while at < len(data):
        name, size = data[at : at + 16].decode().strip(), int(data[at + 48 : at + 58])
        found[name] = data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    return found


def test_package_is_whole_and_reproducible() -> None:
    """Three members in their order; the same input is the same file."""
    package = deb.Package(
        "x",
        "1:2-3",
        "first\nsecond\n\nthird",
        files={"usr/bin/x": deb.File(b"#!/bin/sh\n", 0o755), "etc/x.conf": deb.File(b"a")},
        scripts={"postinst": "#!/bin/sh\n"},
    )
    data = deb.build(package)
    assert data == deb.build(package)
    parts = members(data)
    assert list(parts) == ["debian-binary", "control.tar.gz", "data.tar.gz"]
    with tarfile.open(fileobj=io.BytesIO(parts["data.tar.gz"])) as archive:
        assert archive.getmember("./usr/bin/x").mode == 0o755
    with tarfile.open(fileobj=io.BytesIO(parts["control.tar.gz"])) as archive:
        stream = archive.extractfile("./conffiles")
        assert stream is not None
        assert stream.read() == b"/etc/x.conf\n"
    assert package.filename == "x_2-3_amd64.deb"
    assert package.control().endswith("Description: first\n second\n .\n third\n")


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb on this machine")
def test_dpkg_reads_it(tmp_path: Path) -> None:
    """dpkg-deb agrees."""
    path = tmp_path / "x.deb"
    path.write_bytes(deb.build(deb.Package("x", "1-1", "what", "libc6")))
    shown = subprocess.run(
        ["dpkg-deb", "--field", str(path), "Package", "Depends"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "Package: x\nDepends: libc6\n"


@pytest.mark.parametrize(
    "packages",
    [
        driver.driver_packages(),
        ubuntu.cuda_packages(),
        ubuntu.archive_packages("ubuntu2204"),
        ubuntu.archive_packages("ubuntu2404"),
    ],
    ids=["debian", "cuda for ubuntu", "jammy", "noble"],
)
def test_every_dependency_is_in_the_repository(packages: list[deb.Package]) -> None:
    """Names and versions of all relations can be met by the repository itself."""
    known = {(package.name, package.version) for package in packages}
    assert len(known) == len(packages)
    for package in packages:
        for relation in filter(None, package.depends.split(", ")):
            for choice in relation.split(" | "):
                name, _, version = choice.partition(" (")
                if version.startswith("= "):
                    assert (name, version[2:-1]) in known, (package.name, relation)
                else:
                    assert name in {known_name for known_name, _ in known}


@pytest.mark.parametrize(
    ("source", "family", "made"),
    [
        ("cuda_repo", "debian", driver.driver_packages),
        ("cuda_repo", "ubuntu", ubuntu.cuda_packages),
        ("ubuntu", "ubuntu", lambda: ubuntu.archive_packages("ubuntu2404")),
    ],
)
@pytest.mark.parametrize("version", driver.VERSIONS)
def test_every_package_that_the_planner_takes_is_there(
    source: str, family: str, made: Callable[[], list[deb.Package]], version: str
) -> None:
    """The names of the compatibility data, in the driver's one version."""
    branch = version.split(".", 1)[0]
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))

    def row_of(kind: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = data[kind]
        fits = {"source": source, "family": family}
        return next(
            row
            for row in rows
            if all(row.get(key, value) == value for key, value in fits.items())
            and int(branch) <= int(row.get("up_to_branch", 1000))
        )

    names = {package.name for package in made() if package.version.startswith(f"{version}-")}
    row, fabric = row_of("package_sets"), row_of("fabric_sets")
    modules = [name for flavour in row["modules"].values() for name in flavour]
    wanted = [*modules, *row["user_space"], *row["companions"], fabric["package"]]
    for kind in ("nvswitch", "nvlink5"):
        wanted += fabric[kind]["same"] + fabric[kind]["optional"] if fabric[kind] else []
    assert {name.format(branch=branch, version=version) for name in wanted} <= names


def test_names_follow_the_branch() -> None:
    """Fabric manager and nscq carry the branch in their name before 580, and not from 580 on."""
    packages = driver.driver_packages()
    by_version: dict[str, set[str]] = {}
    for package in packages:
        by_version.setdefault(package.version, set()).add(package.name)
    assert "nvidia-fabricmanager-570" in by_version["570.211.01-1"]
    assert "nvidia-fabricmanager" not in by_version["570.211.01-1"]
    assert "nvidia-fabricmanager" in by_version["580.159.04-1"]
    assert "cuda-drivers-580" in by_version["580.178.04-1"]
    assert "cuda-drivers-595" not in by_version["595.91.07-1"]


def test_every_package_says_that_it_is_simulated() -> None:
    """Nobody can take one for NVIDIA's."""
    packages = driver.driver_packages() + driver.header_packages("6.1.0-1-amd64")
    assert all("simulated" in package.description.lower() for package in packages)


def test_index_and_release() -> None:
    """What apt checks: sizes and hashes."""
    package = deb.Package("x", "1", "what")
    data = deb.build(package)
    text = deb.index([(package, data)], "./")
    assert f"Filename: ./x_1_amd64.deb\nSize: {len(data)}\n" in text
    release = deb.release({"Packages": text.encode()}, origin="o", label="l", date="d")
    assert f" {len(text.encode())} Packages\n" in release


def test_shared_library_can_be_loaded(tmp_path: Path) -> None:
    """The loader takes it, and finds no symbol in it."""
    path = tmp_path / "libx.so.1"
    path.write_bytes(elf.shared_library("libx.so.1"))
    library = ctypes.CDLL(str(path))
    assert not hasattr(library, "nvmlInit_v2")


def test_kernel_module_has_its_fields() -> None:
    """An ELF file of type relocatable with a .modinfo section."""
    data = elf.kernel_module({"version": "580.159.04", "license": "NVIDIA"})
    assert data[:4] == b"\x7fELF"
    assert int.from_bytes(data[16:18], "little") == 1
    assert b"version=580.159.04\0license=NVIDIA\0" in data
    assert b"\0.modinfo\0" in data
