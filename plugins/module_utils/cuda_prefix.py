# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A CUDA toolkit under one prefix, from Python wheels or a runfile, without touching the driver.

A toolkit of a release line lives in `<root>/<name>/<digest>/cuda`; the link `<root>/<name>/current`
names the digest in use and is switched when the new one is whole, so a failed installation leaves
the toolkit in use as it was. Wheels come in a folder per component (CUDA 12) or in one without
`lib64` (CUDA 13), and without the names that linkers ask for; the prefix has all of it in the
places that nvcc, CMake and engines expect. Its files are hard links, so it takes no room.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils import environment
from ansible_collections.llmetal.inference.plugins.module_utils.command import (
    CommandResult,
    run,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text, write_atomic
from ansible_collections.llmetal.inference.plugins.module_utils.toolkits import parse_release

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "cuda"
_LAYOUT = 1
_VERSION = "version.json"
_DIGEST = re.compile(r"[0-9a-f]{12}")
_LIBRARY = re.compile(r"(?P<stem>lib[^/]+\.so)\.[0-9.]+")
_RUN_TIMEOUT = 60
_SOCKET_TIMEOUT = 60
_BLOCK = 1 << 20
_TRIPLET = "x86_64-linux"
RUNFILE_OPTIONS = ("--silent", "--toolkit", "--override", "--no-man-page", "--no-opengl-libs")
"""The toolkit alone, no driver; what it finds of compilers and other toolkits does not stop it."""
UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
"""How root runs the installer. As root it points /usr/local/cuda at what it installed and writes
/etc/ld.so.conf.d/cuda-X-Y.conf, and its guide lists no option against either (docs.nvidia.com,
CUDA Installation Guide for Linux, runfile installation, advanced options). As somebody who can
write into the new folder alone it does neither; without root it is run by EasyBuild and Spack too.
"""
_NOBODY = 65534
_INSTALLER_LOG = Path("/tmp/cuda-installer.log")  # noqa: S108 - the installer's own, not ours
"""Where it writes without root; it fails where another user has left that file (EasyBuild,
easyblocks/c/cuda.py)."""


@dataclass(frozen=True)
class Runfile:
    """NVIDIA's installer: where it comes from, and what it must hash to."""

    source: str
    """An address, or a path on the host."""
    sha256: str | None = None
    md5: str | None = None
    """For releases whose sha256 was never published."""
    size: int | None = None

    @property
    def digest(self) -> str:
        """What its folder is called."""
        key = f"{_LAYOUT}:{self.sha256 or self.md5}"
        return hashlib.sha256(key.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class State:
    """What is there."""

    digest: str | None
    """The one in use."""
    whole: bool
    link: str | None
    """Where the public path leads; None where it is not there."""

    def as_dict(self) -> dict[str, str | bool | None]:
        """As a module returns it."""
        return {"digest": self.digest, "whole": self.whole, "link": self.link}


def assemble(home: Path, release: str) -> None:
    """Make the prefix of an environment of wheels, beside its packages.

    Args:
        home: the environment's folder.
        release: the toolkit's release.

    Raises:
        LlmetalError: the wheels are not those of a toolkit, or its programs do not run.
    """
    target, building = home / PREFIX, home / f".{PREFIX}-building"
    _remove(building)
    components = sorted(home.glob("lib/python3*/site-packages/nvidia/*/"))
    for component in components:
        for top in ("bin", "include", "lib", "nvvm"):
            _take(component / top, building / ("lib64" if top == "lib" else top))
    if not (building / "bin/ptxas").exists():
        raise LlmetalError(
            what="the wheels bring no toolkit",
            where=str(home),
            why="none of them has bin/ptxas",
            fix="make the lock again: its requirements are not those of a CUDA toolkit",
        )
    _complete(building)
    version = {"cuda": {"name": "CUDA SDK", "version": release}, "llmetal": {"layout": _LAYOUT}}
    write_atomic(building / _VERSION, json.dumps(version, indent=1) + "\n")
    check(building, release)
    _remove(target)
    building.rename(target)


def _take(source: Path, target: Path) -> None:
    """Link the files of a folder into another one, as deep as they lie."""
    if not source.is_dir():
        return
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name != "__pycache__"]
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            if name != "__init__.py":
                _link(Path(folder) / name, place / name)


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        target.hardlink_to(source) if hasattr(target, "hardlink_to") else os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _complete(prefix: Path) -> None:
    """The names that linkers and build systems ask for, which wheels leave out."""
    libraries = prefix / "lib64"
    libraries.mkdir(exist_ok=True)
    for path in sorted(libraries.glob("lib*.so.*")):
        found = _LIBRARY.fullmatch(path.name)
        plain = libraries / found["stem"] if found else None
        if plain is not None and not plain.exists():
            plain.symlink_to(path.name)
    (prefix / "lib").symlink_to("lib64")
    triplet = prefix / "targets" / _TRIPLET
    triplet.mkdir(parents=True)
    for name, leads in (("lib", "../../lib64"), ("include", "../../include")):
        (triplet / name).symlink_to(leads)


def check(prefix: Path, release: str) -> None:
    """Whether the compiler of a prefix runs and is of the release line.

    Raises:
        LlmetalError: it is not.
    """
    nvcc, line = prefix / "bin/nvcc", ".".join(release.split(".")[:2])
    program = nvcc if nvcc.exists() else prefix / "bin/ptxas"
    told = run([str(program), "--version"], timeout=_RUN_TIMEOUT)
    version = parse_release(told.stdout)
    if not told.ok or version is None or not f"{version}.".startswith(f"{line}."):
        raise LlmetalError(
            what=f"{program.name} of the new toolkit is not of CUDA {line}",
            where=str(program),
            why=f"it says {version}" if version else told.tail(2),
            fix="the toolkit in use is as before; make the lock again, or see to the mirror",
        )


def is_whole(prefix: Path) -> bool:
    """Whether a prefix has what a toolkit has."""
    return (prefix / _VERSION).is_file() and (prefix / "bin/ptxas").exists()


def read_state(root: Path, digest: str, link: Path | None) -> State:
    """Look at what is there; changes nothing."""
    linked = leads = None
    with contextlib.suppress(OSError):
        linked = str((root / "current").readlink())
    if link is not None:
        with contextlib.suppress(OSError):
            leads = str(link.readlink())
    return State(linked, is_whole(root / digest / PREFIX), leads)


def check_link(link: Path, root: Path) -> None:
    """Refuse a public path that is not ours to set.

    Raises:
        LlmetalError: a folder is in the way, or a link to elsewhere.
    """
    if not link.is_symlink() and not link.exists():
        return
    if link.is_symlink():
        leads = link.parent / link.readlink()
        if str(leads).startswith(f"{root}/") or not link.exists():
            return
        found = f"a link to {link.readlink()}"
    else:
        found = "a folder of another installation"
    raise LlmetalError(
        what="the toolkit's path is taken",
        where=str(link),
        why=f"it is {found}, which is not removed for you",
        fix="remove what brought it (its packages, or the uninstaller in its bin), or set "
        "llmetal_cuda.provider to what it came from",
    )


def set_link(link: Path, target: str) -> None:
    """Point the public path at the toolkit, in one step."""
    link.parent.mkdir(parents=True, exist_ok=True)
    environment.switch_link(link, target)


def install_runfile(runfile: Runfile, root: Path, release: str, timeout: float) -> None:
    """Install the toolkit of a runfile into a folder of its own; the caller switches to it.

    Raises:
        LlmetalError: it cannot be had, is not what was published, or its installer failed.
    """
    home = root / runfile.digest
    with environment.only_one(root / ".lock", timeout), _fetched(runfile, root, timeout) as path:
        _remove(home)
        home.mkdir(parents=True)
        target, unpacked = home / PREFIX, home / "unpacked"
        unpacked.mkdir()
        # What it would put outside of the toolkit goes into the folder that is removed.
        argv = ["sh", str(path), *RUNFILE_OPTIONS, f"--toolkitpath={target}"]
        argv += [f"--defaultroot={unpacked / 'root'}", f"--tmpdir={unpacked}"]
        done = _install(argv, home, unpacked, timeout)
        if not done.ok:
            raise LlmetalError(
                what="the runfile's installer failed",
                where=runfile.source,
                why=done.tail(3) or f"exit status {done.rc}",
                fix=f"read {_INSTALLER_LOG}; the toolkit in use is as before",
            )
        _remove(unpacked)
        check(target, release)
        if not (target / _VERSION).is_file():
            text = json.dumps({"cuda": {"name": "CUDA SDK", "version": release}})
            write_atomic(target / _VERSION, text + "\n")


def _lowers() -> bool:
    """Whether the installer gets fewer rights than we have."""
    return os.geteuid() == 0 and len(UNPRIVILEGED) > 0


def _install(argv: list[str], home: Path, unpacked: Path, timeout: float) -> CommandResult:
    """Run an installer; as root, as somebody who can write into its folder alone."""
    place, env = str(home), {"TMPDIR": str(unpacked), "HOME": str(unpacked)}
    if not _lowers():
        return run(argv, timeout=timeout, cwd=place, env=env)
    for path in (home, unpacked):
        path.chmod(0o755)
        os.chown(path, _NOBODY, _NOBODY)
    _remove(_INSTALLER_LOG)
    done = run([*UNPRIVILEGED, *argv], timeout=timeout, cwd=place, env=env)
    for folder, names, files in os.walk(home):
        for name in (".", *names, *files):
            os.chown(Path(folder) / name, 0, 0, follow_symlinks=False)
    return done


@contextlib.contextmanager
def _fetched(runfile: Runfile, root: Path, timeout: float) -> Iterator[Path]:
    """The runfile on this host, verified; a downloaded one is removed afterwards."""
    if runfile.source.startswith("/"):
        path = Path(runfile.source)
        if not path.is_file():
            raise LlmetalError(
                what="the runfile is not there",
                where=runfile.source,
                fix="put it there, or set llmetal_cuda.runfile_mirror to where it is",
            )
        _verify(path, runfile)
        if _lowers() and not path.stat().st_mode & 0o004:
            raise LlmetalError(
                what="the runfile is not readable for everybody",
                where=runfile.source,
                why="its installer is run without root, so that it touches nothing else",
                fix=f"chmod a+r {path}",
            )
        yield path
        return
    path = root / f".download-{runfile.digest}"
    try:
        _download(runfile, path, timeout)
        path.chmod(0o644)
        _verify(path, runfile)
        yield path
    finally:
        _remove(path)


def _download(runfile: Runfile, path: Path, timeout: float) -> None:
    limit = time.monotonic() + timeout
    where = runfile.source
    try:
        with (
            urllib.request.urlopen(where, timeout=_SOCKET_TIMEOUT) as answer,  # noqa: S310 - the inventory's address
            path.open("wb") as out,
        ):
            while block := answer.read(_BLOCK):
                out.write(block)
                if time.monotonic() > limit:
                    raise LlmetalError(
                        what=f"the runfile did not arrive within {timeout:g} s",
                        where=where,
                        fix="take a nearer mirror, or raise cuda_toolkit_install_timeout",
                    )
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise LlmetalError(
            what="the runfile cannot be had",
            where=where,
            why=str(getattr(error, "reason", None) or error),
            fix="see that llmetal_cuda.runfile_mirror has this file, and that the host reaches it",
        ) from error


def _verify(path: Path, runfile: Runfile) -> None:
    """See that a file is the published one.

    Raises:
        LlmetalError: it is cut off, or another one.
    """
    size = path.stat().st_size
    if runfile.size and size < runfile.size:
        raise LlmetalError(
            what="the runfile is cut off",
            where=runfile.source,
            why=f"it has {size} bytes of {runfile.size}",
            fix="fetch it again, and see that the mirror's copy is whole",
        )
    name = "sha256" if runfile.sha256 else "md5"
    digest = hashlib.new(name, usedforsecurity=False) if name == "md5" else hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != (runfile.sha256 or runfile.md5):
        raise LlmetalError(
            what=f"the runfile's {name} is not the published one",
            where=runfile.source,
            why=f"it is {digest.hexdigest()}, published is {runfile.sha256 or runfile.md5}",
            fix="do not run it: fetch it from NVIDIA again, or ask who runs the mirror",
        )


def prune(root: Path, keep: str) -> list[str]:
    """Remove toolkits that are not in use any more, but for what a process still runs from."""
    found = [p for p in root.iterdir() if _DIGEST.fullmatch(p.name) and p.name != keep]
    found += root.glob(".download-*")
    used = environment.in_use(found) if found else set()
    removed = sorted(set(found) - used)
    for path in removed:
        _remove(path)
    return [path.name for path in removed]


def remove(root: Path, link: Path | None) -> None:
    """Remove a toolkit and the public path that leads to it."""
    if link is not None and link.is_symlink() and str(link.readlink()).startswith(f"{root}/"):
        link.unlink()
    _remove(root)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def version_in(prefix: Path) -> str | None:
    """The release that a prefix says it is of."""
    try:
        return str(json.loads(read_text(prefix / _VERSION) or "")["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        return None
