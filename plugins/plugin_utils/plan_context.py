# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all decisions about a host's engines look at, and small questions that several ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_driver import known_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Candidates
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"))


@dataclass(frozen=True)
class Context:
    """A host, what is asked of it, and what is known."""

    request: HostRequest
    facts: Facts
    candidates: Candidates
    compat: Compat
    findings: Findings
    paths: Mapping[str, str]
    user: str
    driver: str | None


def at_home(path: str, home: str) -> str:
    """A path with the user's home in place of a leading ~, and no slash at its end."""
    whole = home + path[1:] if path.startswith("~/") else path
    return whole.rstrip("/") or "/"


def replacement(host: Context, serves: Callable[[Mapping[str, Any]], bool]) -> str | None:
    """The key of a GPU that one could take instead of the host's, and that serves."""
    return nearest_gpu(host.facts, host.compat, serves)


def nearest_gpu(
    facts: Facts, compat: Compat, serves: Callable[[Mapping[str, Any]], bool]
) -> str | None:
    """The key of the GPU nearest in memory to the host's that serves, in a host of x86_64.

    One of a plain PCIe card or board, which needs neither switches nor a system of its own.
    """
    kinds = known_gpus(facts, compat)
    mine = max((_gigabytes(compat.gpus.get(gpu.key or "", {})) for gpu in kinds), default=0)
    fitting = [
        key
        for key, row in compat.gpus.items()
        if row["fabric_manager"] == "not_needed"
        and not row.get("host_arch")
        and row["memory_gb"] is not None
        and serves(row)
    ]
    larger = [key for key in fitting if _gigabytes(compat.gpus[key]) >= mine]
    return min(
        larger or fitting,
        key=lambda key: (
            abs(_gigabytes(compat.gpus[key]) - mine),
            "/" in str(compat.gpus[key]["model"]),  # one board, where there is a choice
            key,
        ),
        default=None,
    )


def _gigabytes(row: Mapping[str, Any]) -> int:
    size = row.get("memory_gb") or 0
    return min(size) if isinstance(size, list) else int(size)


def size(count: int) -> str:
    """Bytes as people read them."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
