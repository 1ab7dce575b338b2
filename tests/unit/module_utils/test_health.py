# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_health and gpu_info with programs that hang, break off or lie: never healthy, never long."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_state,
    gpu,
    health,
    kernel_log,
    pci,
)
from ansible_collections.llmetal.inference.plugins.module_utils.driver_state import DriverState
from ansible_collections.llmetal.inference.plugins.plugin_utils import xids

if TYPE_CHECKING:
    from collections.abc import Callable

    Look = Callable[..., dict[str, Any]]

RECORDED = Path(__file__).parents[2] / "fixtures/gpu_info/h200x2_nvswitch_vm"
QUERY = re.sub(
    r"<supported_clocks>.*?</supported_clocks>",
    "",
    (RECORDED / "query.txt").read_text(),
    flags=re.DOTALL,
)
LINKS = (RECORDED / "nvlink.txt").read_text()
ERRORS = (RECORDED.parents[1] / "nvlink_errors/h200x2_nvswitch_vm/errors.txt").read_text()
TOPOLOGY = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
BUS = ("0000:00:06.0", "0000:00:07.0")
ROWS = [{"pci": one, "links": 18, "gbps": 26.562} for one in BUS]
LINKED = {"required": True, "fabric_state": True, "topology": "NV18", "gpus": ROWS}
EXPECT: dict[str, Any] = {"version": "580.159.04", "gpus": list(BUS), "nvlink": LINKED}
FIRST = re.search(r"<gpu id.*?</gpu>", QUERY, re.DOTALL)
LIMIT = 4.0
"""Seconds that a look may take with a program that hangs for longer than the second it has."""


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Looks at two H200 whose nvidia-smi says what is given."""

    def of(
        query: str = QUERY,
        links: str = LINKS,
        errors: str = ERRORS,
        first: str = "",
        **more: Any,  # noqa: ANN401 - the arguments of collect
    ) -> dict[str, Any]:
        for name, text in {"q": query, "n": links, "e": errors, "t": TOPOLOGY}.items():
            (tmp_path / name).write_text(text)
        smi = tmp_path / "nvidia-smi"
        cases = '"-q -x") cat q;; "nvlink --status") cat n;; "nvlink -e") cat e;; *) cat t;;'
        smi.write_text(f'#!/bin/sh\n{first}\ncd {tmp_path}\ncase "$*" in {cases} esac\n')
        smi.chmod(0o755)
        return collect(smi, **more)

    def collect(smi: Path, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - expect
        monkeypatch.setattr(gpu, "find_smi", lambda: str(smi))
        start = time.monotonic()
        wanted = more.get("expect", EXPECT)
        kept = str(tmp_path / "baseline") if (tmp_path / "baseline").exists() else None
        found = health.collect(wanted, baseline=kept, table=xids.table(), timeout=1)
        assert time.monotonic() - start < LIMIT
        assert gpu.collect(timeout=1, table=xids.table())["gpus"]
        return found

    bus = [pci.PciDevice(one, "10de", "2335", "10de:18be", "030200", "nvidia") for one in BUS]
    state = DriverState("580.159.04", "open", "580.159.04", "580.159.04")
    monkeypatch.setattr(pci, "scan", lambda _folder: bus)
    monkeypatch.setattr(gpu, "_driver", lambda *_: state)
    monkeypatch.setattr(kernel_log, "collect", lambda: {"whole": True, "xids": []})
    return of


def keep(tmp_path: Path, text: str) -> None:
    """A baseline; `BOOT` stands for this boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "baseline").write_text(text.replace("BOOT", boot))


def test_a_sound_host(look: Look) -> None:
    """What the others are hurt from is healthy."""
    assert look()["failures"] == []


def every_number(by: str) -> str:
    """The query with one number in place of all."""
    return re.sub(r">\d+( \w+)?<", rf">{by}\1<", QUERY)


@pytest.mark.parametrize(
    "hurt",
    [
        {"first": "exec sleep 30"},
        {"first": "sleep 30 & exec sleep 30"},
        {"first": "head -c 3000000 /dev/urandom; exit 0"},
        {"first": "kill -SEGV $$"},
        {"query": ""},
        {"query": "<html><body>hello</body></html>"},
        {"query": "<a>" * 50_000 + "</a>" * 50_000},
        {"query": QUERY[: len(QUERY) // 2]},
        {"query": every_number("9" * 400)},
        {"query": every_number("-7")},
        {"links": LINKS.replace("26.562", "26,562")},
        {"links": LINKS.replace("26.562", "26.5.62")},
        {"links": LINKS.replace("26.562", ".")},
        {"links": LINKS.replace("26.562", "-26.562")},
        {"links": LINKS.replace("26.562 GB/s", "N/A")},
        {"links": LINKS[: len(LINKS) // 2 - 100]},
        {"links": LINKS + LINKS},
        {"links": ""},
    ],
    ids=lambda hurt: next(f"{name}: {text[-20:]!r}" for name, text in hurt.items()),
)
def test_never_healthy(hurt: dict[str, str], look: Look) -> None:
    """Whatever nvidia-smi does or says, it is a failure with a reason and a way out."""
    found = look(**hurt)
    assert not found["healthy"]
    assert all(row["what"] and row["why"] and row["fix"] for row in found["failures"])


def test_no_program(tmp_path: Path, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no program at all."""
    assert look()["healthy"]
    (tmp_path / "nvidia-smi").write_bytes(b"\0\1junk")
    found = health.collect(EXPECT, baseline=None, table=xids.table(), timeout=1)
    assert "cannot be run: Exec format error" in found["failures"][0]["why"]
    monkeypatch.setattr(gpu, "find_smi", lambda: None)
    assert not health.collect({}, baseline=None, table=xids.table(), timeout=1)["healthy"]


def test_a_gpu_that_is_described_twice(look: Look) -> None:
    """Which of the two is true, nobody knows."""
    assert FIRST
    twice = re.sub(r"<gpu id.*</gpu>", FIRST[0] * 2, QUERY, flags=re.DOTALL)
    (row,) = [row for row in look(query=twice)["failures"] if row["check"] == "smi"]
    assert row["what"] == "nvidia-smi describes a GPU twice"
    assert row["why"].startswith(f"{BUS[0]}, GPU-")


def test_a_gpu_of_which_nothing_is_known(look: Look) -> None:
    """N/A in every place is not the answer of a GPU that works, even where nothing is asked."""
    kept = ("attached_gpus", "driver_version")
    query = re.sub(
        r"<(\w+)>[^<\n]+</\1>",
        lambda match: match[0] if match[1] in kept else f"<{match[1]}>N/A</{match[1]}>",
        QUERY,
    )
    found = look(query=query, expect={})
    assert {row["why"] for row in found["failures"]} == {"left out: uuid, product_name"}


def test_links_of_another_gpu(look: Look) -> None:
    """A list that names one GPU's links twice does not stand for the other's."""
    uuids = re.findall(r"UUID: ([^)]+)", LINKS)
    links = LINKS.replace(uuids[1], "GPU-of-nobody")
    row = next(row for row in look(links=links)["failures"] if row["gpu"] == BUS[1])
    assert row["what"] == "the GPU has no active link"


def test_counters_that_are_no_numbers(tmp_path: Path, look: Look) -> None:
    """Too long to be one, and those that are left out."""
    keep(tmp_path, '{"boot_id": "BOOT", "gpus": {}}')
    found = look(errors=ERRORS.replace("Errors: 0", "Errors: " + "9" * 5000, 1))
    assert [row["check"] for row in found["failures"]] == ["link_errors"]
    assert [row["check"] for row in look(errors="")["failures"]] == ["link_errors"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[" * 100_000,
        '{"boot_id": "BOOT", "gpus": {"a": {"1": {"x": Infinity}}}}',
        "\udce9",
    ],
    ids=["empty", "number", "deep", "infinite", "no text"],
)
def test_a_damaged_baseline(text: str, tmp_path: Path, look: Look) -> None:
    """It is named, and does not pass for one without errors."""
    keep(tmp_path, text.encode("utf-8", "replace").decode())
    (row,) = look()["failures"]
    assert row["what"] == "the baseline of the error counters is damaged"


def test_odd_expectations(look: Look) -> None:
    """Capitals, wide domains, the same twice, and no numbers of links."""
    rows = [{"pci": f"0000{one.upper()}", "links": None, "gbps": None} for one in (*BUS, *BUS)]
    expect = {"gpus": [BUS[0], *BUS, BUS[1].upper()], "nvlink": {**LINKED, "gpus": rows}}
    assert look(expect=expect)["failures"] == []
    (row,) = look(expect={"nvlink": {**LINKED, "gpus": []}})["failures"]
    assert row["what"] == "nobody says which GPUs must have links"


def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Programs that are found before those of the system."""
    for name, script in scripts.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of megabytes are searched, not taken apart."""
    line = "[  100.123456] usb 1-1: new high-speed USB device number 5 using xhci_hcd, and more\n"
    text = "[    0.0] Linux\n" + line * 400_000 + "[  900.0] NVRM: Xid (PCI:0000:1b:00): 79\n"
    (tmp_path / "log").write_text(text)
    tools(tmp_path, monkeypatch, dmesg=f"cat {tmp_path}/log")
    start = time.monotonic()
    log = kernel_log.collect()
    assert time.monotonic() - start < LIMIT
    assert log
    assert [(row["pci_address"], row["xid"]) for row in log["xids"]] == [("0000:1b:00.0", 79)]


NEW = "echo '[  100.0] usb'"
DUMB = 'case "$*" in *-g*) echo "Compiled without pattern matching" >&2; exit 1;; esac; echo usb'
HANGS = 'case "$*" in *-g*) exec sleep 30;; esac; echo usb'


@pytest.mark.parametrize(
    ("journal", "whole"),
    [("exit 1", False), (DUMB, False), (HANGS, False), ("yes NVRM: Xid | head -20000", False)],
    ids=["empty", "cannot search", "hangs", "full"],
)
def test_a_journal_that_proves_nothing(
    journal: str,
    whole: bool,  # noqa: FBT001 - a column of the table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it was not searched to its end, its silence is not that of the kernel."""
    tools(tmp_path, monkeypatch, dmesg=NEW, journalctl=journal)
    monkeypatch.setattr(kernel_log, "_TIMEOUT", 1)
    log = kernel_log.collect()
    assert log
    assert log["whole"] is whole


def test_tools_that_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the system (modinfo, dpkg-query) that wait for a disk leave their answers out."""
    hang = "exec sleep 30"
    tools(tmp_path, monkeypatch, **{"modinfo": hang, "dpkg-query": hang})
    monkeypatch.setattr(gpu, "_TOOL_TIMEOUT", 0.2)
    monkeypatch.setattr(driver_state, "_MODINFO_TIMEOUT", 0.2)
    found = gpu.report(gpu.gather())
    assert found["driver"]["on_disk"] is None
    json.dumps(found)
