# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain values, hashes and findings: the small things that others build on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from ansible_collections.llmetal.inference.plugins.plugin_utils.canonical import (
    canonical,
    sha256_of,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat


class Text(str):
    """A text that is more than a text, as Ansible's are."""

    __slots__ = ()


class Number(int):
    """A number that is more than one."""


def test_plain() -> None:
    """What is left is what YAML and JSON know."""
    value = plain({Text("a"): [Text("b"), (Number(3), True, None, 1.5)], "c": {"d"}})
    assert value == {"a": ["b", [3, True, None, 1.5]], "c": "{'d'}"}
    assert type(next(iter(value))) is str
    assert type(value["a"][1][0]) is int
    assert yaml.safe_dump(value)


def test_canonical() -> None:
    """The order of keys does not matter; that of lists does."""
    assert canonical({"b": 1, "a": [1, "ü"]}) == '{"a":[1,"ü"],"b":1}'
    assert sha256_of({"a": 1, "b": 2}) == sha256_of({"b": 2, "a": 1})
    assert sha256_of([1, 2]) != sha256_of([2, 1])


def test_findings(compat: Compat) -> None:
    """A rule refuses or warns; either way it says what to do and where that was read."""
    findings = Findings("gpu-1", compat)
    assert findings.add("gpu-missing", fact="no GPU", fix="use another host")
    assert not findings.add("gpu-min-driver-unverified", fact="535", fix="take 580")
    (refusal,), (warning,) = findings.refusals, findings.warnings
    assert warning.rule == "gpu-min-driver-unverified"
    text = refusal.as_text("x")
    assert text.splitlines() == [
        "x gpu-1: a device gpu needs a GPU on the host [gpu-missing]",
        "  found:      no GPU",
        "  what to do: use another host",
        f"  source:     {refusal.source}",
    ]
