# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key that signs kernel modules built on a host, and whether its firmware trusts it."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

EFIVARS = "/sys/firmware/efi/efivars"
_TIMEOUT = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VALID_DAYS = "36500"
_SUBJECT = "/CN=llmetal module signing key/"
ENROLLED, PENDING, MISSING = "enrolled", "pending", "missing"


@dataclass(frozen=True)
class State:
    """Whether there is a key, and where it stands with the firmware."""

    key: bool
    enrolment: str


def _mokutil(*arguments: str, stdin: str | None = None) -> CommandResult:
    program = shutil.which("mokutil", path=_PATH) or "mokutil"
    return run([program, *arguments], timeout=_TIMEOUT, stdin=stdin)


def require_firmware(efivars: str = EFIVARS) -> None:
    """See that the firmware can be asked.

    Raises:
        LlmetalError: the host did not boot by UEFI, or has no mokutil.
    """
    if not Path(efivars).is_dir():
        raise LlmetalError(
            what="the keys of Secure Boot cannot be read",
            where=efivars,
            why="the host did not boot by UEFI, or efivarfs is not mounted",
            fix="survey and plan the host anew; a host without Secure Boot needs no key",
        )
    if shutil.which("mokutil", path=_PATH) is None:
        raise LlmetalError(
            what="the host has no mokutil",
            why="Secure Boot is enabled, and nothing else can ask the firmware for its keys",
            fix="apt-get install mokutil on the host, then run again",
        )


def parse_test_key(result: CommandResult) -> str | None:
    """What `mokutil --test-key` said: enrolled, pending or missing; None where it is unclear.

    Its exit status means different things in different releases, so the words count.
    """
    text = f"{result.stdout}\n{result.stderr}".lower()
    if "already in the enrollment request" in text:
        return PENDING
    if "is already enrolled" in text or "is enrolled" in text or "already in db" in text:
        return ENROLLED
    return MISSING if "is not enrolled" in text else None


def look(key: str, certificate: str) -> State:
    """The state of a key.

    Raises:
        LlmetalError: mokutil says something that is not understood.
    """
    there = Path(key).is_file() and Path(certificate).is_file()
    if not there:
        return State(key=False, enrolment=MISSING)
    told = _mokutil("--test-key", certificate)
    enrolment = parse_test_key(told)
    if enrolment is None:
        raise LlmetalError(
            what="the firmware's keys cannot be read",
            where=certificate,
            why=told.tail(2) or f"mokutil ended with {told.rc} and said nothing",
            fix="run `mokutil --test-key` on the host as root and see what it says",
        )
    return State(key=True, enrolment=enrolment)


def make_key(key: str, certificate: str) -> None:
    """Make a key and its certificate, both whole or neither.

    Raises:
        LlmetalError: one of the two is there already, or openssl fails.
    """
    there = [path for path in (key, certificate) if Path(path).exists()]
    if there:
        raise LlmetalError(
            what="the key of Secure Boot is half there",
            where=", ".join(there),
            why=f"a key pair is {key} and {certificate}, and one of them lacks",
            fix="bring the other one back, or delete this one where nothing is signed with it",
        )
    for path in (key, certificate):
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".llmetal-", dir=Path(key).parent) as folder:
        made = [str(Path(folder) / name) for name in ("key", "certificate")]
        told = run(
            [
                *("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes"),
                *("-sha256", "-days", _VALID_DAYS, "-subj", _SUBJECT, "-outform", "DER"),
                *("-addext", "extendedKeyUsage=codeSigning"),
                *("-keyout", made[0], "-out", made[1]),
            ],
            timeout=_TIMEOUT,
        )
        if not told.ok:
            raise LlmetalError(
                what="no key for Secure Boot can be made",
                where=key,
                why=told.tail(2),
                fix="see that openssl is installed and the disk has room, then run again",
            )
        Path(made[0]).chmod(0o600)
        Path(made[1]).chmod(0o644)
        os.replace(made[1], certificate)  # noqa: PTH105 - the names are strings
        os.replace(made[0], key)  # noqa: PTH105 - likewise


def request(certificate: str, password: str) -> None:
    """Ask the firmware to enrol a certificate at the next boot.

    Raises:
        LlmetalError: there is no password, or mokutil refuses.
    """
    if not password:
        raise LlmetalError(
            what="the key of Secure Boot is not enrolled, and no password for its request is set",
            where=certificate,
            why="the firmware asks a person at the console for that password, once",
            fix="set llmetal_mok_password (from a vault; 8 to 16 plain letters and digits,"
            " for the console's keyboard may be another one), then run again",
        )
    told = _mokutil("--import", certificate, stdin=f"{password}\n{password}\n")
    if not told.ok:
        raise LlmetalError(
            what="the request to enrol the key of Secure Boot was refused",
            where=certificate,
            why=told.tail(2).replace(password, "********"),
            fix="run `mokutil --import` on the host and see what it says",
        )


def converge(
    key: str, certificate: str, password: str, *, check_mode: bool
) -> tuple[State, State, list[str]]:
    """Have a key, and its enrolment at least requested; before, after, and the steps.

    Raises:
        LlmetalError: that cannot be done.
    """
    require_firmware(EFIVARS)
    before = look(key, certificate)
    steps = [] if before.key else ["key"]
    steps += ["request"] if before.enrolment == MISSING else []
    if check_mode or not steps:
        after = State(key=True, enrolment=PENDING if steps else before.enrolment)
        return before, after, steps
    if not before.key:
        make_key(key, certificate)
    if look(key, certificate).enrolment == MISSING:
        request(certificate, password)
    return before, look(key, certificate), steps
