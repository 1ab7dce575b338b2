# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt and dpkg say when they fail, as one cause and one way out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError


@dataclass(frozen=True)
class Signature:
    """A text that apt prints, and what it means; `{0}`, `{1}` are the pattern's groups."""

    kind: str
    pattern: re.Pattern[str]
    what: str
    fix: str


def _signature(kind: str, pattern: str, what: str, fix: str) -> Signature:
    return Signature(kind, re.compile(pattern, re.MULTILINE), what, fix)


SIGNATURES = (
    _signature(
        "locked",
        r"(?:Could not get lock|Unable to lock directory|frontend lock was locked by) ?(\S+?)?"
        r"(?:\. It is held by process (\d+) \(([^)]*)\)|\s|$)",
        "another package manager is at work",
        "wait for it to end (unattended-upgrades, apt-daily, a person), never delete the lock file",
    ),
    _signature(
        "disk_full",
        r"(?:cannot copy extracted data for '[^']*' to '([^']+)'.*)?No space left on device"
        r"|You don't have enough free space in (\S+)",
        "the disk is full",
        "make room in /var (apt-get clean, old kernels, logs), or on the file system of the path"
        " that is named here, then run again",
    ),
    _signature(
        "interrupted",
        r"dpkg was interrupted",
        "an earlier dpkg was interrupted",
        "run `dpkg --configure -a` on the host and see what it says",
    ),
    _signature(
        "signed_by_conflict",
        r"Conflicting values set for option Signed-By regarding source (\S+) (\S+):",
        "the repository {0} is declared twice with two keys",
        "keep one declaration in /etc/apt/sources.list and sources.list.d, delete the other",
    ),
    _signature(
        "malformed_sources",
        r"(?:Malformed entry .* in (?:list|sources) file (\S+)|The list of sources could not be)",
        "apt cannot read its sources",
        "correct or delete the file that apt names",
    ),
    _signature(
        "unknown_key",
        r"NO_PUBKEY ([0-9A-F]+)|Missing key ([0-9A-F]+)",
        "the repository is signed by a key that the host does not trust",
        "find out which key the repository has now; give that one and its fingerprint in the"
        " inventory",
    ),
    _signature(
        "bad_signature",
        r"(?:BADSIG|EXPKEYSIG|EXPSIG|REVKEYSIG) ([0-9A-F]+)|Signing key on ([0-9A-F]+) is"
        r"|Policy rejected",
        "the signature of the repository is not good",
        "renew the key where it has expired; where the signature is bad, do not use the mirror",
    ),
    _signature(
        "unsigned",
        r"repository '([^']+)' is not signed|The repository .* is no longer signed",
        "the repository is not signed",
        "use a signed repository; llmetal installs nothing unsigned",
    ),
    _signature(
        "hash_mismatch",
        r"Hash Sum mismatch|File has unexpected size",
        "the repository's index and its files are of two moments",
        "wait for the mirror to finish and clear caches between it and the host; never turn the"
        " check off",
    ),
    _signature(
        "expired",
        r"Release file for (\S+) is (?:expired|not valid yet)",
        "the index of the repository is not valid now",
        "check the clock of the host and how old the mirror is",
    ),
    _signature(
        "not_found",
        r"Err:\d+ (\S+) .*\n\s+404 "
        r"|E: Failed to fetch (\S+) +404 "
        r"|The repository '(\S+)[^']*' (?:does not have a|no longer has a) Release file",
        "the repository does not have what was asked for (404)",
        "check address and suite in the inventory; where the index is old, plan the host anew",
    ),
    _signature(
        "no_candidate",
        r"Version '([^']+)' for '([^']+)' was not found"
        r"|Unable to locate package (\S+)"
        r"|Package '?([^' ]+)'? has no installation candidate",
        "a package of the lock is in none of the host's sources",
        "check that the source still carries this version; if it does not, plan the host anew",
    ),
    # Before the dependencies: what needs the module's package is then not configured either.
    _signature(
        "module_build",
        r"Bad return status for module build on kernel: (\S+)"
        r"|Your kernel headers for kernel (\S+) cannot be found",
        "the kernel module was not built",
        "read /var/lib/dkms/nvidia/*/build/make.log; it needs headers of just this kernel and a"
        " compiler, and a driver that knows this kernel",
    ),
    _signature(
        "dependencies",
        r"The following packages have unmet dependencies:|you have held broken packages"
        r"|dependency problems prevent configuration"
        r"|Held packages were changed",
        "the packages cannot be installed together",
        "see what holds or offers another version (`apt-mark showhold`, `apt-cache policy`), take"
        " it away or plan anew",
    ),
    _signature(
        "script_failed",
        r"(?:installed|old|new) (\S+) package (\S+) (?:maintainer )?script subprocess returned",
        "the {1} script of the package {0} failed",
        "read what it printed; after the cause is gone the next run goes on from here",
    ),
    _signature(
        "unreachable",
        r"Could not resolve '([^']+)'|Could not connect to (\S+)|Cannot initiate the connection to"
        r" (\S+)|Connection timed out|Temporary failure resolving '([^']+)'"
        r"|Unable to connect to (\S+)|File not found - (\S+)",
        "the repository cannot be reached",
        "check the address, the network of the host, and apt's proxy",
    ),
)


_DPKG_ERROR = "dpkg: error"
_STEP = re.compile(r"(Setting up|Unpacking|Preparing|Processing|Selecting|\(Reading) ")
_MARKS = ("E:", "Err:", _DPKG_ERROR, "Error!", "404", "W: Failed", "W: GPG")
_NOISE = (
    "E: Some index files failed",
    "E: The following information from --solver",
    "E: Sub-process /usr/bin/dpkg returned",
    "E: Unable to fetch some archives",
)
_UNMET = re.compile(r"^\S+ : |(Pre-)?(Depends|Conflicts|Breaks): .* but ")


def recognise(output: str) -> tuple[Signature, tuple[str, ...]] | None:
    """The first known cause in apt's output, and the words that were found with it."""
    for signature in SIGNATURES:
        match = signature.pattern.search(output)
        if match:
            return signature, tuple(group for group in match.groups() if group)
    return None


def _reason(output: str) -> str:
    """The lines in which apt and dpkg say what went wrong, without repetition."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    chosen: list[str] = []
    for index, line in enumerate(lines):
        said = [line] if line.startswith(_MARKS) or _UNMET.search(line) else []
        if line.startswith(_DPKG_ERROR) and line.endswith("(--unpack):"):
            said = lines[index + 1 : index + 2]
        elif line.startswith(_DPKG_ERROR):
            # What a script printed before it failed is the cause; dpkg names only the package.
            said = [
                *[one for one in lines[max(0, index - 2) : index] if not _STEP.match(one)],
                line,
            ]
        chosen += [one for one in said if one not in chosen and not one.startswith(_NOISE)]
    if any(line.startswith("E:") for line in chosen):
        chosen = [line for line in chosen if not line.startswith("Err:")]
    return " / ".join(chosen[:4] or lines[-3:]).rstrip(".:")


class AptError(LlmetalError):
    """A failure of apt or dpkg; `kind` is that of its signature, `unknown` where it has none."""

    kind = "unknown"


def failure(output: str, *, stage: str, where: str = "") -> AptError:
    """The error that stands for a failed apt or dpkg.

    Args:
        output: all that it printed.
        stage: what was being done, as in "installing packages".
        where: the source, file or package that it was done with, if apt does not say it better.
    """
    found = recognise(output)
    why = _reason(output)
    if found is None:
        return AptError(
            what=f"{stage} failed",
            where=where,
            why=why,
            fix="run it on the host and see what apt says",
        )
    signature, words = found
    what = signature.what
    if "{" in what:
        padded = (*words, "?", "?")
        what = what.format(padded[0], padded[1])
    error = AptError(
        what=f"{stage} failed: {what}",
        where=" ".join(words).rstrip(".") or where,
        why=why,
        fix=signature.fix,
    )
    error.kind = signature.kind
    return error
