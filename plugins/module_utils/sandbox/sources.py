# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine's own package sources, and the same ones for another Debian release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
_SUITE = re.compile(
    r"^(?:bullseye|bookworm|trixie|forky|duke|sid|unstable|testing|stable|oldstable)"
    r"(?P<pocket>-security|/updates|-updates|-backports)?$"
)
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>\S.*)$")


@dataclass(frozen=True)
class Source:
    """One line or stanza of apt's configuration, of type deb."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True)
class Mirror:
    """Where this machine gets Debian from."""

    main: str
    security: str | None

    def lines(self, codename: str) -> list[str]:
        """One-line sources for a release."""
        components = " ".join(COMPONENTS)
        lines = [
            f"deb {self.main} {codename} {components}",
            f"deb {self.main} {codename}-updates {components}",
        ]
        if self.security:
            lines.append(f"deb {self.security} {codename}-security {components}")
        return lines

    def stanzas(self, codename: str) -> str:
        """The same as a deb822 file for the guest."""
        keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
        pairs = [(self.main, f"{codename} {codename}-updates")]
        if self.security:
            pairs.append((self.security, f"{codename}-security"))
        return "\n".join(
            f"Types: deb\nURIs: {uri}\nSuites: {suites}\n"
            f"Components: {' '.join(COMPONENTS)}\nSigned-By: {keyring}\n"
            for uri, suites in pairs
        )


def parse_one_line(text: str) -> list[Source]:
    """The deb entries of a `sources.list` file."""
    sources = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if not match:
            continue
        suite, *components = match["rest"].split()
        signed = re.search(r"signed-by=(\S+)", match["options"] or "")
        sources.append(
            Source(match["uri"], (suite,), tuple(components), signed[1] if signed else "")
        )
    return sources


def parse_deb822(text: str) -> list[Source]:
    """The enabled deb entries of a `.sources` file."""
    sources = []
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", kept):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')} {line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        is_enabled = fields.get("enabled", "yes").lower() not in {"no", "false", "0"}
        if "deb" not in fields.get("types", "").split() or not is_enabled:
            continue
        suites = tuple(fields.get("suites", "").split())
        components = tuple(fields.get("components", "").split())
        sources += [
            Source(uri, suites, components, fields.get("signed-by", ""))
            for uri in fields.get("uris", "").split()
        ]
    return sources


def choose_mirror(sources: list[Source]) -> Mirror | None:
    """Debian's own archive among the sources of a machine; None where it is not there.

    Other archives use Debian's suite names too. Debian's own is the one signed by its archive
    keyring, or whose path says so.
    """
    main: list[tuple[int, str]] = []
    security: list[tuple[int, str]] = []
    for source in sources:
        weight = _weight(source)
        if not weight or "main" not in source.components:
            continue
        for suite in source.suites:
            match = _SUITE.match(suite)
            if match and match["pocket"] in {"-security", "/updates"}:
                security.append((-weight, source.uri))
            elif match and match["pocket"] is None:
                main.append((-weight, source.uri))
    if not main:
        return None
    return Mirror(
        _trim(min(main, key=_first)[1]), _trim(min(security, key=_first)[1]) if security else None
    )


def machine_mirror(override: str, apt: Path = Path("/etc/apt")) -> Mirror:
    """The mirror to build bases from.

    Raises:
        LlmetalError: this machine has no source of Debian, and none is given.
    """
    if override:
        return Mirror(_trim(override), None)
    sources = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        text = read_text(path)
        if text is None:
            continue
        parse = parse_deb822 if path.suffix == ".sources" else parse_one_line
        sources += [_follow(source) for source in parse(text)]
    mirror = choose_mirror(sources)
    if mirror is None:
        raise LlmetalError(
            what="this machine's package sources name no Debian archive",
            where=str(apt),
            why="sandbox hosts are Debian hosts, made from the machine's own sources",
            fix="set sandbox_debian_mirror to the address of a Debian archive",
        )
    return mirror


def _weight(source: Source) -> int:
    if "debian-archive" in source.signed_by:
        return 3
    path = urlsplit(source.uri).path.rstrip("/")
    last = path.rsplit("/", 1)[-1]
    if last in {"debian", "debian-security"}:
        return 2
    return 1 if last.startswith("debian") else 0


def _follow(source: Source) -> Source:
    """Replace a list of mirrors in a file by its first entry."""
    prefix = "mirror+file:"
    if not source.uri.startswith(prefix):
        return source
    for line in (read_text(source.uri[len(prefix) :]) or "").splitlines():
        words = line.split("#", 1)[0].split()
        if words:
            return Source(words[0], source.suites, source.components, source.signed_by)
    return source


def _trim(uri: str) -> str:
    return uri.rstrip("/")


def _first(pair: tuple[int, str]) -> int:
    return pair[0]
