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
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

FORMAT = 2
DRIVER_FOLDER = "cuda/debian/x86_64"
KERNEL_FOLDER = "kernel"
EMPTY_FOLDER = "kernel-empty"
"""What a host with the fault no_headers sees in place of the kernel folder."""
_TIMEOUT = 60.0


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
    _stop_agent(settings.state / "signing")


def kernel_source(settings: Settings) -> str:
    """The source that a guest has for its kernel's headers, as if from its distribution."""
    key = read_text(settings.repository / "key.asc") or ""
    lines = "\n".join(f" {line or '.'}" for line in key.strip().splitlines())
    return (
        f"Types: deb\nURIs: http://{settings.gateway}:{settings.port}/{KERNEL_FOLDER}/\n"
        f"Suites: ./\nSigned-By:\n{lines}\n"
    )


def _ensure_built(settings: Settings) -> bool:
    kernel = os.uname().release
    guest = settings.files / "guest"
    mark = settings.repository / "built"
    wanted = _digest(kernel, guest)
    if read_text(mark) == wanted:
        return False
    home = settings.state / "signing"
    _ensure_key(home)
    building = settings.state / "repository.building"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(mode=0o755)
    _write(building / "public" / DRIVER_FOLDER, driver.driver_packages(guest), home, "NVIDIA CUDA")
    _write(building / "public" / KERNEL_FOLDER, driver.header_packages(kernel), home, "Kernel")
    _write(building / "public" / EMPTY_FOLDER, [], home, "Kernel")
    listed = _gpg(home, "--with-colons", "--list-keys")
    prints = [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")]
    exported = _gpg(home, "--armor", "--export", prints[0])
    write_atomic(building / "key.asc", exported)
    write_atomic(building / "fingerprint", prints[0] + "\n")
    write_atomic(building / "built", wanted)
    _stop_agent(home)
    shutil.rmtree(settings.repository, ignore_errors=True)
    building.rename(settings.repository)
    return True


def _digest(kernel: str, guest: Path) -> str:
    digest = hashlib.sha256(f"{FORMAT} {kernel} {driver.VERSIONS}".encode())
    for path in sorted(guest.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


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
    date = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
    release = folder / "Release"
    write_atomic(
        release,
        deb.release(files, origin="llmetal sandbox", label=f"{label} (simulated)", date=date),
    )
    _gpg(home, "--clearsign", "--output", str(folder / "InRelease"), str(release))
    _gpg(home, "--armor", "--detach-sign", "--output", f"{release}.gpg", str(release))


def _ensure_key(home: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    signer = "llmetal sandbox <sandbox@invalid>"
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
