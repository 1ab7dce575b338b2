# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine an environment holds, asked of the environment's own interpreter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """\
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({
    "engine": version(sys.argv[1]),
    "torch": version("torch"),
    "python": ".".join(map(str, sys.version_info[:3])),
}))
"""


@dataclass(frozen=True)
class Engine:
    """An engine as it is installed."""

    name: str
    version: str | None
    torch: str | None
    python: str
    command: str | None

    def differs_from(self, version: str) -> str:
        """Why this is not the engine at this version; empty if it is.

        What follows a plus sign names the build, not the version.
        """
        if self.version is None:
            return f"no distribution named {self.name} is installed"
        if version not in {self.version, self.version.partition("+")[0]}:
            return f"{self.name} {self.version} is installed, the lock says {version}"
        if self.command is None:
            return f"the environment has no command bin/{self.name}"
        return ""


def parse(name: str, command: str | None, text: str) -> Engine:
    """Read what the script printed.

    Raises:
        ValueError: it printed something else.
    """
    seen = json.loads(text)
    return Engine(name, seen["engine"], seen["torch"], seen["python"], command)


def inspect(environment: Path, name: str, timeout: float) -> Engine:
    """Ask an environment which engine it holds.

    Raises:
        LlmetalError: its interpreter does not run.
    """
    answer = run([str(environment / "bin" / "python"), "-I", "-c", _SCRIPT, name], timeout=timeout)
    command = environment / "bin" / name
    found = str(command) if command.is_file() else None
    try:
        return parse(name, found, answer.stdout)
    except (ValueError, KeyError, TypeError) as error:
        raise LlmetalError(
            what="the environment of the engine does not run",
            where=str(environment),
            why=answer.tail(2),
            fix="run site.yml again; it rebuilds an environment that is not whole",
        ) from error
