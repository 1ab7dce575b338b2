# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take away what earlier driver installations left on a host.

Each step looks anew, so that a run which was interrupted is finished by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils import apt_lock
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.driver_leftovers import (
    BACKUP,
    FILE,
    OLD_FILE,
    OLD_SYMLINK,
    SYMLINK,
    UNINSTALLERS,
    Diversion,
    Leftovers,
    Owners,
    Package,
    Request,
    look,
    parse_log,
    query_packages,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNINSTALL_TIMEOUT = 300.0
_TIMEOUT = 60.0


def _undo_log(request: Request) -> None:
    """Do what the installer's own removal would, from its log."""
    base = request.base
    owners = Owners(base)
    for entry in parse_log(read_text(base / BACKUP / "log") or ""):
        path = base / entry.path.lstrip("/")
        with contextlib.suppress(OSError):
            made = entry.kind == FILE or (entry.kind == SYMLINK and path.is_symlink())
            if made and not owners.has(entry.path):
                path.unlink()
            elif entry.kind == OLD_SYMLINK and not os.path.lexists(path):
                path.symlink_to(entry.target)
            elif entry.kind >= OLD_FILE and not os.path.lexists(path):
                shutil.move(base / BACKUP / str(entry.kind), path)


def _remove_runfile(request: Request) -> None:
    """First of all: the installer puts back what it had put aside, packages' files too."""
    for program, arguments in UNINSTALLERS:
        path = request.base / program
        if path.exists():
            told = run([str(path), *arguments], timeout=_UNINSTALL_TIMEOUT)
            if told.ok:
                break
    _undo_log(request)
    shutil.rmtree(request.base / BACKUP, ignore_errors=True)
    for program, _ in UNINSTALLERS:
        with contextlib.suppress(OSError):
            (request.base / program).unlink()


def _purge(request: Request, packages: Sequence[Package]) -> None:
    apt_lock.wait(request.lock_timeout)
    options = ("--force-depends", "--force-remove-reinstreq", "--force-hold")
    told = run(
        ["dpkg", *options, "--purge", *(p.name for p in packages)],
        timeout=request.timeout,
        env={"DEBIAN_FRONTEND": "noninteractive", "DEBCONF_NONINTERACTIVE_SEEN": "true"},
    )
    asked = {p.name for p in packages}
    left = [p.name for p in query_packages() if p.name in asked]
    if left:
        raise LlmetalError(
            what="purging the driver's packages failed",
            where=", ".join(left),
            why=told.tail(),
            fix="see what dpkg says; mend that, then run again: it goes on from here",
        )


def _remove_dkms(request: Request, tree: str) -> None:
    name, _, version = tree.partition("/")
    base = request.base
    if request.root == "/":
        # It may not know the tree any more; the folders below are what counts.
        run(["dkms", "remove", tree, "--all"], timeout=request.timeout)
    source = base / "usr/src" / f"{name}-{version}"
    if source.is_dir() and not Owners(base).has(f"/usr/src/{name}-{version}"):
        shutil.rmtree(source)
    folder = base / "var/lib/dkms" / tree
    if folder.exists():
        shutil.rmtree(folder)
    for link in folder.parent.glob("kernel-*"):
        if link.is_symlink() and not link.exists():
            link.unlink()
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _unlink(request: Request, paths: Sequence[str]) -> None:
    for name in paths:
        try:
            (request.base / name.lstrip("/")).unlink(missing_ok=True)
        except OSError as error:  # noqa: PERF203 - the error names the file
            raise LlmetalError(
                what="a leftover of the driver cannot be removed",
                where=name,
                why=error.strerror or str(error),
                fix="see that the file system is writable, then run again",
            ) from error


def _remove_diversion(one: Diversion) -> None:
    by = ["--package", one.by] if one.by else ["--local"]
    argv = ["dpkg-divert", *by, "--rename", "--remove", one.path]
    told = run(argv, timeout=_TIMEOUT)
    if not told.ok:
        raise LlmetalError(
            what="a diversion of the driver cannot be removed",
            where=str(one),
            why=told.tail(),
            fix=f"move away {one.path} or {one.to}, whichever is not wanted, then run again",
        )


def _remove_alternative(name: str) -> None:
    told = run(["update-alternatives", "--remove-all", name], timeout=_TIMEOUT)
    if not told.ok:
        raise LlmetalError(
            what="an alternative of the driver cannot be removed",
            where=name,
            why=told.tail(),
            fix=f"see `update-alternatives --display {name}`, then run again",
        )


def remove(request: Request, *, reinstall: bool = False) -> Leftovers:
    """Take all of it away, one kind after the other.

    Returns:
        What is left: only what nobody can attribute.

    Raises:
        LlmetalError: something cannot be removed.
    """
    found = look(request, reinstall=reinstall)
    if found.runfile:
        _remove_runfile(request)
    if found.packages:
        _purge(request, found.packages)
    found = look(request)
    for tree in found.dkms:
        _remove_dkms(request, tree)
    _unlink(request, found.modules)
    kernels = {Path(name).parts[3] for name in found.modules}
    for kernel in sorted(kernels):
        run(["depmod", kernel], timeout=_TIMEOUT)
    for diversion in found.diversions:
        _remove_diversion(diversion)
    for name in found.alternatives:
        _remove_alternative(name)
    _unlink(request, found.files)
    if found.files:
        run(["ldconfig"], timeout=_TIMEOUT)
    return look(request)
