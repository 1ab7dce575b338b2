# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt_candidates: what is asked of which sources, against a made apt."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import candidates
from ansible_collections.llmetal.inference.plugins.module_utils.apt_archive import Archive
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import Source
from ansible_collections.llmetal.inference.plugins.module_utils.candidates import Question, ask
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXTURES = Path(__file__).parents[2] / "fixtures"
KEY = (FIXTURES / "openpgp" / "sandbox_ed25519" / "key.asc").read_text()
(FINGERPRINT,) = json.loads(
    (FIXTURES / "openpgp" / "sandbox_ed25519" / "expected.json").read_text()
)
SOURCE = Source("cuda", "http://mirror.example/cuda/", "/", (), KEY, FINGERPRINT)


@dataclass
class MadeApt:
    """An apt whose sources are dictionaries."""

    asked: dict[str, list[str]] = field(default_factory=dict)
    own: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, list[str]] = field(default_factory=dict)
    updates: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    answers: bool = True

    def run(self, argv: Sequence[str], **_: object) -> CommandResult:
        """Stand in for apt-get and apt-cache."""
        words = list(argv)
        options = dict(word.partition("=")[::2] for word in words if "=" in word)
        parts = Path(options["Dir::Etc::sourceparts"])
        self.folders.append(parts.parent)
        if "update" in words:
            asked = parts.name == "asked"
            assert list(parts.glob("*.sources")) or not asked
            self.updates.append("asked" if asked else "all")
            if not self.answers:
                return CommandResult(tuple(words), 100, "", "Err:1 http://x y\n  404  Not Found")
            self.known = {**self.known, **self.asked, **({} if asked else self.own)}
            return CommandResult(tuple(words), 0, "", "W: something old\n")
        if "pkgnames" in words:
            return CommandResult(tuple(words), 0, "\n".join(self.known), "")
        if "madison" in words:
            names = words[words.index("madison") + 1 :]
            rows = [
                f"{n} | {v} | http://x / Packages" for n in names for v in self.known.get(n, [])
            ]
            return CommandResult(tuple(words), 0, "\n".join(rows), "")
        text = "Inst dkms (3.0.10-8 Debian:12/stable [all])\nConf dkms (3.0.10-8 x [all])\n"
        return CommandResult(tuple(words), 0, text, "")


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> MadeApt:
    """A made apt in place of the real one."""
    made = MadeApt(
        asked={"driver": ["570.1-1", "580.95.05-1", "580.159.04-1"]}, own={"gcc": ["12"]}
    )
    monkeypatch.setattr(candidates, "run", made.run)
    monkeypatch.setattr(shutil, "which", lambda *_args, **_kwargs: "/usr/bin/apt-get")
    return made


def question(tmp_path: Path, *packages: str, **values: object) -> Question:
    """A question on a host whose files are in a folder of the test."""
    (tmp_path / "etc/sources.list.d").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/sources.list.d/debian.sources").write_text("Types: deb\nURIs: http://d\n")
    (tmp_path / "lists").mkdir(exist_ok=True)
    places = {"etc_apt": str(tmp_path / "etc"), "lists": str(tmp_path / "lists")}
    return Question(packages=packages, **{"sources": (SOURCE,), **places, **values})  # type: ignore[arg-type] # any field


def test_newest_first(apt: MadeApt, tmp_path: Path) -> None:
    """Versions come newest first with their origin, and only the asked source is read."""
    found = ask(question(tmp_path, "driver"))["candidates"]["driver"]
    assert [row["version"] for row in found] == ["580.159.04-1", "580.95.05-1", "570.1-1"]
    assert found[0]["origin"] == "http://x /"
    assert apt.updates == ["asked"]
    assert not any(folder.exists() for folder in apt.folders)


def test_the_host_lists_are_read_where_needed(apt: MadeApt, tmp_path: Path) -> None:
    """A package in no list costs an update of the host's own sources, in private."""
    answer = ask(question(tmp_path, "driver", "gcc", "nonsense"))
    assert apt.updates == ["asked", "all"]
    assert [row["version"] for row in answer["candidates"]["gcc"]] == ["12"]
    assert answer["candidates"]["nonsense"] == []
    assert answer["warnings"] == ["W: something old"]
    assert list((tmp_path / "lists").iterdir()) == []


def test_patterns(apt: MadeApt, tmp_path: Path) -> None:
    """Patterns stand for the names that there are."""
    apt.asked["driver-pinning-580"] = ["1"]
    found = ask(question(tmp_path, "driver*"))["candidates"]
    assert sorted(found) == ["driver", "driver-pinning-580"]


def test_never(apt: MadeApt, tmp_path: Path) -> None:
    """Without leave nothing is fetched."""
    assert ask(question(tmp_path, "driver", update="never"))["candidates"] == {"driver": []}
    assert apt.updates == []


def test_source_that_does_not_answer(apt: MadeApt, tmp_path: Path) -> None:
    """It is named, with what it said."""
    apt.answers = False
    with pytest.raises(LlmetalError, match=r"reading the package source failed.*404"):
        ask(question(tmp_path, "driver"))
    assert not any(folder.exists() for folder in apt.folders)


def test_closure(apt: MadeApt, tmp_path: Path) -> None:
    """A simulation says what else would come."""
    answer = ask(question(tmp_path, "driver", simulate=("driver=580.159.04-1",)))
    assert [row["name"] for row in answer["closure"]] == ["dkms"]
    assert apt.updates == ["asked"]


def test_cache_dir_is_kept(apt: MadeApt, tmp_path: Path) -> None:
    """A folder given for the state stays, and can be used again."""
    asked = question(tmp_path, "driver", cache_dir=str(tmp_path / "cache"))
    ask(asked)
    ask(asked)
    assert (tmp_path / "cache/lists").is_dir()
    assert apt.updates == ["asked", "asked"]


def test_no_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of another family is told so."""
    monkeypatch.setattr(shutil, "which", lambda *_args, **_kwargs: None)
    with pytest.raises(LlmetalError, match="has no apt"):
        ask(question(tmp_path, "driver"))


def test_components_that_the_host_lacks(apt: MadeApt, tmp_path: Path) -> None:
    """They are asked for in private, with the host's own declaration as it is."""
    asked = question(
        tmp_path,
        "driver",
        sources=(),
        archives=(Archive("debian12-archive", ("non-free",)),),
        os_release=str(tmp_path / "os-release"),
        cache_dir=str(tmp_path / "cache"),
    )
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    (tmp_path / "etc/sources.list").write_text("deb http://d/debian bookworm main\n")
    assert ask(asked)["candidates"]["driver"]
    assert apt.updates == ["asked"]
    text = (tmp_path / "cache/parts/debian12-archive.sources").read_text()
    assert "URIs: http://d/debian\nSuites: bookworm\nComponents: non-free\n" in text
    assert [path.name for path in (tmp_path / "etc/sources.list.d").iterdir()] == ["debian.sources"]


def test_sources_without_address_are_the_hosts_own() -> None:
    """They are passed over."""
    params = {
        "packages": ["gcc"],
        "sources": [{"name": "debian12-archive", "uri": None}],
        "simulate": [],
        "update": "auto",
        "timeout": 1,
        "cache_dir": None,
    }
    assert candidates.question_of(params).sources == ()
