# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to ask a host's package sources, and the answers of before, kept for a while."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.files import write_atomic
from ansible_collections.llmetal.inference.plugins.plugin_utils import plan_toolkit
from ansible_collections.llmetal.inference.plugins.plugin_utils.canonical import sha256_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Question
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest


def source_of(request: HostRequest, name: str) -> dict[str, Any] | None:
    """The package source that the host does not have yet; None where its own are meant."""
    mirror = request.driver.mirror
    if mirror is None:
        return None
    return {
        "name": name,
        "uri": mirror.uri,
        "suite": mirror.suite,
        "components": list(mirror.components),
        "key": mirror.key,
        "fingerprint": mirror.fingerprint,
    }


def _archive_of(question: Question) -> dict[str, Any] | None:
    """The distribution's archive with the components that the driver needs; None for no need."""
    if not question.components:
        return None
    return {"name": question.source, "components": list(question.components)}


def sources_of(request: HostRequest, question: Question) -> list[dict[str, Any]]:
    """All package sources of a question that the host does not have yet."""
    mine = source_of(request, question.source) or _archive_of(question)
    other = request.cuda.repository if question.toolkits else None
    more = other and replace(request, driver=replace(request.driver, mirror=other))
    second = source_of(more, plan_toolkit.REPOSITORY) if more else None
    return [one for one in (mine, second) if one is not None]


def key_of(
    question: Question, sources: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> str:
    """The hash of a question to package sources: equal for hosts that must get equal answers."""
    system = facts.get("os") or {}
    return sha256_of(
        {
            "packages": question.packages,
            "source": list(sources),
            "os": system.get("key"),
            "arch": facts.get("arch"),
            "sources": (facts.get("apt") or {}).get("sources"),
        }
    )


@dataclass(frozen=True)
class Cache:
    """Answers kept on the controller: one file each, replaced whole."""

    folder: Path
    ttl: int

    def get(self, key: str) -> dict[str, Any] | None:
        """An answer that is not too old; None where there is none."""
        try:
            kept = json.loads((self.folder / f"{key}.json").read_bytes())
            age = time.time() - float(kept["at"])
            answer = kept["answer"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        fresh = 0 <= age < self.ttl and isinstance(answer, dict)
        return answer if fresh else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer; a cache that cannot be written is none, and no failure."""
        if not self.ttl:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = {"at": time.time(), "answer": answer}
            write_atomic(self.folder / f"{key}.json", json.dumps(kept))
