# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model folders: what is in one, whether it is what the lock says, and how it is published.

A published model lives in `<store>/<name>/<revision>`; the link `<store>/<name>/current` names the
one in use. It is copied into a hidden folder, every byte verified on the way, and appears by one
rename. `<revision>.manifest.json` beside it records the verified files with size, times and inode,
so that an unchanged file is not hashed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.environment import switch_link
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    sha256_file,
    write_atomic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import IO

_SCHEMA = 1
_CHUNK = 4 << 20
_FICLONE = 0x40049409
"""The request that makes a file share another file's blocks (linux/fs.h)."""
_ROOM_MARGIN = 64 << 20
_WORKERS = 8
_INDEX = ".safetensors.index.json"
_WEIGHTS = {".safetensors": "safetensors", ".gguf": "gguf", ".bin": "pytorch", ".pt": "pytorch"}
_SHOWN = 5


@dataclass(frozen=True)
class ModelFile:
    """One file of a model."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Identity:
    """What tells without reading that a file is the one that was hashed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Identity:
        """The identity of a file; a link's is that of its target."""
        seen = path.stat()
        return cls(seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)


@dataclass(frozen=True)
class Snapshot:
    """What a model folder holds."""

    files: tuple[ModelFile, ...]
    architectures: tuple[str, ...]
    format: str
    config: Mapping[str, Any]
    skipped: tuple[str, ...]

    @property
    def revision(self) -> str:
        """The name of exactly this content."""
        return revision_of(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files)


def revision_of(files: Iterable[ModelFile]) -> str:
    """The sha256 over paths, sizes and hashes of all files."""
    listing = sorted((one.path, one.size, one.sha256) for one in files)
    return hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()


def is_safe_path(path: str) -> bool:
    """Whether a file's name in a model stays inside the model's folder and is printable."""
    parts = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and not any(part in {"", ".", ".."} for part in parts)
        and all(len(part.encode()) <= 255 for part in parts)  # noqa: PLR2004 - NAME_MAX
    )


def walk(source: Path) -> tuple[list[str], list[str]]:
    """The files of a model folder and the hidden entries left out, as sorted relative paths.

    Raises:
        LlmetalError: the folder is missing or unreadable, or something in it is neither a file nor
            a folder, or leads out of it.
    """
    if not source.is_dir():
        raise LlmetalError(
            what="the model's folder does not exist"
            if not source.exists()
            else "the model's source is not a folder",
            where=str(source),
            fix="put the model there, or correct `source.path` of the model in the inventory",
        )
    root = source.resolve()
    files: list[str] = []
    skipped: list[str] = []

    def fail(error: OSError) -> None:
        raise LlmetalError(
            what="the model's folder cannot be read",
            where=str(error.filename or source),
            why=error.strerror or str(error),
            fix="give the user of the run read access to it",
        ) from error

    for folder, folders, names in os.walk(source, onerror=fail):
        relative = Path(folder).relative_to(source)
        for name in [*names, *(one for one in folders if Path(folder, one).is_symlink())]:
            path = (relative / name).as_posix()
            (skipped if name.startswith(".") else files).append(path)
        skipped += [(relative / one).as_posix() for one in folders if one.startswith(".")]
        folders[:] = sorted(
            one for one in folders if not one.startswith(".") and not Path(folder, one).is_symlink()
        )
    for path in files:
        _check_entry(source, root, path)
    return sorted(files), sorted(skipped)


def _check_entry(source: Path, root: Path, path: str) -> None:
    """Refuse an entry that a model folder must not have."""
    full = source / path
    why = ""
    if not is_safe_path(path):
        why = "its name is not safe"
    else:
        target = full.resolve()
        if root not in target.parents:
            why = f"it is a link that leads out of the folder, to {target}"
        elif not full.exists():
            why = "it is a link to nothing"
        elif not stat.S_ISREG(full.stat().st_mode):
            why = "it is not a regular file"
    if why:
        raise LlmetalError(
            what="the model's folder holds something that is not a plain file",
            where=repr(str(full)) if not is_safe_path(path) else str(full),
            why=why,
            fix="copy the model into a folder of plain files (cp -rL) and name that folder",
        )


def inspect(source: Path, cache: Path | None = None, *, remember: bool = True) -> Snapshot:
    """Read a model folder: files with hashes, architectures, format.

    Args:
        source: the folder.
        cache: a folder that remembers hashes by size, times and inode; used only where it exists.
        remember: whether new hashes may be written to the cache.

    Returns:
        What the folder holds.

    Raises:
        LlmetalError: it is no model folder, or it cannot be read.
    """
    names, skipped = walk(source)
    config, architectures = _read_config(source)
    weights = sorted({_WEIGHTS[Path(one).suffix] for one in names if Path(one).suffix in _WEIGHTS})
    if not weights:
        raise LlmetalError(
            what="the model's folder has no weights",
            where=str(source),
            why=f"none of its {len(names)} files ends in {', '.join(sorted(_WEIGHTS))}",
            fix="finish the download, or correct `source.path` of the model in the inventory",
        )
    _check_shards(source, names)
    known = _Known.load(cache, source)
    files = hash_files(source, names, known.digest)
    if remember:
        known.save(source, files)
    preferred = next(one for one in ("safetensors", "gguf", "pytorch") if one in weights)
    return Snapshot(files, architectures, preferred, config, tuple(skipped))


def _read_config(source: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    text = read_text(source / "config.json")
    if text is None:
        if any(source.glob("*.gguf")):
            return {}, ()
        raise LlmetalError(
            what="the model's folder has no config.json",
            where=str(source),
            fix="name the folder that holds config.json and the weights",
        )
    try:
        config = json.loads(text)
        architectures = tuple(str(one) for one in config.get("architectures") or ())
    except (ValueError, AttributeError, TypeError) as error:
        raise LlmetalError(
            what="the model's config.json cannot be read",
            where=str(source / "config.json"),
            why=str(error),
            fix="fetch the file again",
        ) from error
    return config, architectures


def _check_shards(source: Path, names: Sequence[str]) -> None:
    """Refuse a folder whose weight index names files that are not there."""
    for name in (one for one in names if one.endswith(_INDEX)):
        try:
            shards = set(json.loads(read_text(source / name) or "")["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise LlmetalError(
                what="the model's weight index cannot be read",
                where=str(source / name),
                why=str(error),
                fix="fetch the file again",
            ) from error
        folder = Path(name).parent
        missing = sorted(one for one in shards if (folder / one).as_posix() not in names)
        if missing:
            raise LlmetalError(
                what="the model is not whole",
                where=str(source),
                why=f"{name} names {_some(missing)}, not there",
                fix="finish the download",
            )


def _some(names: Sequence[str]) -> str:
    """A few names and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class _Known:
    """Hashes remembered for one source folder."""

    def __init__(self, path: Path | None, entries: dict[str, dict[str, Any]]) -> None:
        self.path = path
        self.entries = entries

    @classmethod
    def load(cls, cache: Path | None, source: Path) -> _Known:
        """What the cache knows; nothing where it is missing or damaged."""
        if cache is None or not cache.is_dir():
            return cls(None, {})
        name = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:32]
        path = cache / f"{name}.json"
        try:
            entries = json.loads(read_text(path) or "")["files"]
            known = {str(key): dict(value) for key, value in entries.items()}
        except (ValueError, KeyError, AttributeError, TypeError):
            known = {}
        return cls(path, known)

    def digest(self, path: str, full: Path) -> str | None:
        """The remembered hash, if the file is still the one that was hashed."""
        entry = self.entries.get(path)
        if entry is None or entry.get("identity") != asdict(Identity.of(full)):
            return None
        digest = entry.get("sha256")
        return digest if isinstance(digest, str) else None

    def save(self, source: Path, files: Sequence[ModelFile]) -> None:
        """Remember; a cache that cannot be written is no failure."""
        if self.path is None:
            return
        entries = {
            one.path: {"identity": asdict(Identity.of(source / one.path)), "sha256": one.sha256}
            for one in files
        }
        if entries == self.entries:
            return
        text = json.dumps({"schema": _SCHEMA, "source": str(source), "files": entries})
        with contextlib.suppress(OSError):
            write_atomic(self.path, text)


def hash_files(
    source: Path, names: Sequence[str], known: Callable[[str, Path], str | None]
) -> tuple[ModelFile, ...]:
    """Hash files in parallel, the largest first; those already known are not read.

    Raises:
        LlmetalError: a file cannot be read, or changed while it was.
    """

    def one(name: str) -> ModelFile:
        full = source / name
        try:
            before = Identity.of(full)
            digest = known(name, full) or sha256_file(full)
            after = Identity.of(full)
        except OSError as error:
            raise _read_error(error, full) from error
        if before != after:
            raise LlmetalError(
                what="a file of the model changed while it was read",
                where=str(full),
                fix="wait until the download or copy has ended, then run again",
            )
        return ModelFile(name, before.size, digest)

    ordered = sorted(names, key=lambda name: -_size(source / name))
    with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
        return tuple(sorted(pool.map(one, ordered), key=lambda file: file.path))


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _read_error(error: OSError, path: Path) -> LlmetalError:
    return LlmetalError(
        what="a file of the model cannot be read",
        where=str(path),
        why=error.strerror or str(error),
        fix="give the user of the run read access to it, or check the disk",
    )


@dataclass(frozen=True)
class Publication:
    """The paths of one revision in the store."""

    home: Path
    revision: str

    @property
    def final(self) -> Path:
        """Where the files are served from."""
        return self.home / self.revision

    @property
    def incoming(self) -> Path:
        """Where they are copied to first."""
        return self.home / f".incoming-{self.revision}"

    @property
    def manifest(self) -> Path:
        """The record of what was verified."""
        return self.home / f"{self.revision}.manifest.json"

    @property
    def link(self) -> Path:
        """The name of the revision in use."""
        return self.home / "current"

    @property
    def linked(self) -> str | None:
        """The revision in use, or None."""
        try:
            return str(self.link.readlink())
        except OSError:
            return None


def check_files(files: Sequence[ModelFile], revision: str) -> None:
    """Refuse a list of files that cannot be published as this revision.

    Raises:
        LlmetalError: an unsafe or doubled name, or another revision than the files make.
    """
    unsafe = [one.path for one in files if not is_safe_path(one.path)]
    doubled = len({one.path for one in files}) != len(files)
    made = revision_of(files)
    if unsafe or doubled or not files or made != revision:
        why = f"the name {unsafe[0]!r} is not safe" if unsafe else ""
        why = why or ("a file is listed twice" if doubled else f"its files make {made}")
        raise LlmetalError(
            what="the lock's list of files is not that of its revision",
            where=f"revision {revision}",
            why=why,
            fix="make the lock again",
        )


def problems_of(files: Sequence[ModelFile], place: Publication, *, deep: bool) -> tuple[str, ...]:
    """What is wrong with a published revision; nothing if it is whole.

    Files whose size, times and inode are those that were verified are not read, unless `deep`.
    """
    if not place.final.is_dir():
        return ("not published",)
    recorded = _recorded(place)
    found = []
    suspect = []
    for one in files:
        full = place.final / one.path
        try:
            identity = Identity.of(full)
        except OSError:
            found.append(f"{one.path} is missing")
            continue
        if identity.size != one.size:
            found.append(f"{one.path} has {identity.size} bytes, not {one.size}")
        elif deep or recorded.get(one.path) != asdict(identity):
            suspect.append(one)
    wanted = {one.path: one.sha256 for one in suspect}
    found += [
        f"{seen.path} has sha256 {seen.sha256}, not {wanted[seen.path]}"
        for seen in hash_files(place.final, list(wanted), lambda _name, _path: None)
        if seen.sha256 != wanted[seen.path]
    ]
    extra = set(_all_files(place.final)) - {one.path for one in files}
    found += [f"{one} does not belong to it" for one in sorted(extra)]
    return tuple(found)


def _all_files(folder: Path) -> list[str]:
    return [
        Path(root, name).relative_to(folder).as_posix()
        for root, _folders, names in os.walk(folder)
        for name in names
    ]


def _recorded(place: Publication) -> dict[str, Any]:
    try:
        entries = json.loads(read_text(place.manifest) or "")["files"]
        return {str(one["path"]): one["identity"] for one in entries}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def is_recorded(files: Sequence[ModelFile], place: Publication) -> bool:
    """Whether the manifest in the store describes the files as they are."""
    try:
        seen = {one.path: asdict(Identity.of(place.final / one.path)) for one in files}
    except OSError:
        return False
    return _recorded(place) == seen


def publish(source: Path, files: Sequence[ModelFile], place: Publication) -> None:
    """Copy a model into the store, verify every byte, and make it the one in use.

    Args:
        source: the folder to copy from.
        files: what it must hold.
        place: where it goes.

    Raises:
        LlmetalError: the source is not what the lock says, or there is no room; nothing that was
            published before has changed then.
    """
    try:
        place.home.mkdir(parents=True, exist_ok=True)
        with _only_one(place.home / ".lock"):
            _clean(place.home)
            if problems_of(files, place, deep=False):
                check_sizes(source, files)
                _check_room(place.home, sum(one.size for one in files))
                _copy_all(source, files, place.incoming)
                _swap_in(place)
            if not is_recorded(files, place):
                _record(files, place)
            switch_link(place.link, place.revision)
    except OSError as error:
        raise LlmetalError(
            what="the model store cannot be written",
            where=str(error.filename or place.home),
            why=error.strerror or str(error),
            fix="check the free room, the owner and the mount options of the store",
        ) from error


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let one process at a time publish this model."""
    with path.open("w", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LlmetalError(
                what="another run is publishing this model",
                where=str(path.parent),
                fix="wait until it has ended",
            ) from None
        yield


def _clean(home: Path) -> None:
    """Remove what an interrupted run left."""
    for rest in [*home.glob(".incoming-*"), *home.glob(".damaged-*")]:
        shutil.rmtree(rest)


def check_sizes(source: Path, files: Sequence[ModelFile]) -> None:
    """Compare names and sizes with the lock before a byte is copied.

    Raises:
        LlmetalError: they differ.
    """
    if not source.is_dir():
        walk(source)
    wrong = []
    for one in files:
        full = source / one.path
        size = _size(full) if full.is_file() else None
        if size is None:
            wrong.append(f"{one.path} is missing")
        elif size != one.size:
            wrong.append(f"{one.path} has {size} bytes, the lock says {one.size}")
    if wrong:
        raise _not_locked(source, _some(wrong))


def _not_locked(source: Path, why: str) -> LlmetalError:
    return LlmetalError(
        what="the model is not the one in the lock",
        where=str(source),
        why=why,
        fix="restore the locked files, or make the lock again if the change is known and wanted",
    )


def _check_room(home: Path, size: int) -> None:
    free = shutil.disk_usage(home).free
    if free < size + _ROOM_MARGIN:
        raise LlmetalError(
            what="there is not enough room for the model",
            where=str(home),
            why=f"it takes {size / 1e9:.2f} GB and {free / 1e9:.2f} GB are free",
            fix="remove older revisions, or put the store on a larger file system",
        )


def _copy_all(source: Path, files: Sequence[ModelFile], target: Path) -> None:
    """Copy and verify all files in parallel, and see them on the disk."""
    target.mkdir()
    for folder in sorted({(target / file.path).parent for file in files}):
        folder.mkdir(parents=True, exist_ok=True)

    def one(file: ModelFile) -> None:
        digest = copy_hashed(source / file.path, target / file.path)
        if digest != file.sha256:
            why = f"{file.path} has sha256 {digest}, the lock says {file.sha256}"
            raise _not_locked(source, why)

    ordered = sorted(files, key=lambda file: -file.size)
    try:
        with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
            list(pool.map(one, ordered))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    for name, _folders, _names in os.walk(target):
        _sync_folder(Path(name))


def copy_hashed(source: Path, target: Path) -> str:
    """Copy one file and return the sha256 of what was written.

    Where the file system can share blocks between files, it does, and the copy is read back.

    Raises:
        OSError: reading or writing failed.
    """
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        os.fchmod(writer.fileno(), 0o644)
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            digest = _pump(reader, writer)
        else:
            digest = sha256_file(target)
        os.fsync(writer.fileno())
    return digest


def _pump(reader: IO[bytes], writer: IO[bytes]) -> str:
    """Copy a stream through a hash."""
    digest = hashlib.sha256()
    while block := reader.read(_CHUNK):
        digest.update(block)
        view = memoryview(block)
        while view:
            view = view[writer.write(view) :]
    return digest.hexdigest()


def _swap_in(place: Publication) -> None:
    """Let the verified copy appear; a damaged one steps aside first."""
    damaged = place.home / f".damaged-{place.revision}"
    if place.final.exists():
        place.final.rename(damaged)
    place.incoming.rename(place.final)
    _sync_folder(place.home)
    if damaged.exists():
        shutil.rmtree(damaged)


def _record(files: Sequence[ModelFile], place: Publication) -> None:
    entries = [
        {**asdict(one), "identity": asdict(Identity.of(place.final / one.path))} for one in files
    ]
    manifest = {"schema": _SCHEMA, "revision": place.revision, "files": entries}
    write_atomic(place.manifest, json.dumps(manifest, indent=1) + "\n")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
