# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base images: one root file system per release and recipe, made once, never changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    sha256_file,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import locks, mounts

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.sources import Mirror

FORMAT = 2
"""Counts changes of what this file does to a base beyond the recipe's own words."""
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "openssh-server",
    "python3",
    "python3-apt",
    "iproute2",
    "iputils-ping",
    "kmod",
    "procps",
    "ca-certificates",
)
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "console-getty.service")
ENABLED = ("systemd-networkd.service", "ssh.service")
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_BUILD_TIMEOUT = 1200.0


@dataclass(frozen=True)
class System:
    """An operating system that a sandbox host can have."""

    key: str
    codename: str
    os_release: str = ""
    """Its /etc/os-release where it is only simulated over a Debian root."""


_UBUNTU = (
    'PRETTY_NAME="Ubuntu {full}"\nNAME="Ubuntu"\nVERSION_ID="{version}"\n'
    'VERSION="{full} ({name})"\nVERSION_CODENAME={code}\nID=ubuntu\nID_LIKE=debian\n'
    'HOME_URL="https://www.ubuntu.com/"\nUBUNTU_CODENAME={code}\n'
)
SYSTEMS = {
    system.key: system
    for system in (
        System("debian12", "bookworm"),
        System("debian13", "trixie"),
        System(
            "ubuntu2204",
            "bookworm",
            _UBUNTU.format(
                full="22.04.5 LTS", version="22.04", name="Jammy Jellyfish", code="jammy"
            ),
        ),
        System(
            "ubuntu2404",
            "trixie",
            _UBUNTU.format(full="24.04.3 LTS", version="24.04", name="Noble Numbat", code="noble"),
        ),
    )
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a base looks like."""

    codename: str
    mirror: Mirror
    certificates: tuple[tuple[str, str], ...] = ()
    apt_proxy: str = ""

    @property
    def digest(self) -> str:
        """Twelve digits that change when the base has to be made again."""
        content = {
            "format": FORMAT,
            "codename": self.codename,
            "sources": self.mirror.lines(self.codename),
            "packages": PACKAGES,
            "masked": MASKED,
            "enabled": ENABLED,
            "certificates": self.certificates,
            "apt_proxy": self.apt_proxy,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.codename}-{self.digest}"


def machine_recipe(codename: str, mirror: Mirror) -> Recipe:
    """The recipe for a release on this machine: its mirror, its local authorities, its proxy."""
    certificates = tuple(
        (path.name, sha256_file(path)) for path in sorted(_CERTIFICATES.glob("*.crt"))
    )
    dump = run(["apt-config", "dump", "Acquire::http::Proxy", "Acquire::https::Proxy"], timeout=30)
    proxies = [line for line in dump.stdout.splitlines() if "::Proxy" in line and '""' not in line]
    return Recipe(codename, mirror, certificates, "\n".join(proxies))


def ensure(recipe: Recipe, cache: Path) -> tuple[Path, bool]:
    """The folder of a base, made where it is not there yet.

    Two hosts of one release wait for each other here; two releases are made side by side.

    Returns:
        The folder, and whether it had to be made.

    Raises:
        LlmetalError: it cannot be made.
    """
    bases = cache / "bases"
    target = bases / recipe.name
    if target.is_dir():
        return target, False
    with locks.held(bases / f"{recipe.codename}.lock", timeout=_BUILD_TIMEOUT):
        if target.is_dir():
            return target, False
        for rest in bases.glob(f"{recipe.codename}-*.building"):
            _remove(rest)
        building = bases / f"{recipe.name}.building"
        _build(recipe, building)
        building.rename(target)
        for other in bases.glob(f"{recipe.codename}-*"):
            if other != target and not mounts.is_base_in_use(other):
                _remove(other)
    return target, True


def _build(recipe: Recipe, root: Path) -> None:
    options = [
        "--variant=minbase",
        "--mode=root",
        "--skip=cleanup/apt/lists",
        "--aptopt=Acquire::Languages none",
        "--dpkgopt=force-unsafe-io",
        f"--include={','.join(PACKAGES)}",
    ]
    options += [f"--aptopt={line}" for line in recipe.apt_proxy.splitlines()]
    lines = recipe.mirror.lines(recipe.codename)
    argv = ["mmdebstrap", *options, recipe.codename, str(root), *lines]
    done = run(argv, timeout=_BUILD_TIMEOUT, env={"DEBIAN_FRONTEND": "noninteractive"})
    if not done.ok:
        _remove(root)
        raise LlmetalError(
            what=f"the base image for Debian {recipe.codename} cannot be made",
            where=recipe.mirror.main,
            why=done.tail(8),
            fix="see whether this machine reaches its own package sources (`apt-get update`)"
            " and has 2 GB free in the cache folder",
        )
    _configure(recipe, root)


def _configure(recipe: Recipe, root: Path) -> None:
    apt = root / "etc/apt"
    (apt / "sources.list").unlink(missing_ok=True)
    for path in (apt / "sources.list.d").glob("*"):
        path.unlink()
    write_atomic(apt / "sources.list.d/debian.sources", recipe.mirror.stanzas(recipe.codename))
    for path in (apt / "apt.conf.d").glob("99mmdebstrap"):
        path.unlink()
    write_atomic(apt / "apt.conf.d/20languages", 'Acquire::Languages "none";\n')
    if recipe.apt_proxy:
        write_atomic(apt / "apt.conf.d/30proxy", recipe.apt_proxy + "\n")
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    if recipe.certificates:
        local = root / "usr/local/share/ca-certificates"
        local.mkdir(parents=True, exist_ok=True)
        for name, _ in recipe.certificates:
            shutil.copyfile(_CERTIFICATES / name, local / name)
        _in_root(root, ["update-ca-certificates"])
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    _in_root(root, ["systemctl", "enable", *ENABLED])
    write_atomic(root / "etc/machine-id", "")


def _in_root(root: Path, argv: list[str]) -> None:
    done = run(["chroot", str(root), *argv], timeout=120)
    if not done.ok:
        raise LlmetalError(
            what=f"`{' '.join(argv)}` failed in a new base image",
            where=str(root),
            why=done.tail(),
        )


def _remove(path: Path) -> None:
    """Remove a base of ours; never across a mount."""
    mounts.unmount_all(path)
    if path.is_dir() and not path.is_symlink() and not os.path.ismount(path):
        shutil.rmtree(path)
