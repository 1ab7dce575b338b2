# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key of the modules: where it stands with the firmware, and what is done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import secure_boot
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.secure_boot import (
    converge,
    make_key,
    parse_test_key,
    require_firmware,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PASSWORD = "only-once"  # noqa: S105 - of a test


class Firmware:
    """A firmware that has keys and requests, asked through mokutil."""

    def __init__(self) -> None:
        """Without any key."""
        self.state = "missing"
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], *, stdin: str | None = None, **_: object) -> CommandResult:
        """Stand in for mokutil and openssl."""
        program, *words = (argv[0].rpartition("/")[2], *argv[1:])
        self.calls.append((program, words[0]))
        if program == "openssl":
            for option in ("-keyout", "-out"):
                with open(words[words.index(option) + 1], "w", encoding="ascii") as stream:  # noqa: PTH123 - a name
                    stream.write(option)
        elif words[0] == "--import":
            assert stdin == f"{PASSWORD}\n{PASSWORD}\n"
            self.state = "pending"
        said = {
            "missing": "is not enrolled",
            "pending": "is already in the enrollment request",
            "enrolled": "is already enrolled",
        }[self.state]
        return CommandResult(tuple(argv), 1 if self.state == "enrolled" else 0, said, "")


@pytest.fixture
def firmware(monkeypatch: pytest.MonkeyPatch) -> Firmware:
    """A firmware in place of this machine's."""
    made = Firmware()
    monkeypatch.setattr(secure_boot, "run", made.run)
    monkeypatch.setattr(secure_boot, "require_firmware", lambda _path: None)
    return made


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("/x.der is not enrolled", "missing"),
        ("/x.der is already enrolled", "enrolled"),
        ("/x.der is already in the enrollment request", "pending"),
        ("EFI variables are not supported on this system", None),
    ],
)
def test_words(text: str, state: str | None) -> None:
    """The words count, not the status: it means different things in different releases."""
    for status in (0, 1):
        assert parse_test_key(CommandResult(("mokutil",), status, text, "")) == state


def test_key_and_request(firmware: Firmware, tmp_path: Path) -> None:
    """A key is made and its enrolment requested, once; then it waits; then it is there."""
    key, certificate = str(tmp_path / "mok/mok.key"), str(tmp_path / "mok/mok.pub")
    _, predicted, steps = converge(key, certificate, "", check_mode=True)
    assert (predicted.enrolment, steps) == ("pending", ["key", "request"])
    assert firmware.calls == []
    before, after, steps = converge(key, certificate, PASSWORD, check_mode=False)
    assert (before.key, after.enrolment, steps) == (False, "pending", ["key", "request"])
    assert (tmp_path / "mok/mok.key").stat().st_mode & 0o777 == 0o600
    assert converge(key, certificate, "", check_mode=False)[2] == []
    firmware.state = "enrolled"
    assert converge(key, certificate, "", check_mode=False)[1].enrolment == "enrolled"


@pytest.mark.usefixtures("firmware")
def test_no_password(tmp_path: Path) -> None:
    """Without a password the request is not made, and the message names the option."""
    with pytest.raises(LlmetalError, match="set llmetal_mok_password"):
        converge(str(tmp_path / "key"), str(tmp_path / "pub"), "", check_mode=False)


def test_half_a_pair(tmp_path: Path) -> None:
    """A key without its certificate is never overwritten: modules may be signed with it."""
    (tmp_path / "key").write_text("secret")
    with pytest.raises(LlmetalError, match="half there"):
        make_key(str(tmp_path / "key"), str(tmp_path / "pub"))


def test_no_firmware(tmp_path: Path) -> None:
    """A host that did not boot by UEFI is told so."""
    with pytest.raises(LlmetalError, match="did not boot by UEFI"):
        require_firmware(str(tmp_path / "efivars"))
