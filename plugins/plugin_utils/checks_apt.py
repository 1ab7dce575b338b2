# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of package sources and package management."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.look import Look
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import Context

_OLD_KEY = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
_NEW_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
_DRIVER = re.compile(r"(lib)?nvidia-(?!container)")
_AT_WORK = ("active", "activating")
_UPGRADES = ("apt-daily.service", "apt-daily-upgrade.service")


def _address(uri: str) -> str:
    return uri.rstrip("/").lower()


def _suite(suite: str) -> str:
    return suite.strip("/").removeprefix("./").rstrip(".") if suite.endswith("/") else suite


def _repositories(entry: Look) -> set[tuple[str, str]]:
    return {
        (_address(uri), _suite(suite))
        for uri in entry.texts("uris")
        for suite in entry.texts("suites")
    }


def _key(entry: Look) -> tuple[str | None, tuple[str, ...]]:
    """The key of a declaration; of one that stands in it only the fingerprints tell which."""
    signed_by = entry.text("signed_by")
    return signed_by, entry.texts("fingerprints") if signed_by == "(embedded)" else ()


def source_conflict(context: Context, findings: Findings) -> None:
    """One repository declared twice with two keys: apt then refuses to do anything."""
    if context.scope != "system":
        return
    seen: dict[tuple[str, str], Look] = {}
    for entry in context.look.rows("apt", "sources"):
        for repository in sorted(_repositories(entry)):
            other = seen.setdefault(repository, entry)
            if _key(other) == _key(entry):
                continue
            files = " and ".join(sorted({str(e.text("file")) for e in (other, entry)}))
            findings.add(
                "source-conflict",
                fact=f"{repository[0]} stands in {files} with two different signed-by",
                fix="keep one declaration and delete the other",
            )
            return
    _planned_twice(context, findings)


def _planned_twice(context: Context, findings: Findings) -> None:
    """The planned source, which somebody declared already with another key."""
    if not context.wants_driver or not context.source_uri:
        return
    wanted = (_address(context.source_uri), _suite(context.source_suite or "/"))
    for entry in context.look.rows("apt", "sources"):
        name = str(entry.text("file")).rpartition("/")[2]
        if name.startswith("llmetal-") or wanted not in _repositories(entry):
            continue
        key = (context.source_fingerprint or "").replace(" ", "").upper()
        if not key or key in entry.texts("fingerprints"):
            continue
        findings.add(
            "source-conflict",
            fact=f"{entry.text('file')} declares {context.source_uri} already, with "
            f"{entry.text('signed_by') or 'no key of its own'}",
            fix=f"delete {entry.text('file')}, or its lines for this address",
        )
        return


def old_key(context: Context, findings: Findings) -> None:
    """A repository of NVIDIA that is checked with the key of before April 2022."""
    if context.scope != "system":
        return
    old, shared = [], False
    for entry in context.look.rows("apt", "sources"):
        own = entry.known("fingerprints")
        keys = entry.texts("fingerprints") if own else context.look.texts("apt", "trusted")
        ours = own or (entry.text("signed_by") is None and "nvidia.com" in str(entry.texts("uris")))
        if ours and _OLD_KEY in keys and _NEW_KEY not in keys:
            old.append(str(entry.text("file")))
            shared = shared or not own
    if old:
        files = " and ".join(dict.fromkeys(old))
        place = ", which is in trusted.gpg or trusted.gpg.d" if shared else ""
        findings.add(
            "apt-key-old",
            fact=f"{files}: trusted is only the key 7FA2AF80{place}",
            fix="delete what is named here, then install cuda-keyring (key 3BF863CC), or let "
            "llmetal declare the source (llmetal_driver.mirror)",
        )


def proxy(context: Context, findings: Findings) -> None:
    """A cache between the host and a repository outside the distribution."""
    proxies = context.look.texts("apt", "proxy")
    if context.wants_driver and context.source_uri and proxies:
        findings.add(
            "apt-proxy",
            fact=f"apt goes through {', '.join(proxies)}",
            fix="where a download has another hash than its index, clear /var/lib/apt/lists and "
            "let the "
            "proxy fetch it anew, or set Acquire::http::Proxy::<host> to DIRECT",
        )


def busy(context: Context, findings: Findings) -> None:
    """Another program that installs packages now."""
    if context.scope != "system":
        return
    look = context.look
    who = [
        f"process {row.number('pid')} ({row.text('program')}) holds {row.text('path')}"
        for row in look.rows("apt", "locked_by")
    ]
    who += [
        f"{name} is at work"
        for name in _UPGRADES
        if look.text("services", name, "active") in _AT_WORK
    ]
    if look.text("apt", "cloud_init") == "running":
        who.append("cloud-init has not ended")
    if who:
        findings.add(
            "apt-busy",
            fact="; ".join(who),
            fix="the run waits for it; cloud-init status --wait waits before it. Never delete a "
            "lock file",
        )


def unattended(context: Context, findings: Findings) -> None:
    """A driver that an upgrade may replace under the running module."""
    look = context.look
    if not context.uses_own_driver or not look.flag("apt", "unattended"):
        return
    held, spared = set(look.texts("held")), look.texts("apt", "unattended_spares")
    bare = [
        name
        for name in sorted(context.facts.packages)
        if _DRIVER.match(name) and name not in held and not _matches(spared, name)
    ]
    if bare:
        more = f" and {len(bare) - 3} more" if len(bare) > 3 else ""  # noqa: PLR2004 - enough to see
        findings.add(
            "unattended-upgrades",
            fact=f"neither held nor excluded: {', '.join(bare[:3])}{more}",
            fix="apt-mark hold these packages, or add nvidia- and libnvidia- to "
            "Unattended-Upgrade::Package-Blacklist",
        )


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    for pattern in patterns:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue
    return False


def held(context: Context, findings: Findings) -> None:
    """A package of the set that somebody put on hold in another version."""
    own = set(context.look.texts("receipts", "nvidia_driver", "packages"))
    for name in context.look.texts("held"):
        planned = context.driver_packages.get(name)
        there = context.facts.packages.get(name)
        if planned and name not in own and planned != there:
            findings.add(
                "held-packages",
                fact=f"{name} is on hold in version {there or 'none'}, planned is {planned}",
                fix=f"apt-mark unhold {name}, or set llmetal_driver.version to the version on hold",
            )
            return


CHECKS = (source_conflict, old_key, proxy, busy, unattended, held)
