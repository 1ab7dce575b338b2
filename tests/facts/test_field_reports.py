# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The field reports of the data are those of the collection they were taken from.

LLMETAL_FACTS names the folder of that collection; without it there is nothing to compare.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_data

FOLDER = os.environ.get("LLMETAL_FACTS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="LLMETAL_FACTS is not set")


def collected() -> dict[str, dict[str, Any]]:
    """The reports that name a check, by their id."""
    lines = (Path(FOLDER or "") / "field_reports.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return {row["id"]: row for row in rows if row.get("preflight_check")}


def test_no_report_is_left_out() -> None:
    """Every report with a check is a rule or says why it is none, and none is made up."""
    assert set(load_data("field_reports.yml")["reports"]) == set(collected())


def test_reports_say_the_same() -> None:
    """Kind and address of a report are those of the collection."""
    ours = load_data("field_reports.yml")["reports"]
    for name, row in collected().items():
        assert (ours[name]["kind"], ours[name]["where"]) == (row["kind"], row["source"])


def test_what_only_a_risk_can_be_said_about_warns() -> None:
    """Such a report is no refusal of its own rule."""
    rules = load_data("rules/host.yml")
    ours = load_data("field_reports.yml")["reports"]
    for name, row in collected().items():
        rule = rules.get(ours[name].get("rule"))
        if rule and row["catch"] == "before (risk only, not certain)":
            assert rule["severity"] == "warn", name
