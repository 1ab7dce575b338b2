# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan has to say against a host: refusals, and warnings where a rule only warns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat


@dataclass(frozen=True)
class Finding:
    """A rule that a host does not keep, why, and the way out."""

    host: str
    rule: str
    fact: str
    reason: str
    fix: str
    source: str
    relax: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The fix as changes of a question about planned hardware, where it is one."""

    def as_dict(self) -> dict[str, str]:
        """The finding as JSON has it."""
        return {
            "host": self.host,
            "rule": self.rule,
            "fact": self.fact,
            "reason": self.reason,
            "fix": self.fix,
            "source": self.source,
        }

    def as_text(self, mark: str) -> str:
        """The finding as people read it, over several lines."""
        return (
            f"{mark} {self.host}: {self.reason} [{self.rule}]\n"
            f"  found:      {self.fact}\n"
            f"  what to do: {self.fix}\n"
            f"  source:     {self.source}"
        )


@dataclass
class Findings:
    """Collects the findings of one host in the order in which they come up."""

    host: str
    compat: Compat
    refusals: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    def add(
        self,
        rule: str,
        *,
        fact: str,
        fix: str,
        reason: str = "",
        relax: Mapping[str, Any] | None = None,
    ) -> bool:
        """Add a finding under a rule; whether it refuses.

        Args:
            rule: its name in data/rules.
            fact: what was found.
            fix: the way out.
            reason: why that cannot work; by default the rule's own sentence.
            relax: the same way out, as changes of a question about planned hardware.
        """
        row = self.compat.rule(rule)
        finding = Finding(
            self.host, rule, fact, reason or row.says, fix, row.source, dict(relax or {})
        )
        (self.refusals if row.refuses else self.warnings).append(finding)
        return row.refuses
