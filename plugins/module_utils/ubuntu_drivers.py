# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `ubuntu-drivers` recommends: asked, parsed, nothing installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

PROGRAM = "/usr/bin/ubuntu-drivers"
_LIST = ("list", "--gpgpu", "--recommended")
_TIMEOUT = 60
"""It reads the whole package index, and asks about every device: seconds, on a slow disk more."""
_TOLD = 3
_DRIVER = re.compile(r"nvidia-(driver|headless(-no-dkms)?)-\d{3}(-server)?(-open)?")
_NOISE = re.compile(r"udevadm hwdb is deprecated|ERROR:root:aplay|This is gpgpu mode")


def parse_list(text: str) -> str | None:
    """The driver package that `list --recommended` names; the first one, where it names more.

    A line is the package and the one of its modules: `nvidia-driver-580-server
    linux-modules-nvidia-580-server-generic`, or the package alone.
    """
    for line in text.splitlines():
        words = line.replace(",", " ").split()
        if words and _DRIVER.fullmatch(words[0]):
            return words[0]
    return None


def parse_devices(text: str) -> dict[str, Any]:
    """The driver packages that `devices` offers, and the one that it marks as recommended.

    A line is `driver   : nvidia-driver-580-open - distro non-free recommended`.
    """
    offered: list[str] = []
    recommended: str | None = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        package, _, words = value.partition(" - ")
        name = package.strip()
        if key.strip() != "driver" or not _DRIVER.fullmatch(name):
            continue
        if name not in offered:
            offered.append(name)
        if recommended is None and "recommended" in words.split():
            recommended = name
    return {"offered": sorted(offered), "recommended": recommended}


def said(*answers: CommandResult) -> str | None:
    """The last lines that are no noise, for a person who wonders why nothing is recommended."""
    lines = [
        line.strip()
        for answer in answers
        for line in f"{answer.stdout}\n{answer.stderr}".splitlines()
        if line.strip() and not _NOISE.search(line)
    ]
    return " ".join(dict.fromkeys(lines[-_TOLD:])) or None


def _server(program: str) -> tuple[str | None, str | None]:
    """What is recommended for computing; else what was said instead.

    By default only packages count whose modules are prebuilt for the kernel. Where there are none,
    those that DKMS builds do too, as the driver set of a lock is built by DKMS anyway.
    """
    plain = run([program, *_LIST], timeout=_TIMEOUT)
    package = parse_list(plain.stdout)
    if package is not None:
        return package, None
    built = run([program, *_LIST, "--include-dkms"], timeout=_TIMEOUT)
    package = parse_list(built.stdout)
    return package, None if package else said(plain, built)


def collect(program: str = PROGRAM) -> dict[str, Any]:
    """Ask `ubuntu-drivers`; null for what it does not say, or where it is not installed."""
    nothing: dict[str, Any] = {
        "path": None,
        "server": None,
        "desktop": None,
        "offered": [],
        "said": None,
    }
    if not Path(program).exists():
        return nothing
    found = {**nothing, "path": program}
    try:
        found["server"], found["said"] = _server(program)
        devices = run([program, "devices"], timeout=_TIMEOUT)
    except LlmetalError as error:
        return {**found, "said": error.what}
    seen = parse_devices(devices.stdout)
    if seen["recommended"] is None and found["said"] is None:
        found["said"] = said(devices)
    return {**found, "desktop": seen["recommended"], "offered": seen["offered"]}
