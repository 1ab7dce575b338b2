# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated toolkit: its relations, and that its compiler's programs say what they are for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import fatbin
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import deb, toolkit

if TYPE_CHECKING:
    from pathlib import Path


def by_name() -> dict[str, deb.Package]:
    """The packages."""
    return {package.name: package for package in toolkit.packages()}


def test_relations() -> None:
    """The toolkit's metapackage brings no driver, the other ones do; every part is there."""
    found = by_name()
    assert "nvidia" not in found["cuda-toolkit-13-0"].depends
    assert found["cuda"].depends == "cuda-13-0"
    assert "nvidia-open" in found["cuda-13-0"].depends
    for package in found.values():
        for name in filter(None, package.depends.split(", ")):
            assert name.partition(" ")[0] in {*found, "nvidia-open"}


def test_loader_and_alternatives() -> None:
    """As on a host with NVIDIA's packages of CUDA 13.0."""
    found = by_name()
    assert list(found["cuda-toolkit-config-common"].files) == ["etc/ld.so.conf.d/000_cuda.conf"]
    script = found["cuda-toolkit-13-0-config-common"].scripts["postinst"]
    for name in ("cuda", "cuda-13"):
        line = f"--install /usr/local/{name} {name} /usr/local/cuda-13.0 130"
        assert line in script


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_compiler(tmp_path: Path) -> None:
    """Its program has what was asked for, and without the library says which one it lacks."""
    file = by_name()["cuda-nvcc-13-0"].files["usr/local/cuda-13.0/bin/nvcc"]
    assert isinstance(file, deb.File)
    nvcc, program = tmp_path / "nvcc", tmp_path / "program"
    nvcc.write_bytes(file.data)
    asked = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90a,code=sm_90a"]
    subprocess.run([sys.executable, nvcc, "-o", program, *asked], check=True)
    found = fatbin.read(program)
    assert found is not None
    assert found.cubin == ("80", "90a")
    done = subprocess.run([program], check=False, capture_output=True, text=True)
    assert done.returncode in {77, 127}
    assert done.returncode == 77 or "libcudart.so.13" in done.stderr
