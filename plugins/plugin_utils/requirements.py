# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The locked requirements files: which packages, with which hashes, a given Python gets."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import DATA
from packaging.requirements import InvalidRequirement, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

_HASH = "--hash=sha256:"


@dataclass(frozen=True)
class Locked:
    """One line of a requirements file."""

    name: str
    version: str
    sha256: tuple[str, ...]
    marker: Any
    """A `packaging` marker, or None: it holds everywhere."""

    def as_lock(self) -> dict[str, Any]:
        """The requirement as a lock has it."""
        return {"name": self.name, "version": self.version, "sha256": list(self.sha256)}


@functools.cache
def read(name: str) -> tuple[Locked, ...]:
    """Read a file of data/requirements.

    Raises:
        LlmetalError: a line is not of the form `name==version [; marker] --hash=sha256:...`.
    """
    text = (DATA / "requirements" / name).read_text(encoding="utf-8")
    return tuple(parse(text, name))


def parse(text: str, name: str) -> Iterator[Locked]:
    """Read the lines of a requirements file as `uv pip compile --generate-hashes` writes it."""
    for line in text.replace("\\\n", " ").splitlines():
        wanted, *options = line.partition("#")[0].split(" --")
        if not wanted.strip():
            continue
        hashes = tuple(
            option.strip().removeprefix("hash=sha256:")
            for option in options
            if option.startswith(_HASH.removeprefix("--"))
        )
        try:
            requirement = Requirement(wanted)
        except InvalidRequirement as error:
            raise _unreadable(name, wanted, str(error)) from error
        pins = list(requirement.specifier)
        if len(pins) != 1 or pins[0].operator != "==" or not hashes:
            raise _unreadable(name, wanted, "not one exact version with hashes")
        yield Locked(requirement.name, pins[0].version, hashes, requirement.marker)


@functools.cache
def for_python(name: str, python: str, machine: str) -> tuple[Locked, ...]:
    """The requirements of a file that hold for a CPython on Linux.

    Args:
        name: the file.
        python: the interpreter's version, at least major and minor.
        machine: the processor architecture, as `uname -m` says it.
    """
    environment = {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python if python.count(".") > 1 else f"{python}.0",
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
        "extra": "",
    }
    return tuple(
        one for one in read(name) if one.marker is None or one.marker.evaluate(environment)
    )


@functools.cache
def as_lock(name: str, python: str, machine: str) -> list[dict[str, Any]]:
    """The same requirements as a lock has them: one list for all hosts, so do not change it."""
    return [one.as_lock() for one in for_python(name, python, machine)]


def version_of(requirements: tuple[Locked, ...], name: str) -> str | None:
    """The version of one package among requirements."""
    return next((one.version for one in requirements if one.name == name), None)


def _unreadable(name: str, line: str, why: str) -> LlmetalError:
    return LlmetalError(
        what="a line of the locked requirements cannot be read",
        where=f"{name}: {line.strip()}",
        why=why,
        fix="make the file anew with tools/lock_requirements.sh",
    )
