# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs of a host are as expected: looked at once, then judged by pure checks.

Fail-closed: what is asked and cannot be read is a failure.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    gpu,
    health_driver,
    health_gpu,
    health_links,
    kernel_log,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text
from ansible_collections.llmetal.inference.plugins.module_utils.finding import (
    Answer,
    Finding,
    Seen,
    Wanted,
)
from ansible_collections.llmetal.inference.plugins.module_utils.nvidia_smi import parse_query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult

CHECKS = (*health_driver.CHECKS, *health_gpu.CHECKS, *health_links.CHECKS)
_HIDDEN_BY = {
    "smi": {"present", "persistence", "nvlink", "fabric", "topology", "link_errors"},
}
"""Checks that only repeat a finding where that was made: nothing can be read without an answer."""


def asked(wanted: Wanted) -> list[str]:
    """The names of what is asked."""
    links = wanted.nvlink
    conditional = {
        "modules": bool(wanted.modules),
        "present": bool(wanted.gpus),
        "persistence": wanted.persistence,
        "xids": wanted.xids,
        "fabric": bool(links and links.fabric_state),
        "nvlink": bool(links and (links.gpus or links.required or links.fabric_state)),
        "topology": bool(links and links.topology),
        "link_errors": bool(links and wanted.baseline),
    }
    always = ["smi", "versions", "bus", "kernel_driver", "reboot"]
    of_each = ["readable", "ecc", "remap", "recovery", "slowdown"]
    return sorted([*always, *of_each, *(name for name, on in conditional.items() if on)])


def judge(seen: Seen, wanted: Wanted) -> dict[str, Any]:
    """What is not as expected.

    Args:
        seen: what was read on the host.
        wanted: what is expected of it.
    """
    found: list[Finding] = [one for check in CHECKS for one in check(seen, wanted)]
    failing = {finding.check for finding in found if finding.fails}
    hidden = {name for by, names in _HIDDEN_BY.items() if by in failing for name in names}
    if seen.smi is None:
        found = [one for one in found if one.check not in hidden]
    failures = [one.as_dict() for one in found if one.fails]
    return {
        "healthy": not failures,
        "failures": failures,
        "cautions": [one.as_dict() for one in found if not one.fails],
        "checks": asked(wanted),
        "counters": health_links.counters(seen),
    }


def _answer(told: CommandResult | None, why: str | None) -> Answer:
    if told is None:
        return Answer(why=why or "it was not asked")
    if not told.ok:
        return Answer(why=f"`{' '.join(told.argv)}` ended with {told.rc}: {told.tail()}"[:400])
    return Answer(told.stdout)


def _baseline(path: str | None) -> Answer:
    return Answer(read_text(path)) if path else Answer()


def see(wanted: Wanted, table: Mapping[str, Any], timeout: float) -> Seen:
    """Look at this host, at once at all that is asked.

    Args:
        wanted: what is expected, and so what is to be read.
        table: what the Xids mean, by number.
        timeout: seconds that one nvidia-smi may take.
    """
    smi = gpu.find_smi()
    calls: dict[str, list[str]] = {}
    if smi and wanted.nvlink:
        if wanted.nvlink.topology:
            calls["topology"] = [smi, "topo", "-m"]
        calls["errors"] = [smi, "nvlink", "-e"]
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(gpu.ask, argv, timeout) for name, argv in calls.items()}
        units = pool.submit(gpu.show_units)
        log = pool.submit(kernel_log.collect)
        evidence = gpu.gather(timeout=timeout)
        told = {name: _answer(*one.result()) for name, one in running.items()}
    return assemble(
        evidence,
        table=table,
        errors=told.get("errors", Answer()),
        topology=told.get("topology", Answer()),
        baseline=_baseline(wanted.baseline),
        units=units.result(),
        log=log.result(),
    )


def assemble(evidence: gpu.Evidence, *, table: Mapping[str, Any], **rest: Any) -> Seen:  # noqa: ANN401 - the other fields
    """What was seen, from the evidence and what was asked beside it."""
    query, smi = evidence.query, None
    why = evidence.smi_error or ("" if evidence.smi_path else "there is no nvidia-smi")
    if query is not None and query.ok:
        try:
            smi = parse_query(query.stdout)
        except LlmetalError as error:
            why = f"{error.what}: {error.why}"
    elif query is not None:
        why = f"it ended with {query.rc}: {query.tail()}"[:400]
    return Seen(
        info=gpu.report(evidence),
        smi=smi,
        why_no_smi=why,
        links=_answer(evidence.nvlink, evidence.nvlink_error),
        xids=table,
        **rest,
    )


def collect(
    expect: Mapping[str, Any],
    *,
    baseline: str | None,
    table: Mapping[str, Any] | None,
    timeout: float,
) -> dict[str, Any]:
    """Look at this host and say whether it is as expected.

    Args:
        expect: the parameter of gpu_health.
        baseline: the file with the counters of the links as they were at the last proof.
        table: what the Xids mean, by number.
        timeout: seconds that one nvidia-smi may take.
    """
    start = time.monotonic()
    wanted = Wanted.of(expect, baseline)
    seen = see(wanted, table or {}, timeout)
    return {**judge(seen, wanted), "seconds": round(time.monotonic() - start, 3)}
