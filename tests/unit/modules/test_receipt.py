# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""receipt: what is really there, and the wishes that it was made of."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import dpkg, receipts, units
from ansible_collections.llmetal.inference.plugins.modules import receipt

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DEFAULTS: dict[str, Any] = {
    "role": "base",
    "slice": {"b": 1, "a": [1, 2]},
    "inputs": {},
    "files": [],
    "packages": [],
    "units": [],
    "links": [],
    "scope": "system",
}


def write(tmp_path: Path, *, check_mode: bool = False, **change: Any) -> dict[str, Any]:  # noqa: ANN401 - any parameter
    """Have a receipt written."""
    path = str(tmp_path / "etc/receipts/base.json")
    return receipt.converge({**DEFAULTS, "path": path, **change}, check_mode=check_mode)


def test_reality(tmp_path: Path) -> None:
    """Hashes and targets are those of the host; what is not there is null."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    link.symlink_to("file")
    found = write(tmp_path, files=[str(file), "/nonexistent"], links=[str(link), str(file)])[
        "receipt"
    ]
    assert found["files"] == {
        "/nonexistent": None,
        str(file): hashlib.sha256(b"x").hexdigest(),
    }
    assert found["links"] == {str(link): "file", str(file): None}


def test_second_run(tmp_path: Path) -> None:
    """The same state makes the same file, whatever the order of the wishes."""
    assert write(tmp_path)["changed"]
    assert not write(tmp_path)["changed"]
    assert not write(tmp_path, slice={"a": [1, 2], "b": 1})["changed"]
    assert write(tmp_path, slice={"a": [2, 1], "b": 1})["changed"]


def test_check_mode(tmp_path: Path) -> None:
    """It predicts and writes nothing."""
    assert write(tmp_path, check_mode=True)["changed"]
    assert not (tmp_path / "etc").exists()


def test_read_all(tmp_path: Path) -> None:
    """The survey reads them by role, and says of a broken one that it is."""
    write(tmp_path)
    folder = tmp_path / "etc/receipts"
    (folder / "model.json").write_text("{")
    (folder / "vllm.json").write_text('{"schema": 99}')
    found = receipts.read_all(tmp_path / "etc")
    assert found["base"]["slice_sha256"] == receipts.digest(DEFAULTS["slice"])
    assert "not JSON" in found["model"]["unreadable"]
    assert "schema 1" in found["vllm"]["unreadable"]
    assert receipts.read_all(tmp_path / "nowhere") == {}
    assert "unreadable" in receipts.read(tmp_path / "none.json")


def test_packages_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions and states are asked of dpkg and systemd."""
    lines = ["gcc\tamd64\t4:12\tinstall\tinstalled"]
    monkeypatch.setattr(dpkg, "query", lambda _names: dpkg.parse(lines))
    state = {"a.service": {"active": "active", "enabled": "enabled"}}
    monkeypatch.setattr(units, "show", lambda _names, scope: state if scope else {})
    found = write(tmp_path, packages=["gcc", "none"], units=["a.service"])["receipt"]
    assert found["packages"] == {"gcc": "4:12", "none": None}
    assert found["units"] == state
