# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's kernel module on disk: for which kernels, built where it lacks, and why it fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils import driver_state
from ansible_collections.llmetal.inference.plugins.module_utils.command import NOT_FOUND, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOGS = ("nvidia*/*/build/make.log", "nvidia*/*/*/*/log/make.log")
_ERROR = re.compile(r"\berror\b|\*\*\*|No such file|No space left", re.IGNORECASE)
_LINES = 3
_KERNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]*")


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def compiler_said(root: str = "/") -> tuple[str, list[str]] | None:
    """The newest log of a build of the driver and the last errors in it; None without a log."""
    base = Path(root) / "var/lib/dkms"
    logs = [(_age(path), path) for pattern in _LOGS for path in base.glob(pattern)]
    if not logs:
        return None
    newest = max(logs)[1]
    lines = [line.strip() for line in (read_text(newest) or "").splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    # The first complaint is the cause; make only repeats that it gave up.
    shown = errors[:_LINES] or lines[-_LINES:]
    return f"/{newest.relative_to(root)}", [line[:300] for line in shown]


@dataclass(frozen=True)
class Module:
    """The driver's module for one kernel: what is on disk, and whether it can be built."""

    kernel: str
    version: str | None
    flavour: str | None
    headers: bool


def look(kernels: Sequence[str], root: str = "/") -> list[Module]:
    """What there is for each kernel."""
    base = Path(root)
    return [
        Module(
            kernel,
            *driver_state.module_on_disk(base, kernel),
            (base / "lib/modules" / kernel / "build").is_dir(),
        )
        for kernel in kernels
    ]


def is_right(module: Module, version: str, flavour: str | None) -> bool:
    """Whether a module is of this version and flavour; one that hides its flavour passes."""
    return module.version == version and (flavour is None or module.flavour in {None, flavour})


def build(kernel: str, *, timeout: float) -> str:
    """Have DKMS build and install all its modules for a kernel; what it said where it failed.

    Raises:
        LlmetalError: it did not end in time.
    """
    told = run(["dkms", "autoinstall", "--kernelver", kernel], timeout=timeout)
    if told.rc == NOT_FOUND:
        return "the host has no dkms"
    return "" if told.ok else told.tail(3).replace("\n", " / ")


def _shown(module: Module) -> str:
    return " ".join(word for word in (module.version, module.flavour) if word) or "none"


def not_built(module: Module, version: str, *, root: str = "/", said: str = "") -> LlmetalError:
    """The failure of a kernel that has no module of the driver."""
    what = f"the driver {version} has no module for Linux {module.kernel}"
    where = f"/lib/modules/{module.kernel}"
    has = f"there is {_shown(module)} on disk"
    if not module.headers:
        return LlmetalError(
            what=what,
            where=where,
            why=f"{has}, and the headers of this kernel are not installed, so none can be built",
            fix=f"install linux-headers-{module.kernel}, or remove that kernel where it is not"
            " needed; then run again. Do not reboot before: that kernel would come up without GPUs",
        )
    log = compiler_said(root)
    why = "; ".join(
        part for part in (has, said, f"{log[0]}: {' / '.join(log[1])}" if log else "") if part
    )
    return LlmetalError(
        what=what,
        where=where,
        why=why,
        fix="where the compiler complains, this driver does not know this kernel: plan a newer"
        " driver or boot an older kernel; then run again. Do not reboot before: that kernel would"
        " come up without GPUs",
    )


def check_names(kernels: Sequence[str]) -> None:
    """See that these can be names of kernels: they become part of a path.

    Raises:
        LlmetalError: one cannot.
    """
    for kernel in kernels:
        if not _KERNEL.fullmatch(kernel):
            raise LlmetalError(
                what=f"{kernel!r} is no release of a kernel", fix="give it as `uname -r` prints it"
            )


def converge(
    kernels: Sequence[str],
    version: str,
    flavour: str | None = None,
    *,
    check_mode: bool,
    timeout: float,
) -> tuple[list[Module], list[Module]]:
    """Have a module of this version and flavour on disk for each kernel; before and after.

    Raises:
        LlmetalError: one cannot be built, and why.
    """
    check_names(kernels)
    before = look(kernels)
    wrong = {module.kernel for module in before if not is_right(module, version, flavour)}
    if not wrong:
        return before, before
    if check_mode:
        return before, [
            Module(m.kernel, version, flavour, m.headers) if m.kernel in wrong else m
            for m in before
        ]
    said = {
        m.kernel: build(m.kernel, timeout=timeout)
        for m in before
        if m.headers and m.kernel in wrong
    }
    after = look(kernels)
    for module in after:
        if not is_right(module, version, flavour):
            raise not_built(module, version, said=said.get(module.kernel, ""))
    return before, after
