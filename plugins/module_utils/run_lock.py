# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock that keeps two site runs off one host, and that no dead run keeps."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = "run.lock"
_FORMAT = "%Y-%m-%d %H:%M:%S UTC"


@dataclass(frozen=True)
class Owner:
    """Who runs the site: which controller, which process of it, for whom."""

    controller: str
    host: str
    user: str
    pid: int
    started: str

    def __str__(self) -> str:
        """Who it is, for a person."""
        return f"{self.user}@{self.host}, process {self.pid}"


@dataclass(frozen=True)
class Lock:
    """The lock as it stands in its file."""

    run_id: str
    owner: Owner
    since: float
    until: float

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return asdict(self)

    def expired(self, now: float) -> bool:
        """Whether its lease is over."""
        return now >= self.until


@dataclass(frozen=True)
class Claim:
    """Who wants the lock, and for how long."""

    run_id: str
    owner: Owner
    lease: float
    dead_runs: frozenset[str] = frozenset()

    def lock(self, now: float, since: float | None = None) -> Lock:
        """The lock that this claim makes."""
        return Lock(self.run_id, self.owner, since if since is not None else now, now + self.lease)


def parse(text: str | None) -> Lock | None:
    """The lock in a file's text; None where it is none (half written, of another program)."""
    try:
        value = json.loads(text or "")
        return Lock(
            run_id=str(value["run_id"]),
            owner=Owner(**value["owner"]),
            since=float(value["since"]),
            until=float(value["until"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


def read(folder: str) -> dict[str, Any] | None:
    """The lock of a host, as it stands in a survey."""
    lock = parse(read_text(Path(folder) / FILE))
    return lock.as_dict() if lock else None


def decide(lock: Lock | None, claim: Claim, now: float) -> str:
    """What becomes of a claim: `free`, `ours`, `taken_over` (from a dead run) or `held`."""
    if lock is None:
        return "free"
    if lock.run_id == claim.run_id:
        return "ours"
    if lock.expired(now) or lock.run_id in claim.dead_runs:
        return "taken_over"
    return "held"


def _at(seconds: float) -> str:
    return time.strftime(_FORMAT, time.gmtime(seconds))


class HeldError(LlmetalError):
    """Another run holds the lock; its controller can tell whether that run is alive."""

    def __init__(self, lock: Lock, file: Path) -> None:
        """Say who holds it, since and until when, and what to do."""
        super().__init__(
            what="another site run is at work on this host",
            where=str(lock.owner),
            why=f"run {lock.run_id} holds the run lock since {_at(lock.since)}, until"
            f" {_at(lock.until)} unless it renews it",
            fix=f"wait for that run to end; if it is dead, delete {file} on the host",
        )
        self.lock = lock


@contextlib.contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """Keep two claims apart for the moment that reading and writing take.

    The kernel gives this lock on the folder back when its holder dies.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(folder: Path, lock: Lock) -> None:
    text = json.dumps(lock.as_dict(), indent=2, sort_keys=True) + "\n"
    write_atomic(folder / FILE, text, mode=0o644)


def _try(folder: Path, claim: Claim, *, write: bool) -> tuple[str, Lock | None]:
    """One attempt: the decision, and the lock before it."""
    now = time.time()
    lock = parse(read_text(folder / FILE))
    decision = decide(lock, claim, now)
    if write and decision != "held":
        since = lock.since if lock and decision == "ours" else None
        _write(folder, claim.lock(now, since))
    return decision, lock


def acquire(folder: str, claim: Claim, *, wait: float, check_mode: bool) -> dict[str, Any]:
    """Take the lock, or renew it where it is ours already.

    Args:
        folder: where the lock's file is; made if it is not there.
        claim: who wants it.
        wait: seconds to wait for another run.
        check_mode: only say what would be.

    Raises:
        HeldError: another live run holds it.
        LlmetalError: the lock cannot be written.
    """
    place = Path(folder)
    deadline = time.monotonic() + wait
    while True:
        if check_mode:
            decision, lock = _try(place, claim, write=False)
        else:
            try:
                place.mkdir(mode=0o755, parents=True, exist_ok=True)
                with _guard(place):
                    decision, lock = _try(place, claim, write=True)
            except OSError as error:
                raise LlmetalError(
                    what="the run lock cannot be written",
                    where=str(place / FILE),
                    why=error.strerror or str(error),
                    fix="see that the folder can be written and has room",
                ) from error
        if decision != "held" or lock is None:
            return {"decision": decision, "previous": lock.as_dict() if lock else None}
        if time.monotonic() >= deadline:
            raise HeldError(lock, place / FILE)
        time.sleep(min(2.0, max(0.1, deadline - time.monotonic())))


def release(folder: str, run_id: str, *, check_mode: bool) -> dict[str, Any]:
    """Give the lock back; one of another run is left alone."""
    place = Path(folder)
    lock = parse(read_text(place / FILE))
    if lock is None:
        return {"decision": "free", "previous": None}
    if lock.run_id != run_id:
        return {"decision": "not_ours", "previous": lock.as_dict()}
    if not check_mode:
        with contextlib.suppress(FileNotFoundError), _guard(place):
            (place / FILE).unlink()
    return {"decision": "released", "previous": lock.as_dict()}


def owner_of(params: Mapping[str, Any]) -> Owner:
    """From a module's parameter."""
    return Owner(
        controller=params["controller"],
        host=params["host"],
        user=params["user"],
        pid=params["pid"],
        started=params["started"],
    )
