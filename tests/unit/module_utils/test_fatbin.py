# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fat binaries: objects of nvcc 13.0, 13.5 and NVRTC 12.9, beside what cuobjdump said of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import fatbin
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import cuda_arch_info

FIXTURES = Path(__file__).parents[2] / "fixtures" / "fatbin"
CASES = sorted(path.name for path in FIXTURES.iterdir())


def object_of(case: str) -> Path:
    """The object of a fixture."""
    return next((FIXTURES / case).glob("object.*"))


@pytest.mark.parametrize("case", CASES)
def test_read(case: str) -> None:
    """What is read is what was recorded, and but for families what cuobjdump says."""
    found = fatbin.read(object_of(case))
    assert found is not None
    assert found.as_dict() == json.loads((FIXTURES / case / "expected.json").read_text())
    told = (FIXTURES / case / "cuobjdump.txt").read_text()
    # cuobjdump names a family's machine code by its first member; the entry's flags know better.
    assert {name.rstrip("f") for name in found.cubin} == set(re.findall(r"sm_(\w+)\.cubin", told))
    assert set(found.ptx) == set(re.findall(r"sm_(\w+)\.ptx", told))


@pytest.mark.parametrize(
    ("text", "name"),
    [("8.9", "89"), ("9.0a", "90a"), ("sm_90a", "90a"), ("compute_120", "120"), ("10.0f", "100f")],
)
def test_architecture(text: str, name: str) -> None:
    """An architecture in every way in which people write it."""
    assert fatbin.architecture(text) == name


def test_no_architecture() -> None:
    """What is none is refused."""
    with pytest.raises(LlmetalError, match="Hopper is no GPU architecture"):
        fatbin.architecture("Hopper")


def test_other_files(tmp_path: Path) -> None:
    """What is no ELF file has no code, an empty file neither."""
    (tmp_path / "a.so").write_text("not a library")
    (tmp_path / "b.so").touch()
    assert fatbin.read(tmp_path / "a.so") is None
    assert fatbin.read(tmp_path / "b.so") is None


def test_damaged(tmp_path: Path) -> None:
    """A file that is cut off is said to be so."""
    cut = tmp_path / "cut.so"
    cut.write_bytes(object_of("nvcc130_all").read_bytes()[:20000])
    with pytest.raises(LlmetalError, match="cut off or damaged"):
        fatbin.read(cut)


def test_expectation() -> None:
    """The failure names the file and what it lacks; what is there is no failure."""
    path = str(object_of("nvcc130_relocatable"))
    done = cuda_arch_info.look({"paths": [path], "expect": ["8.0", "9.0a"]}, check_mode=False)
    assert done["lacking"] == []
    with pytest.raises(LlmetalError, match=r"object\.o has no code for sm_89, sm_90"):
        cuda_arch_info.look({"paths": [path], "expect": ["8.9", "9.0"]}, check_mode=False)


def test_folder(tmp_path: Path) -> None:
    """In a folder only files with device code count; a path that is not there is named."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/_C.so").write_bytes(object_of("nvcc130_all").read_bytes())
    (tmp_path / "plain.so").write_bytes(object_of("none").read_bytes())
    (tmp_path / "text.so").write_text("text")
    found = fatbin.survey([str(tmp_path)], ["8.0"])
    assert [row["path"] for row in found["files"]] == [str(tmp_path / "deep/_C.so")]
    with pytest.raises(LlmetalError, match="no such file"):
        fatbin.survey([str(tmp_path / "gone")], [])
