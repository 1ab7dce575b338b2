# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take the driver branch that `ubuntu-drivers` recommends on a host, where the inventory asks so.

Only the branch: modules and releases are decided as ever, and the data says whether it fits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import OperatingSystem
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import (
        Finding,
        Findings,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_COMMANDS = {
    "ubuntu": "ubuntu-drivers list --gpgpu --recommended",
    "ppa": "ubuntu-drivers devices",
}
"""What says it, by package source: the archive's branches for servers, or all that there are."""

_INSTEAD = "set llmetal_driver.chooser to data"
_FIRST = "llmetal_driver.branch goes before the chooser"
_ABOUT_THE_BRANCH = frozenset(
    {"branch-ended", "cuda-driver-soft", "driver-set-incomplete", "driver-version"}
)
"""Rules that another branch would keep, besides those that say so themselves."""


def choose(
    request: HostRequest, facts: Facts, system: OperatingSystem, findings: Findings
) -> tuple[str, list[str]] | None:
    """The recommended branch and why; None where nobody asks for it, or none can be had.

    Args:
        request: what the inventory asks, with its package source settled.
        facts: what the survey saw.
        system: the host's operating system.
        findings: collects why none can be had.
    """
    if not _is_asked(request) or request.hypothetical or _pinned(request):
        return None
    source = request.driver.source
    command = _COMMANDS.get(source)
    if command is None or system.family != "ubuntu":
        way = "set llmetal_driver.source to ubuntu or ppa, or " if system.family == "ubuntu" else ""
        findings.add(
            "driver-chooser-system",
            fact=f"llmetal_driver.chooser is ubuntu_drivers, the host has {system.key}, the driver "
            f"comes from source {source}",
            fix=way + _INSTEAD,
        )
        return None
    seen = facts.ubuntu_drivers
    if seen is None:
        findings.add(
            "driver-chooser-missing",
            fact="the survey did not ask ubuntu-drivers",
            fix=f"survey the host again, with llmetal_driver.chooser as it is now; or {_INSTEAD}",
        )
        return None
    if not seen.installed:
        findings.add(
            "driver-chooser-missing",
            fact="ubuntu-drivers is not installed",
            fix=f"apt-get install ubuntu-drivers-common on the host, or {_INSTEAD}",
        )
        return None
    package = _recommended(facts, source)
    branch = _branch_in(package)
    if branch is None:
        told = f", and says: {seen.said}" if seen.said else ""
        findings.add(
            "driver-chooser-silent",
            fact=f"`{command}` recommends nothing{told}",
            fix=f"run apt-get update on the host and look again, name a branch in "
            f"llmetal_driver.branch, or {_INSTEAD}",
        )
        return None
    return branch, [f"branch {branch} is what `{command}` recommends ({package})"]


def notes(request: HostRequest, facts: Facts) -> list[str]:
    """What to say of the chooser where it does not choose."""
    if not _is_asked(request):
        return []
    if request.hypothetical:
        return ["what ubuntu-drivers recommends is known on the host only, and may differ"]
    branch = _branch_in(_recommended(facts, request.driver.source))
    if _pinned(request) and branch:
        return [f"ubuntu-drivers, which is not asked then, recommends branch {branch}"]
    return []


def explain(request: HostRequest, findings: Findings) -> None:
    """Say in the fix of what another branch would mend how to have one in spite of the chooser."""
    if not _is_asked(request) or _pinned(request):
        return
    findings.refusals[:] = map(_explained, findings.refusals)
    findings.warnings[:] = map(_explained, findings.warnings)


def _explained(finding: Finding) -> Finding:
    if "driver" not in finding.relax and finding.rule not in _ABOUT_THE_BRANCH:
        return finding
    return replace(finding, fix=f"{finding.fix} ({_FIRST})")


def _is_asked(request: HostRequest) -> bool:
    return request.driver.chooser == "ubuntu_drivers"


def _pinned(request: HostRequest) -> bool:
    """Whether the inventory names a branch or a release itself."""
    return request.driver.branch is not None or request.driver.version is not None


def _recommended(facts: Facts, source: str) -> str | None:
    seen = facts.ubuntu_drivers
    if seen is None:
        return None
    return seen.server if source == "ubuntu" else seen.desktop


def _branch_in(package: str | None) -> str | None:
    found = re.search(r"-(\d{3})(-|$)", package or "")
    return found[1] if found else None
