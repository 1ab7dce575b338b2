# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models: what a folder may hold, and that only what was verified is published."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import files as on_disk
from ansible_collections.llmetal.inference.plugins.module_utils import snapshot as subject
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.snapshot import (
    ModelFile,
    Publication,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small model."""
    folder = tmp_path / "source"
    (folder / "original").mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "original" / "params.json").write_text("{}")
    (folder / ".gitattributes").write_text("*")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "junk.safetensors").write_text("")
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read to be hashed, in no order."""
    names: list[str] = []
    real = on_disk.sha256_file

    def note(path: Path) -> str:
        names.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(subject, "sha256_file", note)
    return names


def place_of(source: Path, store: Path) -> tuple[tuple[ModelFile, ...], Publication]:
    """The files of a source and where they go."""
    seen = subject.inspect(source)
    return seen.files, Publication(store / "tiny", seen.revision)


def test_a_model_is_read(source: Path) -> None:
    """Files, architectures and format; hidden entries are left out and said."""
    seen = subject.inspect(source)
    assert [one.path for one in seen.files] == [
        "config.json",
        "model.safetensors",
        "original/params.json",
    ]
    assert seen.architectures == ("LlamaForCausalLM",)
    assert seen.format == "safetensors"
    assert seen.skipped == (".cache", ".gitattributes")
    assert seen.size == sum(one.size for one in seen.files)


def test_the_revision_names_the_content(source: Path, tmp_path: Path) -> None:
    """The same files elsewhere are the same revision; one other byte is another."""
    first = subject.inspect(source).revision
    moved = source.rename(tmp_path / "moved")
    assert subject.inspect(moved).revision == first
    (moved / "model.safetensors").write_bytes(b"w" * 999 + b"x")
    assert subject.inspect(moved).revision != first


def test_a_known_file_is_not_hashed_again(source: Path, tmp_path: Path, hashed: list[str]) -> None:
    """Size, times and inode decide; the cache lies outside the source."""
    cache = tmp_path / "cache"
    cache.mkdir()
    first = subject.inspect(source, cache)
    assert sorted(hashed) == ["config.json", "model.safetensors", "params.json"]
    hashed.clear()
    assert subject.inspect(source, cache) == first
    assert hashed == []
    (source / "model.safetensors").write_bytes(b"v" * 1000)
    assert subject.inspect(source, cache).revision != first.revision
    assert hashed == ["model.safetensors"]


@pytest.mark.parametrize("damage", ["", "[]", '{"files": []}', '{"files": {"config.json": 1}}'])
def test_a_damaged_cache_is_no_cache(source: Path, tmp_path: Path, damage: str) -> None:
    """It is read past, and made anew."""
    cache = tmp_path / "cache"
    cache.mkdir()
    first = subject.inspect(source, cache)
    (remembered,) = cache.iterdir()
    remembered.write_text(damage)
    assert subject.inspect(source, cache) == first
    assert json.loads(remembered.read_text())["files"]


def test_a_missing_cache_is_not_made(source: Path, tmp_path: Path) -> None:
    """Reading a model changes nothing on the host."""
    subject.inspect(source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_check_mode_remembers_nothing(source: Path, tmp_path: Path) -> None:
    """Nor does it write into a cache that is there."""
    subject.inspect(source, tmp_path, remember=False)
    assert {one.name for one in tmp_path.iterdir()} == {"source"}


def test_a_link_inside_the_folder_is_a_file(source: Path) -> None:
    """Some tools link the same file twice."""
    (source / "again.safetensors").symlink_to("model.safetensors")
    assert "again.safetensors" in [one.path for one in subject.inspect(source).files]


def test_links_that_lead_out_are_refused(source: Path, tmp_path: Path) -> None:
    """A file or folder of somebody else's never becomes part of a model."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    for name, target in (("weights.bin", secret / "key"), ("more", secret), ("up", "../secret")):
        link = source / name
        link.symlink_to(target)
        with pytest.raises(LlmetalError, match=rf"{name}\).*leads out of the folder"):
            subject.inspect(source)
        link.unlink()


def test_what_is_no_file_is_refused(source: Path) -> None:
    """A broken link, a pipe and a socket."""
    (source / "gone").symlink_to("nothing")
    with pytest.raises(LlmetalError, match="a link to nothing"):
        subject.inspect(source)
    (source / "gone").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(LlmetalError, match="not a regular file"):
        subject.inspect(source)
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "s"))
        with pytest.raises(LlmetalError, match="not a regular file"):
            subject.inspect(source)


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../x", "a//x", "./x", "", "a\nb", "a\\b", "x" * 256]
)
def test_unsafe_names(path: str) -> None:
    """A name may not lead out of the folder, nor garble a message."""
    assert not subject.is_safe_path(path)


@pytest.mark.parametrize("path", ["x", "a/b.safetensors", "sché ma.json", "..x", "a..b"])
def test_safe_names(path: str) -> None:
    """Ordinary names, with dots and spaces too."""
    assert subject.is_safe_path(path)


def test_an_unsafe_name_in_a_folder_is_refused(source: Path) -> None:
    """A line break in a file's name is shown escaped."""
    (source / "a\nb").write_text("")
    with pytest.raises(LlmetalError, match=r"a\\nb.*name is not safe"):
        subject.inspect(source)


def test_a_folder_that_is_no_model(source: Path, tmp_path: Path) -> None:
    """Each way of being none has its own words."""
    with pytest.raises(LlmetalError, match="does not exist"):
        subject.inspect(tmp_path / "nowhere")
    with pytest.raises(LlmetalError, match="not a folder"):
        subject.inspect(source / "config.json")
    (source / "model.safetensors").rename(source / "model.txt")
    with pytest.raises(LlmetalError, match="has no weights"):
        subject.inspect(source)
    (source / "model.txt").rename(source / "model.safetensors")
    (source / "config.json").write_text("{")
    with pytest.raises(LlmetalError, match=r"config\.json cannot be read"):
        subject.inspect(source)
    (source / "config.json").unlink()
    with pytest.raises(LlmetalError, match=r"no config\.json"):
        subject.inspect(source)


def test_a_lone_gguf_needs_no_config(tmp_path: Path) -> None:
    """It carries its own."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert subject.inspect(tmp_path).format == "gguf"


def test_a_missing_shard_is_refused(source: Path) -> None:
    """The index says which files make the model."""
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other"}}))
    with pytest.raises(LlmetalError, match="names other, not there"):
        subject.inspect(source)
    index.write_text('{"weight_map": []}')
    with pytest.raises(LlmetalError, match="index cannot be read"):
        subject.inspect(source)
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    subject.inspect(source)


def test_a_file_that_changes_while_it_is_read(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download still under way is not taken for a model."""

    def grow(path: Path) -> str:
        with Path(path).open("ab") as stream:
            stream.write(b"more")
        return "0" * 64

    monkeypatch.setattr(subject, "sha256_file", grow)
    with pytest.raises(LlmetalError, match="changed while it was read"):
        subject.inspect(source)


def test_a_model_is_published_once(source: Path, tmp_path: Path, hashed: list[str]) -> None:
    """Whole, linked, recorded; the second time nothing is read."""
    files, place = place_of(source, tmp_path / "store")
    assert subject.problems_of(files, place, deep=False) == ("not published",)
    subject.publish(source, files, place)
    assert place.link.resolve() == place.final
    assert (place.final / "original" / "params.json").read_text() == "{}"
    assert not (place.final / ".gitattributes").exists()
    assert (place.final / "model.safetensors").stat().st_mode & 0o777 == 0o644
    hashed.clear()
    assert subject.problems_of(files, place, deep=False) == ()
    assert hashed == []
    assert subject.problems_of(files, place, deep=True) == ()
    assert len(hashed) == 3


def test_a_file_with_other_bytes_is_not_published(source: Path, tmp_path: Path) -> None:
    """Same size, other content: name, expected and got are said."""
    files, place = place_of(source, tmp_path / "store")
    wanted = next(one.sha256 for one in files if one.path == "model.safetensors")
    (source / "model.safetensors").write_bytes(b"x" * 1000)
    with pytest.raises(
        LlmetalError, match=rf"model\.safetensors has sha256 \w{{64}}, the lock says {wanted}"
    ):
        subject.publish(source, files, place)
    assert sorted(one.name for one in place.home.iterdir()) == [".lock"]


def test_missing_and_short_files_are_found_before_copying(source: Path, tmp_path: Path) -> None:
    """All of them in one message."""
    files, place = place_of(source, tmp_path / "store")
    (source / "config.json").unlink()
    (source / "model.safetensors").write_bytes(b"short")
    with pytest.raises(LlmetalError) as caught:
        subject.publish(source, files, place)
    assert "config.json is missing" in caught.value.why
    assert "model.safetensors has 5 bytes, the lock says 1000" in caught.value.why


def test_a_source_that_is_gone_is_only_missed_when_needed(source: Path, tmp_path: Path) -> None:
    """A published model does not need its source."""
    files, place = place_of(source, tmp_path / "store")
    subject.publish(source, files, place)
    subject.publish(tmp_path / "nowhere", files, place)
    (place.final / "config.json").unlink()
    with pytest.raises(LlmetalError, match="does not exist"):
        subject.publish(tmp_path / "nowhere", files, place)


def test_an_interrupted_copy_is_cleaned_and_repeated(source: Path, tmp_path: Path) -> None:
    """What was half there is not visible, and not trusted."""
    files, place = place_of(source, tmp_path / "store")
    place.incoming.mkdir(parents=True)
    (place.incoming / "config.json").write_text("half")
    (place.home / f".incoming-{'0' * 64}").mkdir()
    subject.publish(source, files, place)
    assert not list(place.home.glob(".incoming-*"))
    assert subject.problems_of(files, place, deep=True) == ()


def test_a_model_without_its_record_is_verified_not_copied(
    source: Path, tmp_path: Path, hashed: list[str]
) -> None:
    """A run killed between rename and record left a whole model."""
    files, place = place_of(source, tmp_path / "store")
    subject.publish(source, files, place)
    inode = (place.final / "model.safetensors").stat().st_ino
    place.manifest.unlink()
    hashed.clear()
    subject.publish(source, files, place)
    assert len(hashed) == 3
    assert (place.final / "model.safetensors").stat().st_ino == inode
    assert subject.is_recorded(files, place)


@pytest.mark.parametrize("how", ["changed", "short", "missing", "extra"])
def test_a_damaged_model_is_found_and_replaced(source: Path, tmp_path: Path, how: str) -> None:
    """A look at sizes and times is enough to see it."""
    files, place = place_of(source, tmp_path / "store")
    subject.publish(source, files, place)
    weights = place.final / "model.safetensors"
    if how == "changed":
        weights.write_bytes(b"y" * 1000)
    elif how == "short":
        weights.write_bytes(b"y")
    elif how == "missing":
        weights.unlink()
    else:
        (place.final / "more.safetensors").write_bytes(b"z")
    assert len(subject.problems_of(files, place, deep=False)) == 1
    subject.publish(source, files, place)
    assert subject.problems_of(files, place, deep=True) == ()
    assert not list(place.home.glob(".damaged-*"))


def test_no_room_is_refused_before_copying(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both numbers in the message."""
    files, place = place_of(source, tmp_path / "store")
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil has it
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1, 1, 1000))
    with pytest.raises(LlmetalError, match="not enough room"):
        subject.publish(source, files, place)
    assert not place.incoming.exists()


def test_a_store_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    """A file where the store should be."""
    files, place = place_of(source, tmp_path / "store")
    (tmp_path / "store").write_text("")
    with pytest.raises(LlmetalError, match=r"store cannot be written.*store"):
        subject.publish(source, files, place)


def test_two_runs_do_not_publish_at_once(source: Path, tmp_path: Path) -> None:
    """The second says so at once."""
    files, place = place_of(source, tmp_path / "store")
    place.home.mkdir(parents=True)
    with (place.home / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(LlmetalError, match="another run is publishing"):
            subject.publish(source, files, place)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((), "its files make"),
        ((ModelFile("../x", 1, "0" * 64),), "not safe"),
        ((ModelFile("x", 1, "0" * 64), ModelFile("x", 2, "1" * 64)), "listed twice"),
        ((ModelFile("x", 1, "0" * 64),), "its files make"),
    ],
)
def test_a_list_of_files_that_is_not_the_revision(files: tuple[ModelFile, ...], why: str) -> None:
    """A lock that was edited by hand is not followed."""
    with pytest.raises(LlmetalError, match=why):
        subject.check_files(files, "0" * 64)
