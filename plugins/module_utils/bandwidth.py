# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast the links between GPUs are, by nvbandwidth or nccl-tests where a host has them."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult

FOLDERS = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/usr/local/cuda/bin:/opt/nvbandwidth"
    ":/opt/nccl-tests/build:/usr/local/nccl-tests/build"
)
_COPY = "device_to_device_memcpy_read_ce"
_PAIRS, _COLLECTIVE = "nvbandwidth", "all_reduce_perf"
_TITLE = re.compile(r"GPU\(row\).*GPU\(column\).*\(GB/s\)")
_ALL_REDUCE_COLUMNS = 8
"""The columns of the results: time, algbw, busbw and errors, out of place and in place."""
_MIN_GPUS = 2
_SHOWN = 5
_IN_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Numbers GPUs as nvidia-smi does."""


@dataclass(frozen=True)
class Measured:
    """What a program measured, and whether the links do what they should."""

    tool: str
    floor_gbps: float
    slowest_gbps: float
    failures: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return {**asdict(self), "failures": list(self.failures)}


@dataclass(frozen=True)
class Expected:
    """What the links of the host should do."""

    gpus: int
    links: int
    gbps: float
    topology: str | None
    fraction: float

    @property
    def pair_gbps(self) -> float | None:
        """The least between two GPUs; None where it is not known how many links join them."""
        between = self.links if self.gpus == _MIN_GPUS else 0
        if self.topology:
            between = int(self.topology.removeprefix("NV"))
        return between * self.gbps * self.fraction if between else None

    @property
    def collective_gbps(self) -> float | None:
        """The least bus bandwidth of an all-reduce over all GPUs; None where not all are joined."""
        return self.links * self.gbps * self.fraction if self.pair_gbps else None


@dataclass(frozen=True)
class Of:
    """What a measurement is of: with another one of these it says nothing any more."""

    boot_id: str | None
    driver: str | None
    gpus: tuple[str, ...]
    expected: Expected

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {**asdict(self), "gpus": list(self.gpus)}


def render(measured: Measured, of: Of) -> str:
    """A good result, as it is kept."""
    content = {"of": of.as_dict(), "measured": measured.as_dict()}
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def kept(text: str | None, of: Of) -> Measured | None:
    """A kept result; None where there is none, or it is of another boot, driver or host."""
    try:
        content = json.loads(text or "")
        row = content["measured"]
        found = Measured(str(row["tool"]), float(row["floor_gbps"]), float(row["slowest_gbps"]), ())
        is_good = row["failures"] == [] and content["of"] == of.as_dict()
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if is_good and of.boot_id and of.driver else None


def parse_pairs(text: str) -> dict[tuple[int, int], float]:
    """Read a matrix of nvbandwidth: GB/s by row and column."""
    found: dict[tuple[int, int], float] = {}
    columns: list[int] | None = None
    is_matrix = False
    for line in text.splitlines():
        if _TITLE.search(line):
            is_matrix, columns = True, None
            continue
        words = line.split()
        if not is_matrix:
            continue
        if columns is None:
            columns = [int(word) for word in words if word.isdigit()]
        elif len(words) == len(columns) + 1 and words[0].isdigit():
            for column, word in zip(columns, words[1:]):
                if (value := _number(word)) is not None:
                    found[int(words[0]), column] = value
        else:
            is_matrix = False
    return found


def parse_all_reduce(text: str) -> tuple[float | None, bool]:
    """Read what all_reduce_perf printed: the best bus bandwidth, and whether results were wrong."""
    best: float | None = None
    is_wrong = "FAILED" in text
    for line in text.splitlines():
        words = line.split()
        if len(words) <= _ALL_REDUCE_COLUMNS or not words[0].isdigit():
            continue
        results = [_number(word) for word in words[-_ALL_REDUCE_COLUMNS:]]
        for bus, errors in ((results[2], results[3]), (results[6], results[7])):
            if bus is not None:
                best = max(best or 0.0, bus)
            is_wrong = is_wrong or bool(errors)
    return best, is_wrong


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def judge_pairs(
    pairs: Mapping[tuple[int, int], float], floor: float, names: Sequence[str] = ()
) -> Measured:
    """Whether every pair of GPUs is as fast as it should be.

    Args:
        pairs: GB/s by row and column.
        floor: the least that is accepted.
        names: the PCI addresses of the GPUs, in order.
    """

    def name(index: int) -> str:
        return f"GPU {index}" + (f" ({names[index]})" if index < len(names) else "")

    slow = sorted(pair for pair, value in pairs.items() if value < floor)
    failures = [f"{name(a)} and {name(b)}: {pairs[a, b]:g} GB/s" for a, b in slow]
    return Measured(_PAIRS, round(floor, 1), min(pairs.values()), tuple(failures))


def judge_all_reduce(best: float, floor: float, *, is_wrong: bool) -> Measured:
    """Whether all GPUs together are as fast as they should be, and right."""
    failures = [f"all GPUs together: {best:g} GB/s"] if best < floor else []
    failures += ["the sums that the GPUs computed are wrong"] if is_wrong else []
    return Measured(_COLLECTIVE, round(floor, 1), best, tuple(failures))


def why_not(expected: Expected, gpus: Sequence[Mapping[str, Any]], path: str) -> str:
    """Why nothing is measured; empty where it can be.

    Args:
        expected: what the links should do.
        gpus: the GPUs as gpu_info reports them.
        path: where the programs are looked for.
    """
    idle = "" if not (busy := _busy(gpus)) else f"programs use the GPUs (process {busy})"
    reasons = {
        "there is one GPU": expected.gpus < _MIN_GPUS,
        "not all GPUs answer, and so what uses them is not known": len(gpus) < expected.gpus
        or any(gpu["source"] != "driver" for gpu in gpus),
        "how many links join two GPUs is not known": expected.pair_gbps is None,
        "not all links are active": any(_is_down(gpu) for gpu in gpus),
        "MIG is on, which has no links": any((g.get("mig") or {}).get("current") for g in gpus),
        idle: bool(idle),
        f"neither {_PAIRS} nor {_COLLECTIVE} (nccl-tests) is installed": not any(
            shutil.which(name, path=path) for name in (_PAIRS, _COLLECTIVE)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _busy(gpus: Sequence[Mapping[str, Any]]) -> str:
    """The processes on the GPUs, as a person reads them."""
    found = dict.fromkeys(str(one["pid"]) for gpu in gpus for one in gpu["processes"])
    return ", ".join(list(found)[:_SHOWN])


def _is_down(gpu: Mapping[str, Any]) -> bool:
    return not gpu["nvlink"] or any(link["state"] != "active" for link in gpu["nvlink"])


def measure(expected: Expected, names: Sequence[str], path: str, timeout: float) -> Measured:
    """Measure, with the better one of the programs that are there.

    Args:
        expected: what the links should do.
        names: the PCI addresses of the GPUs, in order.
        path: where the programs are looked for.
        timeout: seconds that the program may take.

    Raises:
        LlmetalError: it fails, does not end, or says nothing that could be read.
    """
    if program := shutil.which(_PAIRS, path=path):
        done = run([program, "-t", _COPY], timeout=timeout, env=_IN_ORDER)
        pairs = parse_pairs(done.stdout)
        if done.ok and pairs:
            return judge_pairs(pairs, expected.pair_gbps or 0.0, names)
        raise _unread(done, _PAIRS)
    program = shutil.which(_COLLECTIVE, path=path) or _COLLECTIVE
    size = ["-b", "1G", "-e", "1G", "-n", "20", "-g", str(expected.gpus)]
    done = run([program, *size], timeout=timeout, env=_IN_ORDER)
    best, is_wrong = parse_all_reduce(done.stdout)
    if best is None:
        raise _unread(done, _COLLECTIVE)
    return judge_all_reduce(best, expected.collective_gbps or 0.0, is_wrong=is_wrong)


def _unread(done: CommandResult, tool: str) -> LlmetalError:
    return LlmetalError(
        what=f"{tool} measured nothing",
        where=done.argv[0],
        why=done.tail(3) or f"it ended with status {done.rc}",
        fix=f"run `{' '.join(done.argv)}` on the host; CUDA error 802 means that the fabric is not "
        "ready",
    )


def search_path(more: str = "") -> str:
    """Where the programs are looked for."""
    return os.pathsep.join(filter(None, (more, FOLDERS)))
