# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what of the kernel a driver needs: headers of each kernel that may run it, a compiler.

Modules are built for the running kernel, and for the newest installed one where that is another:
a reboot boots it, and a driver without a module for it is gone then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Candidates
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

COMPILER = "gcc"


def headers_of(release: str) -> str:
    """The package with the headers of a kernel."""
    return f"linux-headers-{release}"


def newest(facts: Facts) -> str | None:
    """The newest installed kernel, where it is another one than the running one."""
    last = facts.kernels[-1] if facts.kernels else None
    return last if facts.kernel and last != facts.kernel else None


def questions(facts: Facts) -> tuple[str, ...]:
    """The packages whose versions the resolve stage has to ask for."""
    kernels = (facts.kernel, newest(facts))
    return (*(headers_of(release) for release in kernels if release), COMPILER)


def nothing(facts: Facts) -> dict[str, Any]:
    """The kernel of a host that builds no modules."""
    return {"running": facts.kernel or None, "headers": None, "compiler": None, "newest": None}


def decide(facts: Facts, candidates: Candidates, findings: Findings) -> dict[str, Any]:
    """Headers and compiler in exact versions.

    Args:
        facts: what the survey saw.
        candidates: the versions that there are.
        findings: collects what stands against it.
    """
    after = newest(facts)
    return {
        "running": facts.kernel or None,
        "headers": _headers(facts, candidates, findings),
        "compiler": _compiler(facts, candidates, findings),
        "newest": after
        and {"release": after, "headers": _newest_headers(after, facts, candidates, findings)},
    }


def unresolved(facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """The same without the versions that only package sources know, and the fields that lack."""
    after = newest(facts)
    version = facts.headers_version if facts.headers_installed else None
    kernel: dict[str, Any] = {
        "running": facts.kernel or None,
        "headers": {"package": headers_of(facts.kernel), "version": version},
        "compiler": {"package": COMPILER, "version": facts.packages.get(COMPILER)},
        "newest": None,
    }
    if not facts.kernel:
        kernel["headers"] = {"package": "linux-headers", "version": None}
    fields = [f"kernel.{name}" for name in ("headers", "compiler") if not kernel[name]["version"]]
    if after:
        package = headers_of(after)
        row = {"package": package, "version": facts.packages.get(package)}
        kernel["newest"] = {"release": after, "headers": row}
        fields += [] if row["version"] else ["kernel.newest.headers"]
    return kernel, fields + ([] if facts.kernel else ["kernel.running"])


def _headers(facts: Facts, candidates: Candidates, findings: Findings) -> dict[str, Any] | None:
    package = headers_of(facts.kernel)
    if facts.headers_installed:
        return {"package": package, "version": facts.headers_version}
    if version := candidates.newest(package):
        return {"package": package, "version": version}
    findings.add(
        "headers-missing",
        fact=f"Linux {facts.kernel} runs, and no source of the host has {package}",
        fix="boot a kernel that the distribution still carries (upgrade it, reboot), or add a "
        "source with its headers",
    )
    return None


def _newest_headers(
    release: str, facts: Facts, candidates: Candidates, findings: Findings
) -> dict[str, Any] | None:
    package = headers_of(release)
    if version := facts.packages.get(package) or candidates.newest(package):
        return {"package": package, "version": version}
    findings.add(
        "headers-missing-newest",
        fact=f"Linux {facts.kernel} runs, a reboot boots Linux {release}, and no source of the "
        f"host has {package}",
        fix=f"remove that kernel (apt-get purge linux-image-{release}), or add a source with its "
        "headers",
    )
    return None


def _compiler(facts: Facts, candidates: Candidates, findings: Findings) -> dict[str, Any] | None:
    version = facts.packages.get(COMPILER) or candidates.newest(COMPILER)
    if version or facts.compiler:
        return {"package": COMPILER, "version": version}
    fix = "add the distribution's main component to the host's sources"
    findings.add("compiler-missing", fact=f"no source of the host has {COMPILER}", fix=fix)
    return None


def secure_boot(
    request: HostRequest, facts: Facts, compat: Compat, findings: Findings
) -> dict[str, str] | None:
    """The key that signs the modules, where the host loads signed ones only; None for none."""
    if facts.secure_boot != "enabled":
        return None
    if request.driver.secure_boot != "enrol":
        findings.add(
            "secure-boot",
            fact="Secure Boot is enabled",
            fix="set llmetal_driver.secure_boot to enrol (a key is prepared, and a person confirms "
            "it once at the console), or turn Secure Boot off",
        )
        return None
    row = compat.systems.get(facts.os_key, {}).get("signing")
    return {"key": str(row["key"]), "certificate": str(row["certificate"])} if row else None
