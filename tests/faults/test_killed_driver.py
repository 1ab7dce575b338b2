# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver role, killed on its way: the next run converges, one more changes nothing.

Within the transaction and where phases begin by default; at every task boundary, once with the run
killed and once with the power lost, with

    pytest tests/faults/test_killed_driver.py --every-task
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from fault_runs import FOLDER, ROOT, Lab, NotReachedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTS = ("fault-kill1", "fault-kill2", "fault-kill3", "fault-kill4")
"""Hosts that are killed side by side; one run then converges them all."""
TASKS = ROOT / "roles/nvidia_driver/tasks"
TRANSACTION = "Install headers, compiler and driver in one transaction"
_FILES = ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")


@dataclass(frozen=True)
class Kill:
    """Where a run is killed, and whether the host loses its power with it."""

    task: str
    power: bool
    after: float = 0.0
    """Seconds from the task's beginning."""

    def __str__(self) -> str:
        """For messages."""
        what = "power lost" if self.power else "run killed"
        return f"{what} {self.after} s into {self.task!r}"


def names_in(path: Path) -> Iterator[str]:
    """The names of a file's tasks, in the order in which a run comes to them."""
    yield from names_of(yaml.safe_load(path.read_text(encoding="utf-8")), path)


def names_of(tasks: list[dict[str, Any]], path: Path) -> Iterator[str]:
    """The names of tasks, with those of the blocks and files among them."""
    for task in tasks:
        if "block" in task:
            yield from names_of(task["block"], path)
            continue
        # An import is not a task of its own in a run, an include is.
        if _FILES[0] not in task:
            yield task["name"]
        for key in _FILES:
            if key in task:
                yield from names_in(path.parent / task[key])


def kills(*, every_task: bool) -> list[Kill]:
    """Where to kill."""
    if every_task:
        names = list(dict.fromkeys(names_in(TASKS / "main.yml")))
        return [Kill(name, power=power) for name in names for power in (False, True)]
    first = {phase: next(names_in(TASKS / f"{phase}.yml")) for phase in ("configure", "run")}
    return [
        Kill(TRANSACTION, power=True, after=2.0),
        Kill(first["configure"], power=False),
        Kill(first["run"], power=True),
        Kill(next(names_in(TASKS / "verify.yml")), power=False),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for as many kills as there are hosts."""
    if "batch" in metafunc.fixturenames:
        every = kills(every_task=metafunc.config.getoption("--every-task"))
        size = len(HOSTS)
        batches = [every[at : at + size] for at in range(0, len(every), size)]
        metafunc.parametrize("batch", batches, ids=[batch[0].task for batch in batches])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Hosts with eight H200 on four NVSwitches; each test makes them anew."""
    folder = tmp_path_factory.mktemp("fault-kill")
    made = Lab(",".join(HOSTS), FOLDER / "driver", folder, "tests/faults/driver.yml")
    try:
        yield made
    finally:
        made.sandbox("absent")


def kill(host: Lab, where: Kill) -> None:
    """Start a run and kill it; one that does not come to the task ends well."""
    try:
        host.kill_at(f"nvidia_driver : {where.task}]", after=where.after, power=where.power)
    except NotReachedError:
        return


def test_killed_on_its_way(lab: Lab, batch: list[Kill]) -> None:
    """Nothing half done stays, whoever of the two dies."""
    hosts = [replace(lab, host=name) for name in HOSTS[: len(batch)]]
    together = replace(lab, host=",".join(host.host for host in hosts))
    together.sandbox("reset")
    with ThreadPoolExecutor() as pool:
        list(pool.map(kill, hosts, batch))
    together.sandbox("started")
    for host in hosts:
        host.wait_for_ssh()
    whole = together.run()
    again = together.run()
    for host, where in zip(hosts, batch, strict=True):
        assert whole.counts(host.host)["failed"] == 0, f"{where}\n{whole.output}"
        assert len(host.ssh("nvidia-smi", "-L").splitlines()) == 8, where
        assert not host.ssh("dpkg", "--audit"), where
        counts = again.counts(host.host)
        changed = [line for line in again.output.splitlines() if line.startswith("changed: ")]
        assert (counts["changed"], counts["failed"]) == (0, 0), f"{where}\n{changed}"
    assert (whole.rc, again.rc) == (0, 0)
