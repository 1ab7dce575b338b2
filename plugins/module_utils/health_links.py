# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs are joined as planned: fabric, NVLinks, paths, error counters of the links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import link_counters, nvlink
from ansible_collections.llmetal.inference.plugins.module_utils.finding import RESET, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.finding import (
        LinksOf,
        Seen,
        Wanted,
    )

_MANAGER = "nvidia-fabricmanager.service"
_SLOWER = 0.98
"""The part of its speed below which a link is slow: nvidia-smi rounds, and no more."""
_LINK_DOWN = (
    "drain the host and reset all its GPUs, then reboot; a link that stays down is hardware: the "
    "board, the baseboard or the bridge"
)
_BAD_HEALTH = {
    "summary": {"unhealthy"},
    "bandwidth": {"degraded"},
    "route_unhealthy": {"true", "yes"},
    "access_timeout_recovery": {"true", "yes"},
}
_GOOD_CONFIGURATION = {"none", "false", "no", "correct", "not supported"}


def _is_sliced(gpu: Mapping[str, Any]) -> bool:
    return bool((gpu["mig"] or {}).get("current"))


def fabric(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """Each GPU is registered with the fabric, and the fabric is well."""
    if not wanted.nvlink or not wanted.nvlink.fabric_state:
        return
    unit = (seen.units or {}).get(_MANAGER, {}).get("active") or "not there"
    for row in wanted.nvlink.gpus:
        gpu = seen.of(row.pci)
        state = gpu["fabric"]["state"] if gpu else None
        status = gpu["fabric"]["status"] if gpu else None
        if (state, status) != ("Completed", "Success"):
            yield Finding(
                "fabric",
                "the GPU is not registered with the NVSwitch fabric",
                f"state {state or 'not readable'}, status {status or 'not readable'}; "
                f"{_MANAGER} is {unit}",
                f"read `journalctl -u {_MANAGER}` and the fabric manager's log "
                "(/var/log/fabricmanager.log): it says what it waits for; then drain the host and "
                "restart it",
                "restart_service",
                row.pci,
            )
        bad = _unwell(gpu["fabric"].get("health") or {}) if gpu else []
        if bad:
            yield Finding(
                "fabric",
                "the fabric of the GPU is not well",
                ", ".join(bad),
                RESET,
                "drain_and_reset",
                row.pci,
            )


def _unwell(health: Mapping[str, str]) -> list[str]:
    bad = [
        f"{name.replace('_', ' ')}: {health[name]}"
        for name, words in _BAD_HEALTH.items()
        if health.get(name, "").lower() in words
    ]
    configuration = health.get("incorrect_configuration", "none")
    if configuration.lower() not in _GOOD_CONFIGURATION:
        bad.append(f"configuration: {configuration}")
    return bad


def links(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """Each GPU has its links, all active and at speed.

    Where they are not required, none and all inactive are healthy too: a GPU passed through to a
    virtual machine without them, cards without a bridge.
    """
    if not wanted.nvlink:
        return
    if not wanted.nvlink.gpus:
        if wanted.nvlink.required or wanted.nvlink.fabric_state or wanted.nvlink.topology:
            yield Finding(
                "nvlink",
                "nobody says which GPUs must have links",
                "links are expected, and the list of their GPUs is empty",
                "name the GPUs (expect.nvlink.gpus), or plan the host anew",
            )
        return
    text = seen.links.text
    if text is None or not nvlink.is_status(text):
        complaint = " ".join((text or "").split())[:200]
        yield Finding(
            "nvlink",
            "the links cannot be read",
            seen.links.why or complaint or "`nvidia-smi nvlink --status` gave no answer",
            "run `nvidia-smi nvlink --status` on the host and read what it says",
        )
        return
    for row in wanted.nvlink.gpus:
        gpu = seen.of(row.pci)
        if gpu is None:
            yield Finding(
                "nvlink",
                "the links of the GPU cannot be read",
                "nvidia-smi does not list the GPU",
                "see to the GPU first",
                gpu=row.pci,
            )
        elif _is_sliced(gpu):
            yield Finding(
                "nvlink",
                "the links of the GPU are not judged",
                "MIG is on, and that switches traffic between GPUs over NVLink off",
                "switch MIG off (nvidia-smi -mig 0, drained) where the GPUs shall work together",
                gpu=row.pci,
                fails=False,
            )
        else:
            yield from _links_of(gpu, row, required=wanted.nvlink.required)


def _links_of(gpu: Mapping[str, Any], row: LinksOf, *, required: bool) -> Iterator[Finding]:
    has: Sequence[Mapping[str, Any]] = gpu["nvlink"]
    down = [link["link"] for link in has if link["state"] != "active"]
    idle = gpu["nvlink_state"] in {"none", "inactive"}
    if idle and not required:
        return
    numbers = [link["link"] for link in has]
    if numbers != list(range(len(has))) or (not required and row.links and len(has) > row.links):
        yield Finding(
            "nvlink",
            "the list of the links is not whole",
            f"nvidia-smi lists the links {_numbers(numbers)}",
            "run `nvidia-smi nvlink --status` on the host and read what it says",
            gpu=row.pci,
        )
    if idle:
        yield Finding(
            "nvlink",
            "the GPU has no active link",
            f"{row.links or 'some'} are expected; nvidia-smi lists {len(has) or 'none'}",
            f"see to {_MANAGER} and the driver's option NvLinkDisable; else " + _LINK_DOWN,
            "drain_and_reset",
            row.pci,
        )
    elif down:
        yield Finding(
            "nvlink",
            f"link {_numbers(down)} is down" if len(down) == 1 else f"links {_numbers(down)} down",
            f"{len(has) - len(down)} of {row.links or len(has)} links are active",
            _LINK_DOWN,
            "drain_and_reset",
            row.pci,
        )
    if not idle and row.links and len(has) < row.links:
        yield Finding(
            "nvlink",
            f"the GPU has {len(has)} links, not {row.links}",
            f"nvidia-smi lists the links {_numbers(numbers)}",
            _LINK_DOWN,
            "drain_and_reset",
            row.pci,
            fails=required,
        )
    elif required and row.links and len(has) > row.links:
        yield Finding(
            "nvlink",
            f"the GPU has {len(has)} links, not {row.links}",
            f"nvidia-smi lists the links {_numbers(numbers)}",
            "the plan counts with another wiring: see whether the model of the GPU is right",
            gpu=row.pci,
        )
    yield from _slow(has, row)


def _slow(has: Sequence[Mapping[str, Any]], row: LinksOf) -> Iterator[Finding]:
    slow = [
        link
        for link in has
        if link["state"] == "active"
        and row.gbps
        and (link["gbps"] is None or link["gbps"] < row.gbps * _SLOWER)
    ]
    if slow:
        speeds = sorted({f"{link['gbps'] or '?'} GB/s" for link in slow})
        yield Finding(
            "nvlink",
            f"link {_numbers([link['link'] for link in slow])} is slow",
            f"{', '.join(speeds)}, not {row.gbps} GB/s",
            _LINK_DOWN,
            "drain_and_reset",
            row.pci,
        )


def _numbers(links: Sequence[int]) -> str:
    return ", ".join(map(str, links)) or "none"


def topology(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """Each two GPUs are joined by the expected class of path."""
    expected = wanted.nvlink.topology if wanted.nvlink else None
    if not wanted.nvlink or not expected:
        return
    found = [(row.pci, seen.of(row.pci)) for row in wanted.nvlink.gpus]
    known = [(pci, gpu) for pci, gpu in found if gpu and not _is_sliced(gpu)]
    if len(known) < 2:  # noqa: PLR2004 - a pair
        return
    pairs = nvlink.parse_topology(seen.topology.text or "")
    if not pairs:
        yield Finding(
            "topology",
            "the paths between the GPUs cannot be read",
            seen.topology.why or "`nvidia-smi topo -m` printed no matrix",
            "run `nvidia-smi topo -m` on the host and read what it says",
        )
        return
    idle = all(gpu["nvlink_state"] in {"none", "inactive"} for _, gpu in known)
    if idle and not wanted.nvlink.required:
        return
    for place, (pci, gpu) in enumerate(known):
        wrong = {
            other: pairs.get((gpu["index"], peer["index"])) or "not readable"
            for other, peer in known[:place] + known[place + 1 :]
        }
        bad = {other: path for other, path in wrong.items() if path != expected}
        if bad:
            yield Finding(
                "topology",
                f"not all paths of the GPU are {expected}",
                ", ".join(f"{path} to {other}" for other, path in bad.items()),
                "see to its links first; a path over PCIe means that NVLink between the two is off",
                "drain_and_reset",
                pci,
            )


def errors(seen: Seen, wanted: Wanted) -> Iterator[Finding]:
    """The error counters of the links have not grown beyond the baseline."""
    if not wanted.baseline or not wanted.nvlink:
        return
    now = counters(seen)
    if seen.errors.text is None or (not now["gpus"] and _have_links(seen)):
        yield _unclear(
            "the error counters of the links cannot be read",
            seen.errors.why or "`nvidia-smi nvlink -e` printed none",
            "run `nvidia-smi nvlink -e` on the host and read what it says",
        )
        return
    yield from _not_counted(seen, now)
    if seen.baseline.text is None:
        yield _unclear(
            "there is no baseline of the error counters",
            seen.baseline.why or f"{wanted.baseline} is not there",
            "run the nvlink role: it writes one after its proof",
            fails=False,
        )
        return
    before = link_counters.parse(seen.baseline.text)
    if before is None:
        yield _unclear(
            "the baseline of the error counters is damaged",
            f"{wanted.baseline} is not what the nvlink role writes",
            "run the nvlink role: it writes a new one",
        )
    elif not now["boot_id"]:
        yield _unclear(
            "the error counters of the links cannot be compared",
            "/proc/sys/kernel/random/boot_id cannot be read: of which boot they are is unknown",
            "see why /proc is not there",
        )
    elif before["boot_id"] != now["boot_id"]:
        yield _other("it is of another boot, and the counters start anew at each")
    elif set(before["gpus"]) != set(now["gpus"]):
        yield _other("it is of other GPUs")
    else:
        yield from _grown(seen, before["gpus"], now["gpus"])


def _have_links(seen: Seen) -> bool:
    return any(link["state"] == "active" for gpu in seen.answering for link in gpu["nvlink"])


def _not_counted(seen: Seen, now: Mapping[str, Any]) -> Iterator[Finding]:
    """Active links without a counter, beside others that have theirs."""
    names = {name for links in now["gpus"].values() for counts in links.values() for name in counts}
    for gpu in seen.answering:
        has = now["gpus"].get(gpu["uuid"], {})
        lacking = [
            link["link"]
            for link in gpu["nvlink"]
            if link["state"] == "active" and set(has.get(str(link["link"]), ())) != names
        ]
        if lacking:
            yield _unclear(
                "the error counters of a link cannot be read",
                f"`nvidia-smi nvlink -e` leaves out some of link {_numbers(lacking)}",
                "run `nvidia-smi nvlink -e` on the host and read what it says",
                gpu=gpu["pci_address"],
            )


def _unclear(
    what: str, why: str, fix: str, *, gpu: str | None = None, fails: bool = True
) -> Finding:
    return Finding("link_errors", what, why, fix, gpu=gpu, fails=fails)


def _other(why: str) -> Finding:
    return _unclear(
        "the error counters were not compared",
        why,
        "run the nvlink role: it writes a new baseline after its proof",
        fails=False,
    )


def _grown(seen: Seen, before: nvlink.Counters, now: nvlink.Counters) -> Iterator[Finding]:
    addresses = {gpu["uuid"]: gpu["pci_address"] for gpu in seen.answering}
    for row in nvlink.growth(before, now):
        fatal = nvlink.is_fatal(row.counter)
        yield Finding(
            "link_errors",
            f"link {row.link} has {'errors it did not recover' if fatal else 'errors'}",
            f"{row.counter.replace('_', ' ')}: {row.now}, {row.before} in the baseline",
            _LINK_DOWN if fatal else "watch it; errors that grow fast are a bad contact or link",
            "drain_and_reset" if fatal else "none",
            addresses.get(row.uuid),
            fails=fatal,
        )


def counters(seen: Seen) -> dict[str, Any]:
    """What a baseline holds; GPUs that are not there have no counters."""
    return {
        "boot_id": seen.info["boot_id"],
        "gpus": nvlink.parse_errors(seen.errors.text or ""),
    }


CHECKS = (fabric, links, topology, errors)
