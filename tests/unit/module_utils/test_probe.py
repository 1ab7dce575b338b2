# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe against a server that answers wrongly in every way it can."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import probe as subject
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.probe import ProbeError, Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = Any
MODELS = {"data": [{"id": "tiny"}]}


def completion(text: str | None = "Paris it is.", tokens: int = 4, reason: object = "stop") -> Json:
    """A completion as an engine sends it."""
    message = {"role": "assistant", "content": text}
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"completion_tokens": tokens},
    }


class Server(ThreadingHTTPServer):
    """An engine that says what a test wants."""

    daemon_threads = True

    def __init__(self) -> None:
        """Answer rightly until told otherwise."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: Any = MODELS
        self.completion: Any = completion()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.raw: bytes | None = None
        self.length: int | None = None
        self.pause = 0.0
        self.seen: list[tuple[str, str | None, bytes]] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Sends what the server holds."""

    server: Server

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """List the models."""
        self._send(self.server.models)

    def do_POST(self) -> None:
        """Complete."""
        self._send(self.server.completion)

    def _send(self, value: object) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.seen.append((self.path, self.headers.get("Authorization"), body))
        data = server.raw if server.raw is not None else json.dumps(value).encode()
        self.send_response(server.status)
        for name, text in server.headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(server.length or len(data)))
        self.end_headers()
        for index in range(0, len(data), 16) if server.pause else [0]:
            try:
                self.wfile.write(data[index : index + 16] if server.pause else data)
                self.wfile.flush()
            except OSError:
                return
            time.sleep(server.pause)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An engine on this machine; a proxy that nobody may ask for it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with Server() as engine:
        thread = threading.Thread(target=engine.serve_forever, daemon=True)
        thread.start()
        yield engine
        engine.shutdown()
        thread.join()


def ask(server: Server, **options: Json) -> subject.Answer:
    """Ask the server once."""
    return subject.ask(Question(**{"url": server.url, "model": "tiny", "timeout": 5, **options}))


def test_a_real_generation_is_a_proof(server: Server) -> None:
    """Text, tokens, reason and rate are told."""
    answer = ask(server, api_key="secret", prompt="Where?", max_tokens=7)
    assert answer.text == "Paris it is."
    assert answer.completion_tokens == 4
    assert answer.finish_reason == "stop"
    assert answer.tokens_per_second > 0
    (listing, chat) = server.seen
    assert listing[:2] == ("/v1/models", "Bearer secret")
    assert chat[0] == "/v1/chat/completions"
    sent = json.loads(chat[2])
    assert sent["max_tokens"] == 7
    assert sent["messages"] == [{"role": "user", "content": "Where?"}]


def test_a_model_that_only_reasons_has_generated(server: Server) -> None:
    """Its text is in another field, and the length ends it."""
    server.completion = completion(None, 32, "length")
    server.completion["choices"][0]["message"]["reasoning_content"] = "Let me think"
    assert ask(server).text == "Let me think"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (completion(""), "the text is empty"),
        (completion(" \n"), "the text is empty"),
        (completion(None), "the text is empty"),
        (completion(tokens=1), "it has 1 token"),
        (completion(tokens=0), "it has 0 token"),
        (completion(reason=None), "the finish reason is None"),
        (completion(reason="error"), "the finish reason is 'error'"),
        ({"choices": []}, "another form"),
        ({"choices": [{"message": "x"}]}, "another form"),
        ({"error": "busy"}, "another form"),
        ([], "another form"),
        (None, "another form"),
    ],
)
def test_what_is_no_generation_is_no_proof(server: Server, answer: object, why: str) -> None:
    """Each reason is said."""
    server.completion = answer
    with pytest.raises(ProbeError, match=why):
        ask(server)


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ({"data": [{"id": "other"}]}, "does not serve tiny.*it serves other"),
        ({"data": []}, "it serves nothing"),
        ({"object": "list"}, "another form"),
        (["tiny"], "another form"),
        (3, "another form"),
    ],
)
def test_a_model_that_is_not_listed(server: Server, models: object, why: str) -> None:
    """Another engine on the same port is told by what it serves."""
    server.models = models
    with pytest.raises(ProbeError, match=why):
        ask(server)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "refuses the key.*HTTP 401"),
        (403, "refuses the key"),
        (404, "answers HTTP 404"),
        (500, "answers HTTP 500"),
        (503, "answers HTTP 503"),
    ],
)
def test_a_status_that_is_an_error(server: Server, status: int, why: str) -> None:
    """Only a refused key is beyond waiting."""
    server.status = status
    with pytest.raises(ProbeError, match=why) as caught:
        ask(server, api_key="wrong key")
    assert caught.value.final == (status in {401, 403})
    assert "wrong key" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(server: Server, status: int) -> None:
    """A login page in front is told as what it is."""
    server.status = status
    server.headers = {"Location": "http://login.example/"}
    with pytest.raises(ProbeError, match=r"sends elsewhere.*login\.example"):
        ask(server)
    assert len(server.seen) == 1


@pytest.mark.parametrize("body", [b"<html>Welcome</html>", b"", b"\xff\xfe", b'{"data": ['])
def test_a_body_that_is_not_json(server: Server, body: bytes) -> None:
    """A web server on the port."""
    server.raw = body
    with pytest.raises(ProbeError, match="not JSON"):
        ask(server)


def test_half_a_body(server: Server) -> None:
    """A connection that ends too early."""
    server.raw = b'{"data": '
    server.length = 5000
    with pytest.raises(ProbeError, match="broke off"):
        ask(server)


def test_a_body_without_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on what is read."""
    monkeypatch.setattr(subject, "_BODY_LIMIT", 1000)
    server.raw = b"x" * 100_000
    with pytest.raises(ProbeError, match="larger than"):
        ask(server)


def test_a_server_that_drips(server: Server) -> None:
    """The deadline is that of the whole answer, not of each byte."""
    server.raw = json.dumps(MODELS).encode() * 50
    server.pause = 0.2
    started = time.monotonic()
    with pytest.raises(ProbeError, match="did not end in time"):
        ask(server, timeout=0.5)
    assert time.monotonic() - started < 3


def test_a_server_that_hangs() -> None:
    """A connection is taken and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        question = Question(f"http://127.0.0.1:{silent.getsockname()[1]}", "tiny", timeout=0.3)
        with pytest.raises(ProbeError, match=r"does not answer.*timed out"):
            subject.ask(question)


def test_nobody_listens() -> None:
    """The operating system's own words."""
    with pytest.raises(ProbeError, match="Connection refused"):
        subject.ask(Question("http://127.0.0.1:9", "tiny", timeout=1))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://localhost", True),
        ("http://10.0.0.1", False),
        ("http://gateway.example", False),
    ],
)
def test_which_addresses_are_this_machine(url: str, expected: bool) -> None:  # noqa: FBT001 - a table
    """Those need no proxy."""
    assert subject.is_loopback(url) == expected


def no_pause(_seconds: float) -> None:
    """Where nothing may be waited for."""
    pytest.fail("it waits")


def never() -> LlmetalError | None:
    """A service that lives."""
    return None


def test_waiting_ends_with_the_first_generation(server: Server) -> None:
    """An engine that is still loading."""
    server.models = {"data": []}
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.models = MODELS

    question = Question(server.url, "tiny", timeout=5)
    assert subject.wait_for_answer(question, 60, never, pause).completion_tokens == 4
    assert pauses == [1.0] * 3


def test_waiting_says_what_it_waited_for(server: Server) -> None:
    """The last reason is in the message."""
    server.status = 503
    question = Question(server.url, "tiny", timeout=5)
    with pytest.raises(LlmetalError, match=r"no generation within 0\.1 s.*HTTP 503"):
        subject.wait_for_answer(question, 0.1, never, lambda _seconds: time.sleep(0.2))


@pytest.mark.parametrize(
    ("status", "give_up"),
    [(401, never), (503, lambda: LlmetalError(what="the service has failed"))],
)
def test_waiting_in_vain_ends_at_once(
    server: Server, status: int, give_up: Callable[[], LlmetalError | None]
) -> None:
    """A wrong key does not become right, a dead service does not answer."""
    server.status = status
    with pytest.raises(LlmetalError, match=r"refuses the key|service has failed"):
        subject.wait_for_answer(Question(server.url, "tiny"), 600, give_up, no_pause)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                "ValueError: the KV cache does not fit",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValueError: the KV cache does not fit",
        ),
        (
            ["OSError: [Errno 98] Address already in use", "INFO bye", ""],
            "OSError: [Errno 98] Address already in use",
        ),
        (["INFO starting", "  Killed  ", ""], "Killed"),
        (
            ["RuntimeError: Engine core initialization failed"],
            "RuntimeError: Engine core initialization failed",
        ),
        ([], ""),
    ],
)
def test_the_root_cause_of_a_log(lines: list[str], expected: str) -> None:
    """The last line that tells something."""
    assert subject.root_cause(lines) == expected
