# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine's own package sources, in the forms that machines have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import sources

if TYPE_CHECKING:
    from pathlib import Path

DEB822 = """\
Types: deb
# a comment inside a stanza
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://old.example/debian
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://other.example/ bookworm main
deb http://mirror.example/debian bookworm main contrib  # trailing
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
"""


def test_deb822_keeps_enabled_deb_entries() -> None:
    """Comments, sources of source packages and disabled stanzas are left out."""
    found = sources.parse_deb822(DEB822)
    assert [(s.uri, s.suites) for s in found] == [
        ("http://mirror.example/debian/", ("bookworm", "bookworm-updates")),
        ("http://mirror.example/debian-security", ("bookworm-security",)),
    ]


def test_one_line_form() -> None:
    """Options, comments and deb-src lines."""
    found = sources.parse_one_line(ONE_LINE)
    assert [s.uri for s in found] == [
        "https://other.example/",
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    ]
    assert found[0].signed_by == "/usr/share/keyrings/x.gpg"
    assert found[1].components == ("main", "contrib")


@pytest.mark.parametrize("text", [DEB822, ONE_LINE])
def test_debian_is_chosen_among_others(text: str) -> None:
    """Another archive with Debian's suite names is not taken for Debian."""
    found = sources.parse_deb822(text) + sources.parse_one_line(text)
    mirror = sources.choose_mirror(found)
    assert mirror == sources.Mirror(
        "http://mirror.example/debian", "http://mirror.example/debian-security"
    )


def test_ubuntu_has_no_debian() -> None:
    """A machine without Debian yields none."""
    line = "deb http://archive.example/ubuntu noble main universe"
    assert sources.choose_mirror(sources.parse_one_line(line)) is None


def test_sources_of_another_release() -> None:
    """The suite changes, the address stays; the components are all of Debian's."""
    mirror = sources.Mirror("http://mirror.example/debian", "http://mirror.example/s")
    assert mirror.lines("trixie") == [
        "deb http://mirror.example/debian trixie main contrib non-free non-free-firmware",
        "deb http://mirror.example/debian trixie-updates main contrib non-free non-free-firmware",
        "deb http://mirror.example/s trixie-security main contrib non-free non-free-firmware",
    ]
    assert sources.parse_deb822(mirror.stanzas("trixie"))[1].suites == ("trixie-security",)


def test_machine_mirror_reads_a_list_of_mirrors(tmp_path: Path) -> None:
    """Cloud images name a file with mirrors."""
    (tmp_path / "sources.list.d").mkdir()
    mirrors = tmp_path / "debian.list"
    mirrors.write_text("# first wins\nhttp://cloud.example/debian priority:1\n", encoding="utf-8")
    (tmp_path / "sources.list.d/debian.sources").write_text(
        f"Types: deb\nURIs: mirror+file:{mirrors}\nSuites: bookworm\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
        encoding="utf-8",
    )
    assert sources.machine_mirror("", tmp_path).main == "http://cloud.example/debian"


def test_without_debian_the_variable_is_named(tmp_path: Path) -> None:
    """The error says which variable helps."""
    with pytest.raises(LlmetalError, match="sandbox_debian_mirror"):
        sources.machine_mirror("", tmp_path)
    given = sources.machine_mirror("http://given.example/debian/", tmp_path)
    assert given == sources.Mirror("http://given.example/debian", None)
