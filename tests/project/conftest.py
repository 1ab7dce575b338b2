# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of the project share: where things lie, and how they are read.

A test that takes `module`, `role` or `playbook` runs once for each there is.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each module, role or playbook of the checkout."""
    each = {
        "module": sorted((ROOT / "plugins" / "modules").glob("*.py")),
        "role": sorted(p.parent.parent for p in (ROOT / "roles").glob("*/tasks/main.yml")),
        "playbook": [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))],
    }
    for name, paths in each.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, paths, ids=[path.stem for path in paths])


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """The files of the checkout that are, or are going to be, in its history."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in done.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def sources(tracked: list[Path]) -> list[Path]:
    """The Python files of the checkout, each under its real name."""
    return [path for path in tracked if path.suffix == ".py"]
