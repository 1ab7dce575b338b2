# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The local package repositories: made on the spot, signed with a key of their own, served."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (
    deb,
    driver,
    processes,
    toolkit,
    ubuntu,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

FORMAT = 7
"""Counted up with every change of the packages."""
DRIVER_FOLDER = "cuda/debian/x86_64"
KERNEL_FOLDER = "kernel"
EMPTY_FOLDER = "kernel-empty"
"""What a host with the fault no_headers sees in place of the kernel folder."""
UNKNOWN_FOLDER = "unknown-key"
"""What a host with the fault unknown_key sees in place of everything below cuda and ubuntu."""
_SIGNER = "llmetal sandbox <sandbox@invalid>"
_STRANGER = "somebody else <stranger@invalid>"
_TIMEOUT = 60.0


def folder_of(os_name: str) -> str:
    """NVIDIA's repository for an operating system."""
    return f"cuda/{os_name}/x86_64" if os_name in ubuntu.RELEASES else DRIVER_FOLDER


def ensure(settings: Settings) -> bool:
    """Build the repositories where they are missing or old, and serve them.

    Returns:
        Whether anything had to be done.

    Raises:
        LlmetalError: they cannot be signed, or the port is taken.
    """
    changed = _ensure_built(settings)
    pid_file = settings.state / "repository.pid"
    if processes.is_alive(pid_file):
        return changed
    program = settings.programs / "serve_packages.py"
    argv = [sys.executable, "-I", str(program), str(settings.state)]
    argv += [str(settings.gateway), str(settings.port)]
    processes.start_detached(argv, pid_file=pid_file, log=settings.state / "repository.log")
    return True


def stop(settings: Settings) -> None:
    """Stop serving."""
    processes.stop(settings.state / "repository.pid", timeout=5)
    for name in ("signing", "signing-unknown"):
        _stop_agent(settings.state / name)


def kernel_source(settings: Settings) -> str:
    """The source that a guest has for its kernel's headers, as if from its distribution."""
    return _source(settings, KERNEL_FOLDER)


def archive_source(settings: Settings, os_name: str) -> str:
    """The source of a simulated Ubuntu's own archive; nothing for another system."""
    return _source(settings, f"ubuntu/{os_name}") if os_name in ubuntu.RELEASES else ""


def _source(settings: Settings, folder: str) -> str:
    key = read_text(settings.repository / "key.asc") or ""
    lines = "\n".join(f" {line or '.'}" for line in key.strip().splitlines())
    return (
        f"Types: deb\nURIs: http://{settings.gateway}:{settings.port}/{folder}/\n"
        f"Suites: ./\nSigned-By:\n{lines}\n"
    )


def _ensure_built(settings: Settings) -> bool:
    kernel = os.uname().release
    mark = settings.repository / "built"
    wanted = hashlib.sha256(f"{FORMAT} {kernel} {driver.VERSIONS}".encode()).hexdigest()
    if read_text(mark) == wanted:
        return False
    home = settings.state / "signing"
    _ensure_key(home, _SIGNER)
    building = settings.state / "repository.building"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(mode=0o755)
    public = building / "public"
    tools = toolkit.packages()
    _write(public / DRIVER_FOLDER, [*driver.driver_packages(), *tools], home, "NVIDIA CUDA")
    for name in ubuntu.RELEASES:
        _write(public / folder_of(name), [*ubuntu.cuda_packages(), *tools], home, "NVIDIA CUDA")
        _write(public / "ubuntu" / name, ubuntu.archive_packages(name), home, "Ubuntu")
    _write(public / KERNEL_FOLDER, driver.header_packages(kernel), home, "Kernel")
    _write(public / EMPTY_FOLDER, [], home, "Kernel")
    stranger = settings.state / "signing-unknown"
    _ensure_key(stranger, _STRANGER)
    _write(public / UNKNOWN_FOLDER, [], stranger, "NVIDIA CUDA")
    _stop_agent(stranger)
    listed = _gpg(home, "--with-colons", "--list-keys")
    prints = [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")]
    exported = _gpg(home, "--armor", "--export", prints[0])
    write_atomic(building / "key.asc", exported)
    write_atomic(building / "fingerprint", prints[0] + "\n")
    write_atomic(building / "built", wanted)
    _stop_agent(home)
    # Hosts may be reading: the old one is moved away only in the moment in which the new one comes.
    old = settings.state / "repository.old"
    shutil.rmtree(old, ignore_errors=True)
    if settings.repository.exists():
        settings.repository.rename(old)
    building.rename(settings.repository)
    shutil.rmtree(old, ignore_errors=True)
    return True


def _write(folder: Path, packages: Sequence[deb.Package], home: Path, label: str) -> None:
    """Write a flat repository and sign it."""
    folder.mkdir(parents=True)
    built = [(package, deb.build(package)) for package in packages]
    for package, data in built:
        (folder / package.filename).write_bytes(data)
    text = deb.index(built, "./").encode()
    files = {"Packages": text, "Packages.gz": deb.compress(text)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        # What a host with the fault index_hash gets: as long, and not the same.
        (folder / f"{name}.other").write_bytes(data[:-1] + bytes(byte ^ 1 for byte in data[-1:]))
    date = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
    release = folder / "Release"
    write_atomic(
        release,
        deb.release(files, origin="llmetal sandbox", label=f"{label} (simulated)", date=date),
    )
    _gpg(home, "--clearsign", "--output", str(folder / "InRelease"), str(release))
    _gpg(home, "--armor", "--detach-sign", "--output", f"{release}.gpg", str(release))


def _ensure_key(home: Path, signer: str) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    known = ["gpg", "--homedir", str(home), "--list-secret-keys", f"={signer}"]
    if not run(known, timeout=_TIMEOUT).ok:
        _gpg(home, "--quick-generate-key", signer, "ed25519", "sign")


def _gpg(home: Path, *words: str) -> str:
    argv = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet", "--no-tty"]
    done = run([*argv, "--passphrase", "", "--digest-algo", "SHA512", *words], timeout=_TIMEOUT)
    if not done.ok:
        raise LlmetalError(
            what="the local package repository cannot be signed",
            where=str(home),
            why=done.tail(),
            fix="install gnupg, and see that the folder is not on a full disk",
        )
    return done.stdout


def _stop_agent(home: Path) -> None:
    if home.is_dir():
        run(["gpgconf", "--homedir", str(home), "--kill", "all"], timeout=_TIMEOUT)
