# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model metadata from a folder, and from an imitated hub that can be slow, broken or hostile."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import hub
from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
from ansible_collections.llmetal.inference.plugins.plugin_utils.model_weights import TensorInfo
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/some-model"
CONFIG = {"model_type": "llama", "hidden_size": 8}


def safetensors(
    tensors: Mapping[str, Any], data: int | None = None, length: int | None = None
) -> bytes:
    """A safetensors file; the data may be too short and the length of the header wrong."""
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    ends = [one["data_offsets"][1] for one in tensors.values() if "data_offsets" in one]
    size = max(ends, default=0) if data is None else data
    return (len(header) if length is None else length).to_bytes(8, "little") + header + bytes(size)


def tensor(start: int, rows: int, columns: int, dtype: str = "BF16") -> dict[str, Any]:
    """A tensor of a header."""
    return {
        "dtype": dtype,
        "shape": [rows, columns],
        "data_offsets": [start, start + 2 * rows * columns],
    }


ONE = safetensors({"a.weight": tensor(0, 2, 4), "b.weight": tensor(16, 3, 4)})
TWO = safetensors({"c.weight": tensor(0, 5, 4)})
INDEX = {
    "metadata": {"total_size": 80},
    "weight_map": {"a.weight": "m-1.safetensors", "c.weight": "m-2.safetensors"},
}
WHOLE = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": ONE,
}


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A model folder with some files."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def without(*names: str, **more: bytes) -> dict[str, bytes]:
    """The files of a whole model without some."""
    return {name: one for name, one in WHOLE.items() if name not in names} | more


def test_folder(tmp_path: Path) -> None:
    """A whole folder: config, tensors, sizes, no problems."""
    found = hub.read_folder(write(tmp_path, WHOLE))
    assert found.config == CONFIG
    assert found.tensors == {
        "a.weight": TensorInfo("BF16", (2, 4), 16),
        "b.weight": TensorInfo("BF16", (3, 4), 24),
    }
    assert dict(found.files) == {name: len(content) for name, content in WHOLE.items()}
    assert (found.weight_bytes, found.revision, found.problems) == (len(ONE), None, ())
    assert found.where == str(tmp_path)
    assert Metadata.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_folder_with_shards(tmp_path: Path) -> None:
    """An index decides which files count; links are followed as in a hub's cache."""
    files = without("model.safetensors") | {
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        "m-1.safetensors": ONE,
        "consolidated.safetensors": ONE,
    }
    write(tmp_path, files)
    (tmp_path / "blob").write_bytes(TWO)
    (tmp_path / "m-2.safetensors").symlink_to("blob")
    found = hub.read_folder(tmp_path)
    assert found.tensors is not None
    assert sorted(found.tensors) == ["a.weight", "b.weight", "c.weight"]
    assert found.weight_bytes == len(ONE) + len(TWO)
    assert found.problems == ()


def test_folder_without_a_shard(tmp_path: Path) -> None:
    """A missing shard and a missing tokenizer are problems, and the index knows the size."""
    files = without("model.safetensors", "tokenizer.json") | {
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        "m-1.safetensors": ONE,
    }
    found = hub.read_folder(write(tmp_path, files))
    (tmp_path / "m-2.safetensors").symlink_to("nowhere")
    assert hub.read_folder(tmp_path) == found
    assert (found.tensors, found.weight_bytes) == (None, 80)
    tokenizer, shard = found.problems
    assert "has no tokenizer" in tokenizer
    assert "lacks m-2.safetensors, which model.safetensors.index.json names" in shard


@pytest.mark.parametrize(
    ("names", "good"),
    [
        (["tokenizer.model"], True),
        (["vocab.json", "merges.txt"], True),
        (["vocab.json"], False),
        (["tekken.json"], True),
        (["qwen.tiktoken"], True),
        (["tokenizer_config.json"], False),
    ],
)
def test_tokenizers(tmp_path: Path, names: list[str], good: bool) -> None:  # noqa: FBT001 - a table
    """What a tokenizer may be made of."""
    write(tmp_path, without("tokenizer.json") | dict.fromkeys(names, b""))
    assert (hub.read_folder(tmp_path).problems == ()) is good


@pytest.mark.parametrize(
    ("files", "problem", "size"),
    [
        ({"pytorch_model.bin": b"12345", "training_args.bin": b"1"}, "pytorch_model.bin files", 5),
        ({"model-Q4.gguf": b"123"}, "as GGUF only", 3),
        ({}, "has no weights", None),
    ],
)
def test_other_weights(
    tmp_path: Path, files: dict[str, bytes], problem: str, size: int | None
) -> None:
    """Weights that are not safetensors are said to be so."""
    found = hub.read_folder(write(tmp_path, without("model.safetensors") | files))
    assert found.tensors is None
    assert found.weight_bytes == size
    assert problem in found.problems[0]


def test_gguf_alone(tmp_path: Path) -> None:
    """A GGUF file needs neither a config.json nor a tokenizer."""
    found = hub.read_folder(write(tmp_path, {"model.gguf": b"GGUF"}))
    assert found.config == {}
    assert "as GGUF only" in " ".join(found.problems)


def test_modelopt_beside(tmp_path: Path) -> None:
    """What modelopt writes into a file of its own is part of the configuration."""
    said = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    write(tmp_path, WHOLE | {"hf_quant_config.json": json.dumps(said).encode()})
    assert hub.read_folder(tmp_path).config["quantization_config"] == {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "line 1, column 1"),
        (b'{\n "a": 1,,\n}', "line 2, column 9"),
        (b"[1]", "it holds list, not an object"),
        (b"\xff\xfe{}", "utf-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
    ],
)
def test_bad_config(tmp_path: Path, content: bytes, why: str) -> None:
    """A config.json that is none is an error that names the file and the place."""
    write(tmp_path, WHOLE | {"config.json": content})
    with pytest.raises(LlmetalError, match="is not a JSON object") as caught:
        hub.read_folder(tmp_path)
    assert why in caught.value.why
    assert caught.value.where == str(tmp_path / "config.json")
    assert caught.value.fix


def test_odd_but_good_config(tmp_path: Path) -> None:
    """Python's JSON has NaN and takes the last of equal keys; so do the engines."""
    write(tmp_path, WHOLE | {"config.json": b'\xef\xbb\xbf{"a": NaN, "b": 1, "b": 2}'})
    assert hub.read_folder(tmp_path).config["b"] == 2


def test_huge_config_costs_nothing(tmp_path: Path) -> None:
    """A config.json of 500 MB is refused by its size."""
    write(tmp_path, WHOLE)
    os.truncate(tmp_path / "config.json", 500_000_000)
    start = time.monotonic()
    with pytest.raises(LlmetalError, match="too large to be what its name says"):
        hub.read_folder(tmp_path)
    assert time.monotonic() - start < 0.2


def test_config_that_is_no_file(tmp_path: Path) -> None:
    """A pipe would block for ever: only regular files count."""
    write(tmp_path, without("config.json"))
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(LlmetalError, match=r"has no config\.json"):
        hub.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "only 0 bytes"),
        (b"1234567", "only 7 bytes"),
        (safetensors({}, length=1 << 62), "claims 4611686018427387904 bytes"),
        (safetensors({}, length=5000), "claims 5000 bytes"),
        (ONE[:60], "claims"),
        (ONE[:-1], "cut off"),
        (safetensors({"a": tensor(0, 2, 4), "b": tensor(8, 2, 4)}), "lies over another"),
        (safetensors({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [-2, 0]}}), "'a'"),
        (safetensors({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [2, 0]}}), "no start"),
        (safetensors({"a": {"dtype": "BF16", "shape": [9], "data_offsets": [0, 2]}}), "2 bytes"),
        (safetensors({"a": {"dtype": "BF16", "shape": [1]}, "b": tensor(0, 1, 1)}, 2), "no dtype"),
        (safetensors({"a": {**tensor(0, 1, 1), "shape": [True, 1]}}), "whole numbers"),
        (safetensors({"a": {**tensor(0, 1, 1), "shape": [1] * 99}}), "2 bytes"),
        (safetensors({"a": {**tensor(0, 1, 1), "dtype": 3}}), "no dtype"),
        (safetensors({"a": []}), "has no description"),
    ],
)
def test_damaged_safetensors(tmp_path: Path, content: bytes, why: str) -> None:
    """A damaged file is an error that names the file."""
    write(tmp_path, WHOLE | {"model.safetensors": content})
    with pytest.raises(LlmetalError, match="safetensors file of the model is damaged") as caught:
        hub.read_folder(tmp_path)
    assert why in caught.value.why
    assert caught.value.where == str(tmp_path / "model.safetensors")


def test_header_that_is_no_json(tmp_path: Path) -> None:
    """A header of other bytes is an error too."""
    content = (20).to_bytes(8, "little") + b"x" * 40
    write(tmp_path, WHOLE | {"model.safetensors": content})
    with pytest.raises(LlmetalError, match="line 1, column 1"):
        hub.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": {"a": "../../etc/model.safetensors"}}, "no safe name"),
        ({"weight_map": {"a": 3}}, "no safe name"),
        ({"weight_map": {"a": ""}}, "no safe name"),
        ({"weight_map": {"a": []}}, "no safe name"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "no safe name"),
        ({"weight_map": []}, "no weight_map"),
    ],
)
def test_bad_index(tmp_path: Path, index: object, why: str) -> None:
    """An index that leads elsewhere, or nowhere."""
    write(tmp_path, WHOLE | {"model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(LlmetalError, match=why):
        hub.read_folder(tmp_path)


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_bytes_as_safetensors(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    """Whatever the bytes: tensors, or our error."""
    folder = write(tmp_path_factory.mktemp("model"), WHOLE | {"model.safetensors": raw})
    with contextlib.suppress(LlmetalError):
        assert hub.read_folder(folder).tensors is not None


def test_no_folder(tmp_path: Path) -> None:
    """Names that are no folder of a model."""
    (tmp_path / "file").touch()
    for name, what in (
        ("nothing", "does not exist"),
        ("file", "is not a folder"),
        ("a\0b", "cannot be read|does not exist"),
    ):
        with pytest.raises(LlmetalError, match=what):
            hub.read_folder(tmp_path / name)


class Hub(ThreadingHTTPServer):
    """A hub with one model."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(WHOLE)
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        self.sizes = True
        self.ranges = True
        self.redirects = False
        self.fault: Callable[[Handler], bool] = lambda _: False

    @property
    def address(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may hang up before the end."""


class Handler(BaseHTTPRequestHandler):
    """Answers as a hub does."""

    server: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the library
        """Keep quiet."""

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> bool:
        """One whole answer; true, so that a fault can end with it."""
        more = dict(headers or {})
        self.send_response(status)
        self.send_header("Content-Length", more.pop("length", str(len(body))))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.sent += len(body)
        return True

    def do_GET(self) -> None:
        """The list of files, or a file or its beginning."""
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((path, self.headers.get("Authorization", "")))
        if self.server.fault(self):
            return
        if path.startswith("/cdn/"):
            self.file(path.removeprefix("/cdn/"))
        elif path in {f"/api/models/{REPO}", f"/api/models/{REPO}/revision/v1"} or path.endswith(
            f"/revision/{COMMIT}"
        ):
            siblings = [
                {"rfilename": name, **({"size": len(body)} if self.server.sizes else {})}
                for name, body in self.server.files.items()
            ]
            siblings += [{"rfilename": "../../outside", "size": 1}]
            body = json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode()
            self.answer(200, body, headers={"Content-Type": "application/json"})
        elif path.startswith("/api/models/"):
            code = "RevisionNotFound" if "/revision/" in path else "RepoNotFound"
            self.answer(404, b"{}", headers={"X-Error-Code": code, "X-Error-Message": "Not here"})
        elif self.server.redirects:
            name = path.rsplit("/", 1)[1]
            self.answer(302, headers={"Location": f"/cdn/{name}"})
        else:
            self.file(path.rsplit("/", 1)[1])

    def file(self, name: str) -> None:
        """A file, or its beginning."""
        body = self.server.files[name]
        asked = self.headers.get("Range", "")
        if self.server.ranges and asked.startswith("bytes=0-"):
            self.answer(
                206, body[: int(asked.removeprefix("bytes=0-")) + 1], headers={"ETag": '"1"'}
            )
        else:
            self.answer(200, body, headers={"ETag": '"1"'})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that listens, with an environment that leads to it."""
    from huggingface_hub.utils._http import close_session  # noqa: PLC0415 - not for others

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub, "_PAUSE", 0.01)
    close_session()
    with Hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()
    close_session()


def test_fetch(server: Hub) -> None:
    """A model of the hub is what its folder would be, with a commit; no weight is read."""
    server.files["big.bin"] = bytes(1 << 20)
    found = hub.fetch(REPO)
    assert found.config == CONFIG
    assert found.revision == COMMIT
    assert found.tensors is not None
    assert sorted(found.tensors) == ["a.weight", "b.weight"]
    assert found.weight_bytes == len(ONE)
    assert found.problems == ()
    assert dict(found.files) == {name: len(body) for name, body in server.files.items()}
    assert all(f"/resolve/{COMMIT}/" in path for path, _ in server.requests[1:])
    assert server.sent < 10_000


def test_fetch_of_shards(server: Hub) -> None:
    """Shards behind redirects, and a hub that gives neither sizes nor parts of files."""
    header = {f"layer.{one:05}.weight": tensor(16 * one, 2, 4) for one in range(4000)}
    server.files = without("model.safetensors") | {
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        "m-1.safetensors": safetensors(header),
        "m-2.safetensors": TWO,
    }
    server.redirects = True
    whole = hub.fetch(REPO, "v1")
    assert whole.tensors is not None
    assert len(whole.tensors) == 4001
    server.ranges = server.sizes = False
    again = hub.fetch(REPO, COMMIT)
    assert again.tensors == whole.tensors
    assert again.weight_bytes == 4001 * 16 + 24


def test_fetch_asks_a_commit_once(server: Hub, tmp_path: Path) -> None:
    """What is known of a commit is not asked again, nor is it lost without a network."""
    cache = tmp_path / "cache"
    first = hub.fetch(REPO, cache=cache)
    number = len(server.requests)
    assert hub.fetch(REPO, COMMIT, cache=cache) == first
    assert len(server.requests) == number
    assert hub.fetch(REPO, cache=cache) == first
    assert len(server.requests) == number + 1
    server.fault = lambda handler: handler.answer(500)
    assert hub.fetch(REPO, COMMIT, cache=cache) == first
    with pytest.raises(LlmetalError, match="cannot answer now"):
        hub.fetch(REPO, cache=cache)


def test_fetch_offline(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, an earlier answer serves; without one that is said, and nothing is asked."""
    first = hub.fetch(REPO, cache=tmp_path)
    server.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.fetch(REPO, cache=tmp_path) == first
    with pytest.raises(LlmetalError, match="HF_HUB_OFFLINE") as caught:
        hub.fetch(REPO, "v1", cache=tmp_path)
    assert "folder" in caught.value.fix
    assert server.requests == []


def test_damaged_cache(server: Hub, tmp_path: Path) -> None:
    """A damaged answer is asked for again."""
    first = hub.fetch(REPO, cache=tmp_path)
    for content in ("", "[]", '{"schema": 0}', '{"commit": "x"}', '{"schema": 1, "tensors": 3}'):
        for path in tmp_path.iterdir():
            path.write_text(content, encoding="utf-8")
        assert hub.fetch(REPO, COMMIT, cache=tmp_path) == first
    assert len(server.requests) > 10


def test_cache_that_cannot_be_written(server: Hub, tmp_path: Path) -> None:
    """A cache is no condition."""
    (tmp_path / "file").touch()
    assert hub.fetch(REPO, cache=tmp_path / "file").revision == COMMIT
    assert server.requests


@pytest.mark.parametrize(
    ("status", "headers", "what"),
    [
        (401, {"X-Error-Message": "Invalid username or password."}, "does not give this model"),
        (403, {"X-Error-Code": "GatedRepo"}, "does not give this model"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no such model"),
        (429, {}, "cannot answer now"),
        (500, {}, "cannot answer now"),
        (503, {}, "cannot answer now"),
        (204, {}, "cannot answer now"),
    ],
)
def test_refusals(server: Hub, status: int, headers: dict[str, str], what: str) -> None:
    """Each answer of a hub that gives nothing is one error with a way out."""
    server.fault = lambda handler: handler.answer(status, headers=headers)
    with pytest.raises(LlmetalError, match=what) as caught:
        hub.fetch(REPO)
    assert f"HTTP {status}" in caught.value.why
    assert server.address in caught.value.where
    assert caught.value.fix
    assert len(server.requests) == (3 if status >= 429 else 1)


def test_missing_revision_and_file(server: Hub) -> None:
    """A revision that is not there, and a file that a listing promises."""
    with pytest.raises(LlmetalError, match="or not this revision of it"):
        hub.fetch(REPO, "v2")
    server.fault = lambda handler: "/resolve/" in handler.path and handler.answer(404)
    with pytest.raises(LlmetalError, match="has not this file"):
        hub.fetch(REPO)


def test_a_fault_that_passes(server: Hub) -> None:
    """A hub that is broken for a moment is asked again."""
    faults = iter([True, True])
    server.fault = lambda handler: bool(next(faults, False) and handler.answer(502))
    assert hub.fetch(REPO).revision == COMMIT


def test_slow_hub(server: Hub) -> None:
    """A hub that accepts and says nothing is given up after the time limit."""
    release = threading.Event()
    server.fault = lambda _: release.wait(20)
    start = time.monotonic()
    with pytest.raises(LlmetalError, match="cannot be reached"):
        hub.fetch(REPO, timeout=0.1)
    release.set()
    assert time.monotonic() - start < 5


def test_trickling_hub(server: Hub) -> None:
    """A hub that sends a byte now and then does not hold a plan for ever."""

    def trickle(handler: Handler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)
        return True

    server.fault = trickle
    start = time.monotonic()
    with pytest.raises(LlmetalError, match="answers too slowly") as caught:
        hub.fetch(REPO, timeout=0.1, limit=1)
    assert time.monotonic() - start < 3
    assert "after 1 seconds" in caught.value.why


@pytest.mark.parametrize("part", ["api", "resolve"])
def test_trickling_headers(server: Hub, part: str) -> None:
    """Nor does one whose headers never end, whichever the answer; and the process can end."""

    def trickle(handler: Handler) -> bool:
        if f"/{part}/" not in handler.path:
            return False
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(1000):
            handler.wfile.write(b"x: y\r\n")
            handler.wfile.flush()
            time.sleep(0.02)
        return True

    server.fault = trickle
    start = time.monotonic()
    with pytest.raises(LlmetalError, match="answers too slowly"):
        hub.fetch(REPO, timeout=0.1, limit=0.5)
    assert time.monotonic() - start < 3
    assert all(one.daemon for one in threading.enumerate() if "(ask)" in one.name)


def test_limit_of_a_model() -> None:
    """Without another, a model has a minute."""
    assert inspect.signature(hub.fetch).parameters["limit"].default == 60


def test_endless_answers(server: Hub) -> None:
    """An endless config.json is read up to its limit only, whatever length is claimed."""

    def flood(handler: Handler) -> bool:
        if "config.json" not in handler.path:
            return False
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * (1 << 20))

    server.fault = flood
    with pytest.raises(LlmetalError, match="too large to be what its name says"):
        hub.fetch(REPO)
    server.files["config.json"] = b" " * (11 << 20)
    number = len(server.requests)
    with pytest.raises(LlmetalError, match="too large"):
        hub.fetch(REPO)
    assert len(server.requests) == number + 1


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"<html>login</html>", "is not a JSON object"),
        (b"{}", "lists no files"),
        (b'{"siblings": [3, {"rfilename": 4}, {"rfilename": "../x"}]}', "lists no files"),
    ],
)
def test_not_a_hub(server: Hub, body: bytes, what: str) -> None:
    """Something else answers at the address."""
    server.fault = lambda handler: handler.answer(200, body)
    with pytest.raises(LlmetalError, match=what):
        hub.fetch(REPO)


def test_cut_answers(server: Hub) -> None:
    """An answer that ends early is a fault of the network."""
    server.fault = lambda handler: handler.answer(200, b"{}", {"length": "900"})
    with pytest.raises(LlmetalError, match="cannot be reached"):
        hub.fetch(REPO)


@pytest.mark.usefixtures("server")
def test_closed_port() -> None:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with pytest.raises(LlmetalError, match="cannot be reached") as caught:
        hub.fetch(REPO, endpoint=f"http://127.0.0.1:{port}")
    assert "HF_ENDPOINT" in caught.value.fix


def test_token_stays_at_home(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's token goes to the hub, and not to where it redirects."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Hub() as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True)
        thread.start()

        def away(handler: Handler) -> bool:
            if "/resolve/" not in handler.path:
                return False
            name = handler.path.rsplit("/", 1)[1]
            handler.answer(302, headers={"Location": f"{other.address}/cdn/{name}"})
            return True

        server.fault = away
        assert hub.fetch(REPO).revision == COMMIT
        other.shutdown()
        thread.join()
    assert all(sent == "Bearer hf_secret" for _, sent in server.requests)
    assert other.requests
    assert all(not sent for _, sent in other.requests)


@pytest.mark.parametrize(
    ("repo", "revision", "endpoint", "what"),
    [
        ("a/b/c", None, None, "not the name of a model"),
        ("../x", None, None, "not the name of a model"),
        ("", None, None, "not the name of a model"),
        ("a b", None, None, "not the name of a model"),
        (REPO, "../main", None, "not a revision"),
        (REPO, "a b", None, "not a revision"),
        (REPO, "", None, "not a revision"),
        (REPO, None, "ftp://example", "address of the hub is none"),
        (REPO, None, "http://", "address of the hub is none"),
        (REPO, None, "http://[::1", "address of the hub is none"),
        (REPO, None, "http://a\x1bb", "address of the hub is none"),
        (REPO, None, "http://127.0.0.1:99999", "port of the hub's address is wrong"),
        (REPO, None, "http://127.0.0.1:0", "port of the hub's address is wrong"),
        (REPO, None, "http://127.0.0.1:x", "port of the hub's address is wrong"),
    ],
)
def test_names(repo: str, revision: str | None, endpoint: str | None, what: str) -> None:
    """What is no name, revision or address is said to be none before anything is asked."""
    with pytest.raises(LlmetalError, match=what):
        hub.fetch(repo, revision, endpoint=endpoint)


@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999"])
def test_address_of_the_environment(address: str) -> None:
    """The library reads it at its import, where a bad one is a crash: ours is looked at before."""
    code = (
        "from ansible_collections.llmetal.inference.plugins.plugin_utils import hub\n"
        "try: hub.fetch('a/b')\n"
        "except hub.LlmetalError as error: print(error.what, error.where, error.fix)"
    )
    path = os.pathsep.join(one for one in sys.path if one)
    environment = os.environ | {"PYTHONPATH": path, "HF_ENDPOINT": address}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True
    )
    assert "the hub" in done.stdout
    assert address in done.stdout
    assert "HF_ENDPOINT" in done.stdout


@pytest.mark.parametrize(
    "address",
    ["https://user:secret@127.0.0.1:1", "https://user:sec/ret@host", "ftp://u:secret@host"],
)
def test_credentials_are_hidden(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address may have them; no part of an error does."""
    monkeypatch.setattr(hub, "_PAUSE", 0.01)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    with pytest.raises(LlmetalError) as caught:
        hub.fetch(REPO, endpoint=address, timeout=1)
    error = caught.value
    said = " ".join((str(error), error.what, error.where, error.why, error.fix))
    assert "(hidden)@" in said
    assert "sec" not in said.replace("seconds", "")
    assert "ret@" not in said


def test_credentials_of_answers_are_hidden(server: Hub) -> None:
    """Nor do the names of files that cannot be read."""
    server.files["config.json"] = b"[]"
    address = server.address.replace("://", "://user:secret@")
    with pytest.raises(LlmetalError, match="is not a JSON object") as caught:
        hub.fetch(REPO, endpoint=address)
    assert "://(hidden)@127.0.0.1" in caught.value.where
    server.fault = lambda handler: handler.answer(401, headers={"X-Error-Message": address})
    with pytest.raises(LlmetalError, match="does not give") as caught:
        hub.fetch(REPO, endpoint=address)
    assert "secret" not in str(vars(caught.value))


def test_imports_are_cheap() -> None:
    """Importing the module does not import the library of the hub."""
    name = "ansible_collections.llmetal.inference.plugins.plugin_utils.hub"
    code = f"import sys, {name}; sys.exit('huggingface_hub' in sys.modules)"
    path = os.pathsep.join(one for one in sys.path if one)
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
