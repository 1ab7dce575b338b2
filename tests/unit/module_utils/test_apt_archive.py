# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Components that a host's own sources lack are added beside them, and nothing else is said."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.apt_archive import (
    Archive,
    system_of,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    Source,
    declared_elsewhere,
    keys_of,
    parse_deb822,
    parse_one_line,
    read_entries,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

FIXTURES = Path(__file__).parents[2] / "fixtures"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN = Archive("debian12-archive", ("contrib", "non-free", "non-free-firmware"))
UBUNTU = Archive("ubuntu2404-archive", ("restricted", "multiverse"))
OWN = "/etc/apt/sources.list.d/debian12-archive.sources"
SYSTEMS = {
    "bookworm": 'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian"\n',
    "trixie": "ID=debian\nVERSION_CODENAME=trixie\n",
    "noble": "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n",
}
DEB822 = """Types: deb
URIs: http://mirror.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main restricted universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/ubuntu/
Suites: noble-security
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A host without sources."""
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "lists").mkdir()
    return tmp_path


def text_of(archive: Archive, etc: Path, codename: str) -> str:
    """What is declared on a host whose files are in a folder of the test."""
    (etc / "os-release").write_text(SYSTEMS[codename])
    return archive.text(
        read_entries(str(etc / "apt")),
        own_file=archive.file(str(etc / "apt")),
        lists=str(etc / "lists"),
        os_release=str(etc / "os-release"),
    )


def declared(text: str) -> list[tuple[str, str, str, str | None]]:
    """Address, suite, components and key of each declaration."""
    return [
        (entry.uris[0], entry.suites[0], " ".join(entry.components), entry.signed_by)
        for entry in parse_deb822(text, "f")
    ]


def test_recorded_classic(etc: Path) -> None:
    """The recorded Debian 12: two suites in the old format, one with a key and an architecture."""
    shutil.copytree(FIXTURES / "apt_sources/debian12_classic", etc / "apt", dirs_exist_ok=True)
    text = text_of(DEBIAN, etc, "bookworm")
    archive, security = declared(text)
    address = read_entries(str(etc / "apt"))[0].uris[0]
    assert archive == (address, "bookworm", "non-free non-free-firmware", None)
    assert security == (
        f"{address}-security",
        "bookworm-security",
        "contrib non-free non-free-firmware",
        KEYRING,
    )
    assert "Architectures: amd64\n" in text
    own = Path(DEBIAN.file(str(etc / "apt")))
    own.write_text(text)
    assert text_of(DEBIAN, etc, "bookworm") == text


def test_recorded_deb822(etc: Path) -> None:
    """The recorded Debian 13 reads all of them, and gets no file; of main alone it gets three."""
    shutil.copytree(FIXTURES / "apt_sources/debian13_deb822", etc / "apt", dirs_exist_ok=True)
    assert not text_of(DEBIAN, etc, "trixie")
    path = etc / "apt/sources.list.d/debian.sources"
    path.write_text(path.read_text().replace("main contrib non-free non-free-firmware", "main"))
    rows = declared(text_of(DEBIAN, etc, "trixie"))
    assert [suite for _, suite, _, _ in rows] == ["trixie", "trixie-updates", "trixie-security"]
    assert {(components, key) for _, _, components, key in rows} == {
        ("contrib non-free non-free-firmware", KEYRING)
    }


def test_ubuntu(etc: Path) -> None:
    """Only what a suite lacks is said; backports are left alone."""
    (etc / "apt/sources.list.d/ubuntu.sources").write_text(DEB822)
    rows = declared(text_of(UBUNTU, etc, "noble"))
    assert [row[1:3] for row in rows] == [("noble", "multiverse"), ("noble-updates", "multiverse")]


def test_the_key_that_stands_in_a_declaration(etc: Path) -> None:
    """It is repeated as it is, with its empty lines."""
    key = (FIXTURES / "openpgp/sandbox_ed25519/key.asc").read_text()
    folded = "".join(f" {line or '.'}\n" for line in key.strip().splitlines())
    head = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
    path = etc / "apt/sources.list.d/debian.sources"
    path.write_text(f"{head}Signed-By:\n{folded}")
    # The key is nobody's whom the data knows, so what the archive said of itself has to tell.
    release = "Origin: Debian\nCodename: bookworm\nComponents: main contrib\n"
    (etc / "lists/mirror.example_debian_dists_bookworm_InRelease").write_text(
        f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{release}"
        "-----BEGIN PGP SIGNATURE-----\n"
    )
    text = text_of(DEBIAN, etc, "bookworm")
    (entry,) = parse_deb822(text, "f")
    (host,) = parse_deb822(path.read_text(), "f")
    assert entry.components == ("contrib",)
    assert entry.options == host.options
    assert keys_of(entry) == json.loads(
        (FIXTURES / "openpgp/sandbox_ed25519/expected.json").read_text()
    )


@pytest.mark.parametrize(
    "line",
    [
        "deb https://apt.example.com bookworm main",
        "deb [signed-by=/usr/share/keyrings/vendor.gpg] http://x.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm contrib",
        "deb-src http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian trixie main",
    ],
)
def test_no_archive(line: str, etc: Path) -> None:
    """Others use the code names of Debian too; nothing is added to what is not the archive."""
    (etc / "apt/sources.list").write_text(line)
    with pytest.raises(LlmetalError, match=r"no package source of debian bookworm.*llmetal_driver"):
        text_of(DEBIAN, etc, "bookworm")


def test_the_word_of_the_archive_counts(etc: Path) -> None:
    """A mirror under any address and suite name is known by its index; a vendor's is not one."""
    (etc / "apt/sources.list").write_text(
        "deb http://mirror.example/any_thing stable main\ndeb http://v.example/debian bookworm main"
    )
    for name, origin in (
        ("mirror.example_any%5fthing_dists_stable", "Debian"),
        ("v.example_debian_dists_bookworm", "Vendor"),
    ):
        (etc / f"lists/{name}_Release").write_text(f"Origin: {origin}\nCodename: bookworm\n")
    assert [row[:2] for row in declared(text_of(DEBIAN, etc, "bookworm"))] == [
        ("http://mirror.example/any_thing", "stable")
    ]


def test_a_release_file_that_names_nothing() -> None:
    """It is said which file."""
    with pytest.raises(LlmetalError, match=r"distribution of this host is not known.*os-release"):
        system_of("PRETTY_NAME=x\n")


@pytest.mark.parametrize(
    ("params", "archive"),
    [
        (None, None),
        ({"name": "a", "uri": None, "components": []}, None),
        ({"name": "a", "uri": "http://x", "components": ["main"]}, None),
        ({"name": "a", "components": ["non-free"]}, Archive("a", ("non-free",))),
    ],
)
def test_of(params: dict[str, object] | None, archive: Archive | None) -> None:
    """An archive is meant where components are named and no address."""
    assert Archive.of(params) == archive


@pytest.mark.parametrize(("name", "component"), [("../a", "main"), ("a", "main\nTrusted: yes")])
def test_odd_names(name: str, component: str) -> None:
    """What stands in a file or names one is looked at."""
    with pytest.raises(LlmetalError, match="is no"):
        Archive.of({"name": name, "components": [component]})


def test_a_second_declaration_with_its_key_in_it() -> None:
    """It is used where the key is the right one, and named with its key where it is not."""
    key = (FIXTURES / "openpgp/sandbox_ed25519/key.asc").read_text()
    (right,) = json.loads((FIXTURES / "openpgp/sandbox_ed25519/expected.json").read_text())
    folded = "".join(f" {line or '.'}\n" for line in key.strip().splitlines())
    (entry,) = parse_deb822(
        f"URIs: http://x/cuda\nSuites: /\nSigned-By:\n{folded}", "/etc/x.sources"
    )
    source = Source("cuda", "http://x/cuda/", "/", (), key, right)
    assert declared_elsewhere(source, [entry], OWN) is entry
    other = replace(source, fingerprint="0" * 40)
    with pytest.raises(
        LlmetalError, match=rf"declared already.*{right} that stands in it.*delete /etc/x"
    ):
        declared_elsewhere(other, [entry], OWN)


def test_options_of_both_formats() -> None:
    """What apt compares between declarations is kept, by its name in a .sources file."""
    (entry,) = parse_one_line(
        "deb [arch=amd64,i386 trusted=yes check-valid-until=no arch+=arm64] http://x y main", "f"
    )
    assert entry.options == (
        ("Architectures", "amd64 i386"),
        ("Trusted", "yes"),
        ("Check-Valid-Until", "no"),
        ("Architectures-Add", "arm64"),
    )
