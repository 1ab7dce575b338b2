# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof that an endpoint serves a model: a real generation, judged strictly."""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    GiveUp = Callable[[], "LlmetalError | None"]

_BODY_LIMIT = 4 << 20
_ANSWER_LIMIT = 2000
_EXCERPT = 200
_PAUSE = 1.0
_REFUSED = {401, 403}
_REASONS = {"stop", "length"}
_ERROR_LINE = re.compile(r"(?:^|\s)(?:[A-Za-z_.]*(?:Error|Exception)|OSError|error):\s+\S")
_VAGUE = ("Engine core initialization failed", "WorkerProc initialization failed")


class ProbeError(LlmetalError):
    """An endpoint that did not prove itself.

    Args:
        final: whether waiting cannot help.
        what: as in `LlmetalError`.
        where: likewise.
        why: likewise.
        fix: likewise.
    """

    def __init__(
        self, *, what: str, where: str = "", why: str = "", fix: str = "", final: bool = False
    ) -> None:
        """Remember whether to try again."""
        super().__init__(what=what, where=where, why=why, fix=fix)
        self.final = final


@dataclass(frozen=True)
class Question:
    """What is asked of an endpoint."""

    url: str
    model: str
    prompt: str = "What is the capital of France?"
    max_tokens: int = 32
    timeout: float = 120
    api_key: str = ""


@dataclass(frozen=True)
class Answer:
    """A generation that counts."""

    model: str
    text: str
    completion_tokens: int
    finish_reason: str
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """The rate of this one request."""
        return round(self.completion_tokens / self.seconds, 1) if self.seconds else 0.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the answer that it is."""

    def redirect_request(self, *_arguments: object, **_options: object) -> None:
        """Follow nothing."""


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def ask(question: Question) -> Answer:
    """Have the model generate, once.

    Raises:
        ProbeError: anything but a real generation came back.
    """
    base = question.url.rstrip("/")
    listing = _request(question, f"{base}/v1/models")
    check_listing(listing, question.model, base)
    started = time.monotonic()
    body = {
        "model": question.model,
        "messages": [{"role": "user", "content": question.prompt}],
        "max_tokens": question.max_tokens,
        "temperature": 0,
    }
    completion = _request(question, f"{base}/v1/chat/completions", body)
    seconds = max(time.monotonic() - started, 0.001)
    text, tokens, reason = judge(completion, base)
    return Answer(question.model, text[:_ANSWER_LIMIT], tokens, reason, round(seconds, 3))


def check_listing(listing: Any, model: str, where: str) -> None:  # noqa: ANN401 - any JSON
    """Refuse an endpoint that does not list the model.

    Raises:
        ProbeError: it does not.
    """
    try:
        names = [str(one["id"]) for one in listing["data"]]
    except (KeyError, TypeError) as error:
        raise ProbeError(
            what="the endpoint's list of models has another form",
            where=f"{where}/v1/models",
            why=_excerpt(json.dumps(listing)),
            fix="check that the address is that of an OpenAI-compatible server",
        ) from error
    if model not in names:
        raise ProbeError(
            what=f"the endpoint does not serve {model}",
            where=where,
            why=f"it serves {', '.join(names) or 'nothing'}",
            fix="check which service listens on this port",
        )


def judge(completion: Any, where: str) -> tuple[str, int, str]:  # noqa: ANN401 - any JSON
    """The text, the tokens and the reason to stop, of a completion that is real.

    Raises:
        ProbeError: it is none.
    """
    try:
        choice = completion["choices"][0]
        message = choice["message"]
        text = next(
            (
                str(message[key])
                for key in ("content", "reasoning_content", "reasoning")
                if message.get(key)
            ),
            "",
        )
        tokens = int(completion["usage"]["completion_tokens"])
        reason = choice["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(
            what="the completion has another form",
            where=where,
            why=_excerpt(json.dumps(completion)),
            fix="check that the address is that of an OpenAI-compatible server",
        ) from error
    why = ""
    if not text.strip():
        why = "the text is empty"
    elif tokens <= 1:
        why = f"it has {tokens} token"
    elif reason not in _REASONS:
        why = f"the finish reason is {reason!r}"
    if why:
        raise ProbeError(
            what="the completion is not a real generation",
            where=where,
            why=why,
            fix="read the engine's log; the model's files or its chat template may be wrong",
        )
    return text, tokens, str(reason)


def _request(question: Question, url: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON
    """One request, with one deadline for all of it."""
    deadline = time.monotonic() + question.timeout
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if question.api_key:
        headers["Authorization"] = f"Bearer {question.api_key}"
    data = None if body is None else json.dumps(body).encode()
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_loopback(url):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - http(s) is checked by the caller
        opener = urllib.request.build_opener(*handlers)
        with opener.open(request, timeout=question.timeout) as response:
            payload = _read(response, deadline)
    except urllib.error.HTTPError as error:
        with error:
            raise _status_error(error, url) from error
    except (OSError, http.client.HTTPException) as error:
        raise _connection_error(error, url) from error
    try:
        return json.loads(payload)
    except ValueError as error:
        raise ProbeError(
            what="the endpoint's answer is not JSON",
            where=url,
            why=_excerpt(payload.decode(errors="replace")),
            fix="check which service listens on this port",
        ) from error


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole body, however slowly it comes, up to a limit of time and size."""
    blocks = []
    size = 0
    while block := response.read1(65536):
        blocks.append(block)
        size += len(block)
        if size > _BODY_LIMIT:
            message = f"the answer is larger than {_BODY_LIMIT} bytes"
            raise http.client.HTTPException(message)
        if time.monotonic() > deadline:
            message = "the answer did not end in time"
            raise TimeoutError(message)
    if response.length:
        raise http.client.IncompleteRead(b"".join(blocks), response.length)
    return b"".join(blocks)


def _status_error(error: urllib.error.HTTPError, url: str) -> ProbeError:
    """What an answer with another status than 200 means."""
    try:
        text = _excerpt(error.read(_BODY_LIMIT).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        text = ""
    if error.code in _REFUSED:
        return ProbeError(
            what="the endpoint refuses the key",
            where=url,
            why=f"HTTP {error.code}",
            fix="give the key that the service was started with",
            final=True,
        )
    location = error.headers.get("Location", "") if error.headers else ""
    if location:
        return ProbeError(
            what="the endpoint sends elsewhere",
            where=url,
            why=f"HTTP {error.code} to {location}",
            fix="give the address of the engine or gateway itself",
        )
    return ProbeError(
        what=f"the endpoint answers HTTP {error.code}",
        where=url,
        why=text,
        fix="read the engine's log",
    )


def _connection_error(error: Exception, url: str) -> ProbeError:
    """What a connection that gave no answer means."""
    reason = getattr(error, "reason", error)
    why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    if isinstance(reason, http.client.IncompleteRead):
        why = f"the answer broke off after {len(reason.partial)} bytes"
    return ProbeError(
        what="the endpoint does not answer",
        where=url,
        why=why,
        fix="check that the service runs and listens on this address",
    )


def _excerpt(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= _EXCERPT else f"{short[:_EXCERPT]}…"


def wait_for_answer(
    question: Question,
    wait: float,
    give_up: GiveUp,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Ask until a real generation comes back.

    Args:
        question: what is asked.
        wait: seconds to go on trying after a failure; 0 asks once.
        give_up: says why trying on is in vain, or None.
        sleep: what passes the time.

    Returns:
        The answer.

    Raises:
        LlmetalError: none came in time, or it never will.
    """
    limit = time.monotonic() + wait
    while True:
        try:
            return ask(question)
        except ProbeError as error:
            if error.final:
                raise
            hopeless = give_up()
            if hopeless is not None:
                raise hopeless from error
            if not wait:
                raise
            if time.monotonic() >= limit:
                raise ProbeError(
                    what=f"no generation within {wait:g} s",
                    where=error.where,
                    why=f"still waiting: {error.what}: {error.why}",
                    fix="read the service's log; a large model or a slow disk needs a longer"
                    " start timeout",
                ) from error
        sleep(_PAUSE)


def root_cause(lines: Sequence[str]) -> str:
    """The most telling line of a log that ends in a crash."""
    errors = [line.strip() for line in lines if _ERROR_LINE.search(line)]
    telling = [line for line in errors if not any(vague in line for vague in _VAGUE)]
    chosen = telling or errors or [line.strip() for line in lines if line.strip()]
    return chosen[-1].rstrip(".") if chosen else ""
