# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a host from its variables, beside the lock that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import planning, site

if TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.plugin_utils.planning import Planned

HOST = "gateway-1"


def plan(bench: Any, folder: Path, **variables: Any) -> Planned:  # noqa: ANN401 - see conftest.py
    """The plan of a host that serves no model."""
    named = {"inventory_dir": str(folder), "group_names": ["gateway"], **variables}
    facts = bench.facts()
    return planning.plan_variables(HOST, named, facts, bench.candidates(), bench.compat)


def written(bench: Any, folder: Path) -> Path:  # noqa: ANN401 - see conftest.py
    """The lock of such a host, with another name of its system."""
    done = plan(bench, folder)
    assert done.plan.lock is not None
    assert done.path == folder / "locks" / f"{HOST}.yml"
    lock = {**done.plan.lock, "host": {**done.plan.lock["host"], "os_pretty": "Another One"}}
    assert lock_.write(done.path, lock_.dump(lock))
    return done.path


def test_no_lock(bench: Any, tmp_path: Path) -> None:  # noqa: ANN401 - see conftest.py
    """A plan without a lock before changes nothing, and can be installed."""
    done = plan(bench, tmp_path)
    assert done.installable
    assert done.plan.changes == ()
    assert done.as_dict()["status"] == "ok"
    assert done.as_dict()["kept"] is False


@pytest.mark.parametrize(
    ("mode", "kept", "changed"),
    [("use", True, 0), ("compare", True, 1), ("upgrade", False, 1), ("ignore", False, 1)],
)
def test_lock_before(
    mode: str,
    kept: bool,  # noqa: FBT001 - a column of the table
    changed: int,
    bench: Any,  # noqa: ANN401 - see conftest.py
    tmp_path: Path,
) -> None:
    """What is done about it, and what is said of the difference."""
    written(bench, tmp_path)
    done = plan(bench, tmp_path, llmetal_plan_lock=mode)
    assert done.plan.from_file is kept
    assert [change.path for change in done.plan.changes] == ["host.os_pretty"] * changed
    assert done.as_dict()["changes"] == [change.as_dict() for change in done.plan.changes]


@pytest.mark.parametrize("mode", ["use", "compare", "upgrade", "ignore"])
def test_unreadable_lock(mode: str, bench: Any, tmp_path: Path) -> None:  # noqa: ANN401 - see conftest.py
    """It is refused, unless it is going to be replaced."""
    path = written(bench, tmp_path)
    path.write_text("no lock\n", encoding="utf-8")
    variables = {"inventory_dir": str(tmp_path), "llmetal_plan_lock": mode}
    request = site.host_request(HOST, variables)
    done = plan(bench, tmp_path, llmetal_plan_lock=mode)
    if mode in {"use", "compare"}:
        assert [finding.rule for finding in done.plan.refusals] == ["input-unreadable"]
        assert str(path) in done.plan.refusals[0].fact
        with pytest.raises(LlmetalError):
            planning.existing_lock(request, variables)
    else:
        assert done.installable
        assert done.plan.changes == ()
        assert planning.existing_lock(request, variables) is None


def test_wrong_variable(bench: Any, tmp_path: Path) -> None:  # noqa: ANN401 - see conftest.py
    """A host whose variables are wrong is refused like any other."""
    done = plan(bench, tmp_path, llmetal_scope="root")
    (refusal,) = done.plan.refusals
    assert refusal.rule == "input-unreadable"
    assert "llmetal_scope" in refusal.fact
    assert done.path is None
    assert not done.installable
