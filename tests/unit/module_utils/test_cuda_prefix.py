# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Toolkits under one prefix, from folders as wheels have them and from a stand-in of a runfile."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    cuda_prefix,
    cuda_proof,
    fatbin,
)
from ansible_collections.llmetal.inference.plugins.module_utils.cuda_info import (
    compat_in,
    parse_packages,
    parse_targets,
    wheels_in,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.modules import cuda_info
from ansible_collections.llmetal.inference.plugins.modules import cuda_prefix as module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NVCC = '#!/bin/sh\necho "Cuda compilation tools, release {line}, V{line}.88"\n'
INSTALLER = """#!/bin/sh
for word; do case $word in --toolkitpath=*) target=${word#*=} ;; --driver) exit 9 ;; esac; done
mkdir -p "$target/bin" && cd "$target/bin" || exit 1
printf '#!/bin/sh\\necho "release 12.4, V12.4.131"\\n' > nvcc
cp nvcc ptxas && chmod 0755 nvcc ptxas
"""
NAME = "cuda_12.4.1_550.54.15_linux.run"


@pytest.fixture(autouse=True)
def as_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installer runs as the user of the tests, whose folders nobody else may enter."""
    monkeypatch.setattr(cuda_prefix, "UNPRIVILEGED", ())


def program(path: Path, line: str) -> None:
    """A compiler that says its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(NVCC.format(line=line))
    path.chmod(0o755)


def wheels(home: Path, line: str) -> Path:
    """An environment with wheels as CUDA 12 has them (a folder each) or CUDA 13 (one for all)."""
    packages = home / "lib/python3.11/site-packages/nvidia"
    new = line.startswith("13")
    compiler = packages / ("cu13" if new else "cuda_nvcc")
    runtime = packages / ("cu13" if new else "cuda_runtime")
    for name in ("nvcc", "ptxas") if new else ("ptxas",):
        program(compiler / "bin" / name, line)
    (runtime / "include/crt").mkdir(parents=True)
    (runtime / "include/cuda_runtime.h").write_text("// header")
    (runtime / "include/__init__.py").touch()
    (runtime / "lib").mkdir()
    (runtime / f"lib/libcudart.so.{line[:2]}").write_text("library")
    return home


@pytest.mark.parametrize("line", ["12.9", "13.0"])
def test_one_prefix(tmp_path: Path, line: str) -> None:
    """Both layouts become the same prefix, with the names that linkers ask for."""
    home = wheels(tmp_path / "e", line)
    cuda_prefix.assemble(home, f"{line}.2")
    cuda_prefix.assemble(home, f"{line}.2")
    prefix = home / "cuda"
    assert (prefix / "lib64/libcudart.so").read_text() == "library"
    assert (prefix / "targets/x86_64-linux/lib/libcudart.so").read_text() == "library"
    assert (prefix / "include/cuda_runtime.h").is_file()
    assert not (prefix / "include/__init__.py").exists()
    assert (prefix / "bin/nvcc").exists() is line.startswith("13")
    assert cuda_prefix.version_in(prefix) == f"{line}.2"
    assert cuda_prefix.is_whole(prefix)
    assert not list(home.glob(".cuda-building"))


def test_no_toolkit(tmp_path: Path) -> None:
    """Wheels without a compiler are none; neither is one of another release; the old one stays."""
    (tmp_path / "e/lib/python3.11/site-packages/nvidia/cublas/lib").mkdir(parents=True)
    with pytest.raises(LlmetalError, match="the wheels bring no toolkit"):
        cuda_prefix.assemble(tmp_path / "e", "13.0.3")
    home = wheels(tmp_path / "f", "13.0")
    cuda_prefix.assemble(home, "13.0.3")
    with pytest.raises(LlmetalError, match=r"nvcc of the new toolkit is not of CUDA 13\.5"):
        cuda_prefix.assemble(home, "13.5.0")
    assert cuda_prefix.version_in(home / "cuda") == "13.0.3"


def wanted(tmp_path: Path, source: str, **runfile: Any) -> dict[str, Any]:  # noqa: ANN401 - any value
    """The module's parameters for a runfile."""
    rest = {"md5": None, "size": None}
    return {
        "name": "cuda-12.4",
        "root": str(tmp_path / "toolkits"),
        "release": "12.4.1",
        "state": "present",
        "link": str(tmp_path / "cuda-12.4"),
        "provider": "runfile",
        "runfile": {
            "source": source,
            "sha256": hashlib.sha256(INSTALLER.encode()).hexdigest(),
            **rest,
            **runfile,
        },
        "install_timeout": 60,
    }


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A server with the stand-in of an installer."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / NAME).write_text(INSTALLER)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as its parent
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_runfile(tmp_path: Path, mirror: str) -> None:
    """Predicted, installed from an address, left alone, removed."""
    asked = wanted(tmp_path, f"{mirror}/{NAME}", size=len(INSTALLER))
    assert module.converge(asked, check_mode=True)["changed"] is True
    assert not (tmp_path / "toolkits").exists()
    done = module.converge(asked, check_mode=False)
    assert (tmp_path / "cuda-12.4/bin/nvcc").exists()
    assert done["before"]["whole"] is False
    assert module.converge(asked, check_mode=False)["changed"] is False
    assert not list((tmp_path / "toolkits/cuda-12.4").glob(".download*"))
    gone = {**asked, "state": "absent"}
    assert module.converge(gone, check_mode=False)["changed"] is True
    assert not (tmp_path / "cuda-12.4").is_symlink()
    assert module.converge(gone, check_mode=False)["changed"] is False


def test_runfile_failures(tmp_path: Path, mirror: str) -> None:
    """Another sum, a part of it, none at all, and an installer that fails; the old one stays."""
    address = f"{mirror}/{NAME}"
    module.converge(wanted(tmp_path, address), check_mode=False)
    with pytest.raises(LlmetalError, match="sha256 is not the published one"):
        module.converge(wanted(tmp_path, address, sha256="0" * 64), check_mode=False)
    with pytest.raises(LlmetalError, match=r"is cut off .*has \d+ bytes of 5000000"):
        module.converge(wanted(tmp_path, address, sha256="1" * 64, size=5000000), check_mode=False)
    with pytest.raises(LlmetalError, match=r"cannot be had .*File not found"):
        module.converge(wanted(tmp_path, f"{address}.x", sha256="2" * 64), check_mode=False)
    with pytest.raises(LlmetalError, match="the runfile is not there"):
        module.converge(wanted(tmp_path, "/gone.run", sha256="3" * 64), check_mode=False)
    bad = tmp_path / "bad.run"
    bad.write_text("echo no room; exit 1\n")
    digest = hashlib.sha256(bad.read_bytes()).hexdigest()
    with pytest.raises(LlmetalError, match=r"installer failed .*no room"):
        module.converge(wanted(tmp_path, str(bad), sha256=digest), check_mode=False)
    assert (tmp_path / "cuda-12.4/bin/nvcc").exists()


def test_taken_path(tmp_path: Path) -> None:
    """A folder of another installation, or a link to elsewhere, is named and stays."""
    (tmp_path / "cuda-12.4").mkdir()
    with pytest.raises(LlmetalError, match="a folder of another installation"):
        module.converge(wanted(tmp_path, "/x.run"), check_mode=True)
    (tmp_path / "cuda-12.4").rmdir()
    (tmp_path / "cuda-12.4").symlink_to("/usr")
    with pytest.raises(LlmetalError, match="a link to /usr"):
        module.converge(wanted(tmp_path, "/x.run"), check_mode=True)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("error -- unsupported GNU version! gcc versions later than 13", "an older g"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", "knows this GPU"),
        ("sh: 1: g++: not found", "the package g"),
    ],
)
def test_what_the_compiler_says(tmp_path: Path, words: str, fix: str) -> None:
    """The compiler's words become what to do."""
    program(tmp_path / "bin/ptxas", "13.0")
    (tmp_path / "version.json").write_text('{"cuda": {"version": "13.0.3"}}')
    nvcc = tmp_path / "bin/nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "{words}" >&2\nexit 1\n')
    nvcc.chmod(0o755)
    with pytest.raises(LlmetalError, match="nvcc cannot compile a kernel") as caught:
        cuda_proof.prove(
            tmp_path, ["sm_80"], soname="libcudart.so.13", through_cache=False, release="13.0.3"
        )
    assert fix in caught.value.fix


def test_proof_of_none(tmp_path: Path) -> None:
    """No toolkit, or another one, proves nothing."""
    with pytest.raises(LlmetalError, match=r"there is no toolkit of CUDA 13\.0"):
        cuda_proof.prove(
            tmp_path, ["8.0"], soname="libcudart.so.13", through_cache=False, release="13.0.3"
        )


def test_info(tmp_path: Path) -> None:
    """What ptxas and dpkg-query print, wheels in environments, and the host as it is."""
    help_text = "Allowed values: 'sm_80', 'sm_90','sm_90a','sm_100f'. For .target sm_70 or higher."
    assert parse_targets(help_text) == ["sm_80", "sm_90", "sm_90a", "sm_100f"]
    lines = "cuda-toolkit-13-0 13.0.3-1 installed\nlibcudart12 12.4 config-files\nx\n"
    assert parse_packages(lines) == [{"name": "cuda-toolkit-13-0", "version": "13.0.3-1"}]
    packages = tmp_path / "vllm/3f1a/lib/python3.11/site-packages"
    (packages / "nvidia_cuda_runtime-13.0.96.dist-info").mkdir(parents=True)
    (tmp_path / "vllm/current").symlink_to("3f1a")
    assert wheels_in(tmp_path) == [
        {
            "environment": str(tmp_path / "vllm/3f1a"),
            "name": "nvidia_cuda_runtime",
            "version": "13.0.96",
        }
    ]
    seen = cuda_info.look({"environments": [str(tmp_path)]}, check_mode=True)
    assert seen["changed"] is False
    assert len(seen["wheels"]) == 1


def test_compat_once(tmp_path: Path) -> None:
    """Links of the alternatives lead to one toolkit: its library is one."""
    local = tmp_path / "usr/local"
    (local / "cuda-13.0/compat").mkdir(parents=True)
    (local / "cuda-13.0/compat/libcuda.so.1").touch()
    for name in ("cuda", "cuda-13"):
        (local / name).symlink_to("cuda-13.0")
    assert compat_in(tmp_path) == ["/usr/local/cuda-13.0/compat/libcuda.so.1"]


STAND_IN = """#!/bin/sh
# Stands in for nvcc: what it "builds" is a recorded object of nvcc 13.0, started by a script.
echo built >> {count}
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
printf '%s\\n' '#!/bin/sh' 'cat {told}' 'exit $(cat {status})' > "$out"
chmod +x "$out"
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit whose nvcc is a script; the architectures of its programs are what is asked for."""
    prefix = tmp_path / "cuda"
    program(prefix / "bin/ptxas", "13.0")
    (prefix / "version.json").write_text('{"cuda": {"version": "13.0.3"}}')
    text = STAND_IN.format(**{one: tmp_path / one for one in ("count", "told", "status")})
    (prefix / "bin/nvcc").write_text(text)
    (prefix / "bin/nvcc").chmod(0o755)
    (tmp_path / "told").write_text("runtime 13000\ndevice 0 sum 16777216\ndevice 1 sum 16777216\n")
    (tmp_path / "status").write_text("0")
    code = fatbin.Code(cubin=("80", "90"))
    monkeypatch.setattr(fatbin, "read", lambda _path: code)
    return prefix


def proved(prefix: Path, record: Path | None, *wanted: str) -> cuda_proof.Proof:
    """A proof."""
    names = wanted or ("sm_80", "9.0")
    return cuda_proof.prove(
        prefix, names, soname="libcudart.so.13", through_cache=True, release="13.0.3", record=record
    )


def test_proof(stand_in: Path, tmp_path: Path) -> None:
    """Compiled once; the program is started each time, and built anew where anything changed."""
    record, builds = tmp_path / "record", tmp_path / "count"
    first, second = proved(stand_in, record), proved(stand_in, record)
    assert (first.ran_on, first.architectures, first.compiled) == (2, ("80", "90"), True)
    assert (second.ran_on, second.compiled) == (2, False)
    assert builds.read_text().count("built") == 1
    assert proved(stand_in, record, "sm_80").compiled is True
    assert proved(stand_in, record, "sm_80").compiled is False
    (stand_in / "bin/ptxas").write_text("another one")
    assert proved(stand_in, record, "sm_80").compiled is True
    (record / "proof").write_text("#!/bin/sh\nexit 0\n")
    assert proved(stand_in, record, "sm_80").compiled is True
    assert proved(stand_in, None, "sm_80").compiled is True


def test_proof_of_a_kept_program(stand_in: Path, tmp_path: Path) -> None:
    """A kept program still tells of a GPU that is ill, a library that is gone, a driver that is."""
    record = tmp_path / "record"
    assert proved(stand_in, record).compiled is True
    (tmp_path / "told").write_text("runtime 13000\nno GPU: no CUDA-capable device is detected\n")
    (tmp_path / "status").write_text("77")
    none = proved(stand_in, record)
    assert (none.ran_on, none.compiled) == (None, False)
    assert none.not_run == "no GPU: no CUDA-capable device is detected"
    (tmp_path / "told").write_text("runtime 13000\ndevice 0: unspecified launch failure\n")
    (tmp_path / "status").write_text("2")
    with pytest.raises(LlmetalError, match=r"did not run right .*unspecified launch failure"):
        proved(stand_in, record)
    (tmp_path / "told").write_text("")
    (tmp_path / "status").write_text("127")
    with pytest.raises(LlmetalError, match=r"does not find libcudart\.so\.13"):
        proved(stand_in, record)


def test_proof_of_what_lacks_code(stand_in: Path) -> None:
    """A program without code for a GPU of the lock proves nothing."""
    with pytest.raises(LlmetalError, match="has no code for sm_120"):
        proved(stand_in, None, "sm_80", "sm_120")
