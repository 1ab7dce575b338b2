# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Package sources: read in both of apt's formats, written in one."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.openpgp import (
    fingerprints,
    require_fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SOURCE_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "type": {"type": "str"},
    "uri": {"type": "str"},
    "suite": {"type": "str", "default": "/"},
    "components": {"type": "list", "elements": "str", "default": []},
    "key": {"type": "str", "no_log": False},
    "fingerprint": {"type": "str"},
}
"""A source as a module takes it: the driver source of a lock as it is."""

ETC_APT = "/etc/apt"
KEYRINGS = "/etc/apt/keyrings"
_ONE_LINE = re.compile(r"^(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*")
_EMBEDDED = "-----BEGIN PGP"
_FIELDS = {"arch": "Architectures", "lang": "Languages", "target": "Targets", "pdiffs": "PDiffs"}
"""Fields of a .sources file that have another name in a .list file."""
_SAID = {"types", "uris", "suites", "components", "enabled"}
_LISTS = {"Architectures", "Languages", "Targets"}


def require_name(name: str) -> None:
    """Check that a source's name can name a file.

    Raises:
        LlmetalError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise LlmetalError(
            what=f"{name!r} is no name for a package source",
            fix="use letters, digits, dashes and underscores: it names a file",
        )


@dataclass(frozen=True)
class Entry:
    """One declaration of a repository, as it stands in a file."""

    file: str
    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None
    options: tuple[tuple[str, str], ...] = ()
    """All that is said besides, by the names that a .sources file has; the key is among them."""

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        del fields["options"]
        return fields

    @property
    def key_text(self) -> str | None:
        """The key that stands in the declaration itself; None where it names a file, or none."""
        text = dict(self.options).get("Signed-By", "")
        return text.strip() + "\n" if _EMBEDDED in text else None


@dataclass(frozen=True)
class Source:
    """A repository that is wanted."""

    name: str
    uri: str
    suite: str
    components: tuple[str, ...]
    key: str | None
    fingerprint: str | None

    @classmethod
    def of(cls, params: Mapping[str, Any] | None) -> Source | None:
        """From a module's parameter; None for the distribution's own sources.

        Raises:
            LlmetalError: something is missing, or the key is another one.
        """
        if not params or not params.get("uri"):
            return None
        source = cls(
            name=params.get("name") or "",
            uri=params["uri"],
            suite=params.get("suite") or "/",
            components=tuple(params.get("components") or ()),
            key=params.get("key"),
            fingerprint=params.get("fingerprint"),
        )
        require_name(source.name)
        if any(c.isspace() for c in source.uri + source.suite + "".join(source.components)):
            raise LlmetalError(
                what=f"the package source {source.name} has a blank in its address",
                fix="give one address, one suite and a list of components",
            )
        if not source.key or not source.fingerprint:
            raise LlmetalError(
                what=f"the package source {source.name} has no key",
                where=source.uri,
                why="a repository outside the distribution is used only with its signing key",
                fix="give its armored public key and the key's fingerprint",
            )
        require_fingerprint(source.key, source.fingerprint, where=source.name)
        return source

    @property
    def flat(self) -> bool:
        """Whether it has no suites: its index lies beside its packages."""
        return self.suite.endswith("/")

    def keyring(self, folder: str = KEYRINGS) -> str:
        """The file of its key."""
        return f"{folder}/{self.name}.asc"

    def key_text(self) -> str:
        """Content of that file."""
        return (self.key or "").rstrip() + "\n"

    def text(self, *, keyring: str) -> str:
        """Content of its .sources file."""
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {self.suite}"]
        if self.components and not self.flat:
            lines.append(f"Components: {' '.join(self.components)}")
        lines.append(f"Signed-By: {keyring}")
        return "# Written by llmetal.\n" + "\n".join(lines) + "\n"

    def same_as(self, entry: Entry) -> bool:
        """Whether an entry declares this repository (its address and suite)."""
        return (
            "deb" in entry.types
            and _address(self.uri) in {_address(uri) for uri in entry.uris}
            and _suite(self.suite) in {_suite(suite) for suite in entry.suites}
        )


def _address(uri: str) -> str:
    """An address without what does not matter: the trailing slash, the case of the scheme."""
    scheme, _, rest = uri.rstrip("/").partition("://")
    return f"{scheme.lower()}://{rest}" if rest else uri.rstrip("/")


def _suite(suite: str) -> str:
    """A suite; `./` and `/` both stand for a repository without any."""
    return suite.strip("/").removeprefix("./").rstrip(".") if suite.endswith("/") else suite


def parse_one_line(text: str, file: str) -> list[Entry]:
    """Read a `.list` file."""
    entries = []
    for raw in text.splitlines():
        match = _ONE_LINE.match(raw.partition("#")[0].strip())
        if not match:
            continue
        options = dict(word.partition("=")[::2] for word in (match[2] or "").split() if "=" in word)
        entries.append(
            Entry(
                file=file,
                types=(match[1],),
                uris=(match[3],),
                suites=(match[4],),
                components=tuple(match[5].split()),
                signed_by=options.get("signed-by"),
                options=tuple(_option(name, value) for name, value in options.items()),
            )
        )
    return entries


def _option(name: str, value: str) -> tuple[str, str]:
    """An option of a .list file as a field of a .sources file."""
    plain, sign = (name[:-1], name[-1]) if name.endswith(("+", "-")) else (name, "")
    field = _FIELDS.get(plain) or "-".join(part.capitalize() for part in plain.split("-"))
    said = value.replace(",", " ") if field in _LISTS else value
    return field + {"+": "-Add", "-": "-Remove"}.get(sign, ""), said


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The stanzas of a deb822 text; continuation lines are joined by newlines."""
    stanza: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza, key = {}, ""
        elif line[0].isspace():
            if key:
                stanza[key] += "\n" + line.strip()
        else:
            name, _, value = line.partition(":")
            key = name.strip().lower()
            stanza[key] = value.strip()


def _unfolded(value: str) -> str:
    """A value of several lines; a dot stands for an empty one."""
    return "\n".join("" if line == "." else line for line in value.split("\n"))


def parse_deb822(text: str, file: str) -> list[Entry]:
    """Read a `.sources` file; disabled stanzas are left out."""
    entries = []
    for stanza in stanzas(text):
        if stanza.get("enabled", "yes").lower() in {"no", "false", "0"}:
            continue
        if "uris" not in stanza:
            continue
        signed_by = stanza.get("signed-by")
        embedded = bool(signed_by and _EMBEDDED in signed_by)
        options = tuple(
            ("-".join(part.capitalize() for part in name.split("-")), _unfolded(value))
            for name, value in stanza.items()
            if name not in _SAID and not name.startswith("x-")
        )
        entries.append(
            Entry(
                file=file,
                types=tuple(stanza.get("types", "deb").split()),
                uris=tuple(stanza["uris"].split()),
                suites=tuple(stanza.get("suites", "").split()),
                components=tuple(stanza.get("components", "").split()),
                signed_by="(embedded)" if embedded else signed_by,
                options=options,
            )
        )
    return entries


def read_entries(etc_apt: str = ETC_APT) -> list[Entry]:
    """All declarations of a host."""
    base = Path(etc_apt)
    entries = parse_one_line(read_text(base / "sources.list") or "", str(base / "sources.list"))
    try:
        files = sorted((base / "sources.list.d").iterdir())
    except OSError:
        files = []
    for path in files:
        text = read_text(path) or ""
        if path.suffix == ".list":
            entries += parse_one_line(text, str(path))
        elif path.suffix == ".sources":
            entries += parse_deb822(text, str(path))
    return entries


def keys_of(entry: Entry) -> list[str] | None:
    """The fingerprints of the keys of a declaration; None where it has none of its own to read."""
    try:
        if entry.key_text is not None:
            return fingerprints(entry.key_text)
        if entry.signed_by and entry.signed_by.startswith("/"):
            return fingerprints(Path(entry.signed_by).read_bytes())
    except (OSError, LlmetalError, ValueError):
        return None
    return None


def _trusts(entry: Entry, fingerprint: str) -> bool:
    """Whether a declaration has a key, and it can be read to see it."""
    return fingerprint.replace(" ", "").upper() in (keys_of(entry) or [])


def _key_name(entry: Entry) -> str:
    """The key of a declaration, for a person."""
    if entry.key_text is None:
        return entry.signed_by or "of no file of its own"
    return f"{' '.join(keys_of(entry) or ['that cannot be read'])} that stands in it"


def declared_elsewhere(source: Source, entries: Sequence[Entry], own_file: str) -> Entry | None:
    """A second declaration of a repository that serves as well as our own would; None if none.

    Raises:
        LlmetalError: there is one that would not; two of them make apt refuse everything.
    """
    for entry in entries:
        if entry.file == own_file or not source.same_as(entry):
            continue
        covers = source.flat or set(source.components) <= set(entry.components)
        if covers and _trusts(entry, source.fingerprint or ""):
            return entry
        raise LlmetalError(
            what=f"the repository of {source.name} is declared already",
            where=entry.file,
            why=f"{source.uri} with the key {_key_name(entry)}: "
            "apt refuses to work with two declarations of one repository that differ",
            fix=f"delete {entry.file}, or its lines for this address, then run again",
        )
    return None
