# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make .venv from the locked requirements: what `./llmetal` runs before there is anything else.

Standard library only. The environment is built beside and renamed, under a lock: a start that was
interrupted leaves nothing that the next one takes for a finished one, and two starts at once do the
work once.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FAILED = 4
"""The exit status for a set-up that did not work (as for a run that failed)."""

ROOT_STAMP = "llmetal.root"
REQUIREMENTS_STAMP = "llmetal.requirements"
DEV_STAMP = "llmetal.dev-requirements"
_TAIL = 25


class BootstrapError(Exception):
    """The environment cannot be made; the text says why and what to do."""


def say(text: str) -> None:
    """Tell the person at the terminal; standard output belongs to the command."""
    sys.stderr.write(f"llmetal: {text}\n")
    sys.stderr.flush()


def run(argv: Sequence[str], *, fix: str, env: Mapping[str, str] | None = None) -> None:
    """Run one step of the set-up, quiet unless it fails.

    Args:
        argv: the program and its arguments.
        fix: what to do when it fails.
        env: variables added to this process's own.

    Raises:
        BootstrapError: it is not there or ended with another status than 0.
    """
    environment = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "PYTHONHOME"}}
    # uv trusts its own list of authorities by default, not the machine's (a company's among them).
    try:
        done = subprocess.run(
            list(argv),
            check=False,
            env={"UV_SYSTEM_CERTS": "1", **environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        text = f"`{argv[0]}` cannot be run: {error}. What to do: {fix}"
        raise BootstrapError(text) from error
    if done.returncode:
        tail = "\n".join(f"    {line}" for line in done.stdout.strip().splitlines()[-_TAIL:])
        text = (
            f"`{' '.join(argv)}` ended with status {done.returncode}:\n{tail}\n  What to do: {fix}"
        )
        raise BootstrapError(text)


def works(argv: Sequence[str]) -> bool:
    """Whether a program is there and runs (a version manager's shim may be there and not run)."""
    try:
        return subprocess.run(list(argv), check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def has_uv() -> bool:
    """Whether uv can be used."""
    return works(["uv", "--version"])


def venv_package() -> str:
    """The Debian package that brings `venv` for this Python."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}-venv"


def ensure_venv_module() -> None:
    """Make sure that this Python can make an environment with pip in it.

    Raises:
        BootstrapError: it cannot, and this user cannot install what is missing.
    """
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return
    package = venv_package()
    command = f"apt-get install {package}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        text = f"this Python has no `venv` module. What to do, once, as root: {command}"
        raise BootstrapError(text)
    say(f"this Python has no `venv` module: {command}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    with contextlib.suppress(BootstrapError):
        run(install, fix="", env=quiet)
        return
    run(["apt-get", "update"], fix="see that the package sources answer", env=quiet)
    run(install, fix=f"install {package} by hand, then run again", env=quiet)


def install(python: Path, requirements: Path) -> None:
    """Install locked requirements into the environment of a Python, every file checked by its hash.

    Raises:
        BootstrapError: the index does not answer, or a hash differs.
    """
    fix = "see that the package index answers (the settings of pip and uv name it), then run again"
    if has_uv():
        argv = ["uv", "pip", "install", "--quiet", "--python", str(python), "--require-hashes"]
    else:
        argv = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        argv += ["--require-hashes", "--no-deps"]
    run([*argv, "--requirement", str(requirements)], fix=fix)


def create(folder: Path) -> None:
    """Make an empty environment.

    Raises:
        BootstrapError: there is neither uv nor a `venv` module.
    """
    if has_uv():
        run(
            ["uv", "venv", "--quiet", "--python", sys.executable, str(folder)],
            fix="see the message of uv, or take it off PATH: venv and pip are used then",
        )
        return
    ensure_venv_module()
    run([sys.executable, "-m", "venv", str(folder)], fix="see the message, then run again")


def link_project(folder: Path, root: Path, final: Path) -> None:
    """Let the environment import the checkout: its package, and the collection beside it.

    A path file does what an editable install does, without a build backend to download. Its lines
    are relative to the folder that it lies in, so that any name of a checkout will do.
    """
    (site,) = folder.glob("lib/python*/site-packages")
    place = final / site.relative_to(folder)
    lines = [os.path.relpath(root / name, place) for name in ("src", "collections")]
    (site / "llmetal.pth").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def relocate(folder: Path, final: Path) -> None:
    """Make the scripts of an environment right for the place that it is going to be moved to."""
    old, new = os.fsencode(folder), os.fsencode(final)
    for path in (folder / "bin").iterdir():
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if old in data:
            path.write_bytes(data.replace(old, new))


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, whatever ends it; say so when another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another start is setting up; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def is_current(venv: Path, root: Path, stamp: str, requirements: Path) -> bool:
    """Whether the environment was made for this checkout, from these requirements, and runs."""
    try:
        made_for = (venv / ROOT_STAMP).read_text(encoding="utf-8").rstrip("\n")
        made_from = (venv / stamp).read_bytes()
    except OSError:
        return False
    python = venv / "bin" / "python"
    return made_for == str(root) and made_from == requirements.read_bytes() and python.exists()


def set_up(root: Path) -> None:
    """Make .venv, unless it is current.

    Raises:
        BootstrapError: it cannot be made; an older .venv is then left as it was.
    """
    final = root / ".venv"
    requirements = root / "requirements" / "controller.txt"
    with lock(root / ".cache" / "venv.lock"):
        if is_current(final, root, REQUIREMENTS_STAMP, requirements):
            return
        started = time.monotonic()
        tool = "uv" if has_uv() else "venv and pip"
        say(f"setting up .venv with {tool}, once, from requirements/controller.txt")
        new, old = root / ".cache" / "venv.new", root / ".cache" / "venv.old"
        for left_over in (new, old):
            shutil.rmtree(left_over, ignore_errors=True)
        create(new)
        install(new / "bin" / "python", requirements)
        link_project(new, root, final)
        relocate(new, final)
        (new / REQUIREMENTS_STAMP).write_bytes(requirements.read_bytes())
        (new / ROOT_STAMP).write_text(f"{root}\n", encoding="utf-8")
        if final.exists() or final.is_symlink():
            final.rename(old)
        new.rename(final)
        shutil.rmtree(old, ignore_errors=True)
        say(f"set up in {time.monotonic() - started:.0f} s")


def set_up_dev(root: Path) -> bool:
    """Add what the tests need to .venv, unless it is there.

    Returns:
        Whether anything was installed.

    Raises:
        BootstrapError: it cannot be installed.
    """
    venv = root / ".venv"
    requirements = root / "requirements" / "dev.txt"
    with lock(root / ".cache" / "venv.lock"):
        if is_current(venv, root, DEV_STAMP, requirements):
            return False
        say("adding the test tools to .venv, once, from requirements/dev.txt")
        install(venv / "bin" / "python", requirements)
        (venv / DEV_STAMP).write_bytes(requirements.read_bytes())
    return True


def main(argv: Sequence[str]) -> int:
    """Set up the checkout named on the command line."""
    try:
        set_up(Path(argv[0]))
    except BootstrapError as error:
        say(str(error))
        return FAILED
    except OSError as error:
        say(f"the set-up failed: {error}. What to do: free or repair that path, then run again")
        return FAILED
    except KeyboardInterrupt:
        say("interrupted; the next start begins again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
