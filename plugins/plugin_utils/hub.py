# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a model before any of it is downloaded: config.json, file sizes, tensor headers.

`fetch` asks the configured hub (HF_ENDPOINT, with the token of the user of huggingface_hub), and
`read_folder` a folder of this machine. Neither reads a weight, and every answer has a size and a
time limit: what a hub or a folder holds is not trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import write_atomic
from ansible_collections.llmetal.inference.plugins.module_utils.snapshot import is_safe_path
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_files import (
    has_tokenizer,
    in_words,
    parse_object,
    read_header,
    too_large,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import TensorInfo
from ansible_collections.llmetal.inference.plugins.plugin_utils.words import presentable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_QUANT = "hf_quant_config.json"
_CONFIG_LIMIT = 10 << 20
_INDEX_LIMIT = 64 << 20
_LISTING_LIMIT = 32 << 20
_CACHE_LIMIT = 256 << 20
_SCHEMA = 1
_LIMIT = 60.0
"""Seconds that a whole model may take."""
_PAUSE = 0.3
_WORKERS = 8
_SHOWN = 5
_OK, _PARTIAL, _BAD, _DENIED, _FORBIDDEN, _NOT_FOUND, _BUSY, _BROKEN = (
    200,
    206,
    400,
    401,
    403,
    404,
    429,
    500,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[\w][\w./+@-]{0,200}")
_USER = re.compile(r"://.*@")
"""Credentials of an address, whatever signs they have."""
_MOST_PORTS = 65_535
_YES = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True)
class Metadata:
    """A model, without its weights."""

    where: str
    """The repository or folder."""
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo] | None
    """From the headers of all safetensors files; None where these are not there or not whole."""
    files: tuple[tuple[str, int], ...]
    """Names and bytes of the files; 0 where a hub does not say."""
    weight_bytes: int | None
    """Bytes of the files that an engine loads."""
    revision: str | None
    """The commit; None for a folder."""
    problems: tuple[str, ...] = field(default=())
    """Why a folder with these files could not be served."""

    def as_dict(self) -> dict[str, Any]:
        """The metadata as JSON can hold it."""
        tensors = self.tensors
        return {
            "schema": _SCHEMA,
            "where": self.where,
            "config": dict(self.config),
            "tensors": None
            if tensors is None
            else {name: [one.dtype, list(one.shape), one.size] for name, one in tensors.items()},
            "files": [list(one) for one in self.files],
            "weight_bytes": self.weight_bytes,
            "revision": self.revision,
            "problems": list(self.problems),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Metadata:
        """The metadata from what `as_dict` made.

        Raises:
            ValueError: it is not that, or of another version.
        """
        try:
            if values["schema"] != _SCHEMA:
                raise ValueError(values["schema"])
            tensors = values["tensors"]
            return cls(
                where=str(values["where"]),
                config=dict(values["config"]),
                tensors=None
                if tensors is None
                else {
                    str(name): TensorInfo(str(dtype), tuple(int(one) for one in shape), int(size))
                    for name, (dtype, shape, size) in tensors.items()
                },
                files=tuple((str(name), int(size)) for name, size in values["files"]),
                weight_bytes=values["weight_bytes"],
                revision=values["revision"],
                problems=tuple(str(one) for one in values["problems"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(error) from error


class _Source(Protocol):
    """Where the files of a model are read from."""

    where: str
    files: dict[str, int]

    def place(self, name: str) -> str:
        """How errors name a file."""

    def read(self, name: str, size: int) -> bytes:
        """The first bytes of a file, as many as there are up to a size."""


def fetch(  # noqa: PLR0913 - each has its default
    repo: str,
    revision: str | None = None,
    *,
    cache: Path | None = None,
    endpoint: str | None = None,
    timeout: float = 10,
    limit: float = _LIMIT,
) -> Metadata:
    """Ask the hub about a model.

    Args:
        repo: its name, `owner/name`.
        revision: a branch, tag or commit; None is the hub's default branch.
        cache: a folder for answers; what is known of a commit is never asked again.
        endpoint: the hub's address; by default that of HF_ENDPOINT or of huggingface_hub.
        timeout: seconds that the hub may be silent.
        limit: seconds that it may take for all that is asked of the model.

    Returns:
        What is known of the model, with its commit.

    Raises:
        LlmetalError: the name is none, the hub cannot be reached or does not give the model, or
            what it gives cannot be read.
    """
    # First, since the library reads HF_ENDPOINT at its import.
    for one in (endpoint, os.environ.get("HF_ENDPOINT")):
        if one:
            _check_address(one)
    constants = _constants()
    address = (endpoint or os.environ.get("HF_ENDPOINT") or str(constants.ENDPOINT)).rstrip("/")
    _check_address(address)
    _check_names(repo, revision)
    known = _Answers(cache, address, repo)
    if revision and _COMMIT.fullmatch(revision) and (found := known.load(revision)):
        return found
    if _is_offline() or constants.is_offline_mode():
        if found := known.load(revision or ""):
            return found
        raise LlmetalError(
            what="the model cannot be looked up",
            where=repo,
            why="HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, and no earlier answer is kept",
            fix="unset it on the controller, or name a folder that holds the model",
        )
    hub = _Hub(address, repo, timeout, limit)
    commit = hub.list_files(revision)
    metadata = known.load(commit) if commit else None
    if metadata is None:
        metadata = _read(hub, commit)
    known.save(metadata, revision or "")
    return metadata


def read_folder(path: str | os.PathLike[str]) -> Metadata:
    """Read what a folder of this machine says of the model in it.

    Raises:
        LlmetalError: there is no such folder, or its config.json, index or a header is no good.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            raise LlmetalError(
                what="the model's folder does not exist"
                if not folder.exists()
                else "the model's source is not a folder",
                where=str(folder),
                fix="name the folder that holds config.json and the weights",
            )
        return _read(_Folder(folder), None)
    except (OSError, ValueError) as error:
        raise LlmetalError(
            what="the model's folder cannot be read",
            where=str(folder),
            why=str(error),
            fix="give the user of this command read access to it",
        ) from error


def _constants() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("huggingface_hub.constants")
    except ValueError as error:
        raise LlmetalError(
            what="the library of the hub cannot be used",
            where="huggingface_hub",
            why=in_words(str(error)),
            fix="look at the variables of the environment that begin with HF_",
        ) from error


def _check_names(repo: str, revision: str | None) -> None:
    errors = importlib.import_module("huggingface_hub.errors")
    utils = importlib.import_module("huggingface_hub.utils")
    try:
        utils.validate_repo_id(repo)
    except errors.HFValidationError as error:
        raise LlmetalError(
            what="this is not the name of a model on a hub",
            where=in_words(repr(repo)),
            why=in_words(str(error)),
            fix="name it owner/name, or give the path of a folder",
        ) from error
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise LlmetalError(
            what="this is not a revision",
            where=in_words(repr(revision)),
            fix="name a branch, a tag or a commit of the model's repository",
        )


def _check_address(address: str) -> None:
    """See that an address is one of HTTP, with a port where it names one."""
    what, why = "the address of the hub is none", ""
    fix = "set HF_ENDPOINT to an address that begins with http:// or https://"
    try:
        parts = urlsplit(address)
        if parts.scheme in {"http", "https"} and parts.hostname and address.isprintable():
            what = "the port of the hub's address is wrong"
            fix = f"set HF_ENDPOINT to an address with a port from 1 to {_MOST_PORTS}, or with none"
            if parts.port != 0:
                return
    except ValueError as error:
        why = in_words(str(error)) if "://" in address and "@" not in address else ""
    raise LlmetalError(
        what=what, where=in_words(repr(_USER.sub("://(hidden)@", address))), why=why, fix=fix
    )


def _is_offline() -> bool:
    """Whether the environment forbids to ask; huggingface_hub reads it at its import only."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in _YES for name in names)


class _Answers:
    """Answers about one repository, kept in a folder."""

    def __init__(self, cache: Path | None, address: str, repo: str) -> None:
        self._cache = cache
        self._key = f"{address}\n{repo}"

    def _path(self, revision: str) -> Path | None:
        if self._cache is None:
            return None
        digest = hashlib.sha256(f"{self._key}\n{revision}".encode()).hexdigest()[:32]
        return self._cache / f"model-{digest}.json"

    def load(self, revision: str) -> Metadata | None:
        """The answer for a commit, or the last one for a branch; None where it is not whole."""
        path = self._path(revision)
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with path.open("rb") as stream:
                values = json.loads(stream.read(_CACHE_LIMIT))
            if not isinstance(values, dict):
                return None
            if isinstance(commit := values.get("commit"), str):
                return self.load(commit) if _COMMIT.fullmatch(commit) else None
            return Metadata.from_dict(values)
        return None

    def save(self, metadata: Metadata, revision: str) -> None:
        """Keep an answer; a cache that cannot be written is no failure."""
        commit = metadata.revision
        path, link = self._path(commit or revision), self._path(revision)
        if path is None or link is None:
            return
        with contextlib.suppress(OSError, ValueError, RecursionError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (commit and path.exists()):
                write_atomic(path, json.dumps(metadata.as_dict()))
            if link != path:
                write_atomic(link, json.dumps({"commit": commit}))


class _Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self.files: dict[str, int] = {}
        for entry in sorted(path.iterdir()):
            # A link to nothing is a file that is not there.
            with contextlib.suppress(OSError):
                seen = entry.stat()
                if stat.S_ISREG(seen.st_mode):
                    self.files[entry.name] = seen.st_size

    def place(self, name: str) -> str:
        return str(self._path / name)

    def read(self, name: str, size: int) -> bytes:
        with (self._path / name).open("rb") as stream:
            return stream.read(size)


class _Hub:
    """A repository of a hub at one commit."""

    def __init__(self, address: str, repo: str, timeout: float, limit: float) -> None:
        self._utils = importlib.import_module("huggingface_hub.utils")
        errors = importlib.import_module("huggingface_hub.errors")
        # The library's HTTP client has not kept its name.
        client = importlib.import_module(errors.HTTPError.__module__.partition(".")[0])
        self._http_errors: tuple[type[Exception], ...] = (
            errors.HTTPError,
            client.InvalidURL,
            OSError,
            ValueError,
        )
        self._address = address
        self._repo = repo
        self._timeout = timeout
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._revision = ""
        self.where = repo
        self.files: dict[str, int] = {}

    def list_files(self, revision: str | None) -> str | None:
        """Learn which files there are and how large; their commit."""
        self._revision = revision or "main"
        url = f"{self._address}/api/models/{self._repo}"
        if revision:
            url += f"/revision/{quote(revision, safe='')}"
        raw = self._get(f"{url}?blobs=true", _LISTING_LIMIT + 1)
        url = presentable(url)
        listing = parse_object(raw, _LISTING_LIMIT, url)
        siblings = listing.get("siblings")
        for one in siblings if isinstance(siblings, list) else ():
            said = one if isinstance(one, dict) else {}
            name, size = said.get("rfilename"), said.get("size")
            if isinstance(name, str) and is_safe_path(name):
                self.files[name] = size if isinstance(size, int) and size > 0 else 0
        if not self.files:
            raise LlmetalError(
                what="the hub's answer lists no files",
                where=url,
                fix="check that HF_ENDPOINT is the address of a hub or of a mirror of one",
            )
        commit = listing.get("sha")
        if isinstance(commit, str) and _COMMIT.fullmatch(commit):
            self._revision = commit
            return commit
        return None

    def place(self, name: str) -> str:
        return presentable(self._url(name))

    def _url(self, name: str) -> str:
        path = f"{self._repo}/resolve/{quote(self._revision, safe='')}/{quote(name)}"
        return f"{self._address}/{path}"

    def read(self, name: str, size: int) -> bytes:
        return self._get(self._url(name), size)

    def _get(self, url: str, size: int) -> bytes:
        """The first bytes of an address; asked again where that may help."""
        for attempt in (1, 2, 3):
            try:
                return self._ask_in_time(url, size)
            except _Again as again:
                if attempt == 3 or time.monotonic() + _PAUSE > self._deadline:  # noqa: PLR2004 - the last one
                    raise again.error from again.cause
                time.sleep(_PAUSE * attempt)
        raise AssertionError

    def _ask_in_time(self, url: str, size: int) -> bytes:
        """Ask in a thread that can be left: nothing else ends the wait for names and headers."""
        answers: list[bytes] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(self._ask(url, size))
            except Exception as error:  # noqa: BLE001 - handed to whoever asked
                errors.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(max(0.0, self._deadline - time.monotonic()))
        for error in errors:
            raise error
        if not answers:
            raise self._too_slow()
        return answers[0]

    def _ask(self, url: str, size: int) -> bytes:
        headers = self._utils.build_hf_headers() | {"Accept-Encoding": "identity"}
        if "/resolve/" in url:
            headers["Range"] = f"bytes=0-{size - 1}"
        session = self._utils.get_session()
        try:
            with session.stream("GET", url, headers=headers, timeout=self._timeout) as response:
                if response.status_code not in {_OK, _PARTIAL}:
                    raise self._refused(url, response)
                found = bytearray()
                for block in response.iter_bytes():
                    found += block
                    if len(found) >= size:
                        break
                    if time.monotonic() > self._deadline:
                        raise self._too_slow()
                return bytes(found[:size])
        except self._http_errors as error:
            why = str(error) or type(error).__name__
            raise _Again(self._unreachable(why), error) from error

    def _too_slow(self) -> LlmetalError:
        return LlmetalError(
            what="the hub answers too slowly",
            where=f"{self._repo} at {presentable(self._address)}",
            why=f"what is asked of a model was not there after {self._limit:g} seconds",
            fix="try again later, set HF_ENDPOINT to another mirror, or name a folder that holds"
            " the model",
        )

    def _unreachable(self, why: str) -> LlmetalError:
        return LlmetalError(
            what="the hub cannot be reached",
            where=f"{self._repo} at {presentable(self._address)}",
            why=in_words(why),
            fix="check the network and HF_ENDPOINT, or name a folder that holds the model",
        )

    def _refused(self, url: str, response: Any) -> Exception:  # noqa: ANN401 - of the library's HTTP client
        """The error for an answer that is none."""
        status = int(response.status_code)
        said = in_words(str(response.headers.get("X-Error-Message", "")))
        code = str(response.headers.get("X-Error-Code", ""))
        why = f"HTTP {status}" + (f": {said}" if said else "")
        if status in {_DENIED, _FORBIDDEN} or code == "GatedRepo":
            what = "the hub does not give this model to you"
            fix = "check its name; accept its licence on the hub, and give a token in HF_TOKEN"
        elif status == _NOT_FOUND:
            what = "the hub has no such model"
            if code == "RevisionNotFound" or "/revision/" in url:
                what = "the hub has no such model, or not this revision of it"
            elif "/resolve/" in url:
                what = "the hub has not this file of the model"
            fix = "check the name and the revision; for a private model give a token in HF_TOKEN"
        else:
            what = "the hub cannot answer now"
            fix = "try again later, or set HF_ENDPOINT to another mirror"
        where = f"{self._repo} at {presentable(self._address)}"
        error = LlmetalError(what=what, where=where, why=why, fix=fix)
        if status == _BUSY or status >= _BROKEN:
            return _Again(error, None)
        return error


class _Again(Exception):  # noqa: N818 - not an error of its own
    """An error that may not come again."""

    def __init__(self, error: LlmetalError, cause: Exception | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.cause = cause


def _read(source: _Source, revision: str | None) -> Metadata:
    """Read a model from where it is."""
    names = source.files
    problems: list[str] = []
    config = _read_config(source)
    if not has_tokenizer(names):
        problems.append(f"{source.where} has no tokenizer (tokenizer.json or the like)")
    shards, total = _shards(source)
    missing = [one for one in shards if one not in names]
    if missing:
        problems.append(f"{source.where} lacks {_some(missing)}, which {_INDEX} names")
    tensors: dict[str, TensorInfo] | None = None
    size = sum(names[one] for one in shards if one in names)
    if shards and not missing:
        tensors = _read_tensors(source, shards)
    elif missing:
        size = total or 0
    else:
        size = _other_weights(source, problems)
    if tensors and not size:
        size = sum(one.size for one in tensors.values())
    return Metadata(
        where=source.where,
        config=config,
        tensors=tensors,
        files=tuple(names.items()),
        weight_bytes=size or None,
        revision=revision,
        problems=tuple(problems),
    )


def _read_config(source: _Source) -> dict[str, Any]:
    """The config.json, with what modelopt writes beside it."""
    names = source.files
    if _CONFIG not in names:
        if any(name.endswith(".gguf") for name in names):
            return {}
        raise LlmetalError(
            what="the model has no config.json",
            where=source.where,
            fix="name a repository or folder that holds config.json and the weights",
        )
    config = _read_json(source, _CONFIG, _CONFIG_LIMIT)
    if _QUANT in names and not isinstance(config.get("quantization_config"), dict):
        said = _read_json(source, _QUANT, _CONFIG_LIMIT).get("quantization")
        if isinstance(said, dict):
            config["quantization_config"] = {"quant_method": "modelopt", **said}
    return config


def _read_json(source: _Source, name: str, limit: int) -> dict[str, Any]:
    """A JSON object; one that is too large is not read at all."""
    if source.files.get(name, 0) > limit:
        raise too_large(source.place(name), source.files[name], limit)
    return parse_object(source.read(name, limit + 1), limit, source.place(name))


def _shards(source: _Source) -> tuple[list[str], int | None]:
    """The safetensors files that an engine loads, and the bytes of all tensors if the index says.

    An index decides; without one, files that hold the same weights in another layout do not count.
    """
    names = source.files
    if _INDEX not in names:
        if _SINGLE in names:
            return [_SINGLE], None
        found = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
        return [name for name in found if not name.startswith(("consolidated", "adapter_"))], None
    index = _read_json(source, _INDEX, _INDEX_LIMIT)
    places = index.get("weight_map")
    said = index.get("metadata")
    total = said.get("total_size") if isinstance(said, dict) else None
    if not isinstance(places, dict) or not places:
        why = "it has no weight_map"
    else:
        named = {one for one in places.values() if isinstance(one, str)}
        strange = [one for one in places.values() if not isinstance(one, str)]
        bad = [*strange, *sorted(one for one in named if not _is_shard(one))]
        if not bad:
            size = total if isinstance(total, int) and not isinstance(total, bool) else None
            return sorted(named), size
        why = f"{in_words(repr(bad[0]))} in it is no safe name of a safetensors file"
    raise LlmetalError(
        what="the model's weight index cannot be read",
        where=source.place(_INDEX),
        why=why,
        fix="fetch the file again from where the model was published",
    )


def _is_shard(name: str) -> bool:
    return name.endswith(".safetensors") and is_safe_path(name)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _other_weights(source: _Source, problems: list[str]) -> int:
    """Bytes of weights that are no safetensors, and what to say of them."""
    for ending, said in (
        (".bin", "in pytorch_model.bin files only, whose tensors cannot be told without loading"),
        (".gguf", "as GGUF only, which is not read here"),
    ):
        found = {
            name: size
            for name, size in source.files.items()
            if name.endswith(ending) and "/" not in name and not name.startswith("training_args")
        }
        if found:
            problems.append(f"{source.where} has its weights {said}")
            return sum(found.values())
    problems.append(f"{source.where} has no weights")
    return 0


def _read_tensors(source: _Source, shards: Sequence[str]) -> dict[str, TensorInfo]:
    """The tensors of all files, by their headers."""
    with ThreadPoolExecutor(min(_WORKERS, len(shards))) as pool:
        headers = list(pool.map(lambda name: _read_shard(source, name), shards))
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        tensors.update(header)
    return tensors


def _read_shard(source: _Source, name: str) -> dict[str, TensorInfo]:
    return read_header(lambda size: source.read(name, size), source.files[name], source.place(name))
