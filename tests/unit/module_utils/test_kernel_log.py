# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Xids of this boot and of earlier ones, from the journal and from the ring buffer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import kernel_log, xids
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.plugin_utils import xids as data

JOURNAL = Path(__file__).parents[2] / "fixtures" / "journal" / "xids"
BOOT = "22222222-2222-2222-2222-222222222222"
XID = "[  100.0] NVRM: Xid (PCI:0000:1b:00): 48, pid=1\n"


def test_history() -> None:
    """Counted by GPU and number, with how many boots saw it; what is no entry is passed over."""
    text = (JOURNAL / "journal.txt").read_text()
    expected = json.loads((JOURNAL / "expected.json").read_text())
    assert kernel_log.parse_history(text, BOOT) == expected
    assert {row["this_boot"] for row in kernel_log.parse_history(text, None)} == {0}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"MESSAGE": null}', "-- No entries --"])
def test_no_history(text: str) -> None:
    """A journal without such a message has none."""
    assert kernel_log.parse_history(text, BOOT) == []


@pytest.mark.parametrize(
    ("ring", "journal", "alive", "expected"),
    [
        ("[    0.0] Linux\n" + XID, "", "", ("dmesg", True, 1)),
        (XID, "NVRM: Xid (PCI:0000:1b:00): 48, pid=1\n", "", ("journal", True, 1)),
        (XID, "", "", ("dmesg", False, 1)),
        ("[  100.0] usb\n", "", "usb\n", ("journal", True, 0)),
        ("[  100.0] usb\n", "", "", ("dmesg", False, 0)),
        ("", "", "", None),
    ],
)
def test_which_log_proves_something(
    ring: str,
    journal: str,
    alive: str,
    expected: tuple[str, bool, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ring buffer that lost its beginning gives way to a journal that can be read."""

    def answer(argv: list[str], *, timeout: float) -> CommandResult:
        assert timeout < 10
        text = ring if argv[0] == "dmesg" else journal if "-g" in argv else alive
        return CommandResult(tuple(argv), 0 if text else 1, text, "")

    monkeypatch.setattr(kernel_log, "run", answer)
    log = kernel_log.collect()
    assert (log and (log["source"], log["whole"], len(log["xids"]))) == expected
    history = kernel_log.history(BOOT)
    assert (history is None) is (expected is None)


def test_meaning() -> None:
    """Each row of a log is explained by the table; what the table lacks is unknown."""
    rows = [{"xid": 79, "count": 1}, {"xid": 31, "count": 1}, {"xid": 1000, "count": 1}]
    told = xids.explain(rows, data.table())
    assert [row["severity"] for row in told] == ["fatal", "warning", "unknown"]
    assert told[0]["says"] == "fell off the bus"
    assert xids.explain(rows, None)[0]["severity"] == "unknown"


def test_hardware() -> None:
    """Errors of programs are not among those that a plan names."""
    hardware = data.of_hardware()
    assert hardware[48] == "uncorrectable memory error"
    assert not {13, 31, 43, 45} & set(hardware)
    assert {63, 64, 74, 79, 94, 95, 119, 120, 140, 154} <= set(hardware)
