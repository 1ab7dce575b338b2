# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one error that deep code raises; only a front end turns it into a failure."""

from __future__ import annotations


class LlmetalError(Exception):
    """Something that cannot go on, said so that a person can act on it.

    Args:
        what: what failed, as a short clause ("the package index cannot be read").
        where: the host, file, package or address it concerns.
        why: the cause as seen, with the tool's own words where there are any.
        fix: what to do about it.
    """

    def __init__(self, *, what: str, where: str = "", why: str = "", fix: str = "") -> None:
        """Keep the four parts apart, so that a front end may print them its own way."""
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        """One line: what, where, why, and what to do."""
        text = self.what
        if self.where:
            text += f" ({self.where})"
        if self.why:
            text += f": {self.why}"
        if self.fix:
            text += f". What to do: {self.fix}"
        return text

    def as_result(self) -> dict[str, str]:
        """The parts as keyword arguments for `fail_json`."""
        return {
            "msg": str(self),
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
        }
