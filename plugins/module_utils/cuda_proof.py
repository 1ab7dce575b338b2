# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a CUDA toolkit: a kernel compiled for each architecture, read back, loaded, run.

With nvcc a whole program is built; it loads the run-time library as any program does, and on a host
with a driver its kernel runs on every GPU and the sum is compared. Wheels of CUDA 12 bring no nvcc:
there NVRTC compiles the kernel, and the run-time library is loaded by its name.

Where a record is kept, the built program stays with it. As long as nothing that compiling depends
on is another one (compiler, libraries, g++, architectures) the next proof starts that program
instead of building it anew: loading, the driver and every GPU are asked each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import fatbin
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text, write_atomic
from ansible_collections.llmetal.inference.plugins.module_utils.toolkits import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_DRIVER = 77
_RUN_TIMEOUT = 120
_KERNEL = """\
extern "C" __global__ void add(int *values, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) values[index] = index * 2 + 1;
}
"""
_PROGRAM = (
    "#include <cstdio>\n"
    + _KERNEL
    + """\
int main() {
    const int count = 4096;
    int version = 0, devices = 0, host[count];
    if (cudaRuntimeGetVersion(&version) != cudaSuccess) return 1;
    std::printf("runtime %d\\n", version);
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        std::printf("no GPU: %s\\n", cudaGetErrorString(error));
        return 77;
    }
    for (int device = 0; device < devices; ++device) {
        int *values = nullptr;
        long long sum = 0;
        if ((error = cudaSetDevice(device)) == cudaSuccess &&
            (error = cudaMalloc(&values, sizeof host)) == cudaSuccess) {
            add<<<count / 256, 256>>>(values, count);
            if ((error = cudaGetLastError()) == cudaSuccess)
                error = cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost);
            cudaFree(values);
        }
        if (error != cudaSuccess) {
            std::printf("device %d: %s\\n", device, cudaGetErrorString(error));
            return 2;
        }
        for (int index = 0; index < count; ++index) sum += host[index];
        std::printf("device %d sum %lld\\n", device, sum);
        if (sum != 1LL * count * count) return 3;
    }
    return 0;
}
"""
)
_SUCCESS = 0


@dataclass(frozen=True)
class Proof:
    """What was seen."""

    version: str | None
    compiler: str
    """`nvcc` or `nvrtc`."""
    architectures: tuple[str, ...]
    runtime: str
    """The run-time library that was loaded."""
    ran_on: int | None
    """On how many GPUs the kernel ran; None where no driver is there."""
    not_run: str = ""
    """Why it did not run."""
    compiled: bool = True
    """Whether it was compiled now; else the program of the last proof was started."""

    def as_dict(self) -> dict[str, Any]:
        """As a module returns it."""
        return {**asdict(self), "architectures": [f"sm_{one}" for one in self.architectures]}


def prove(  # noqa: PLR0913 - what a toolkit is measured by
    prefix: Path,
    architectures: Sequence[str],
    *,
    soname: str,
    through_cache: bool,
    release: str | None = None,
    timeout: float = 300,
    record: Path | None = None,
) -> Proof:
    """Prove a toolkit.

    Args:
        prefix: the toolkit.
        architectures: for which GPUs it must compile.
        soname: its run-time library.
        through_cache: whether that must be found through the loader's cache.
        release: the release that it must be of.
        timeout: seconds that compiling may take.
        record: a folder in which the program stays for the next proof.

    Raises:
        LlmetalError: anything is not as it should be.
    """
    version = version_of(prefix)
    line = ".".join((release or "").split(".")[:2])
    if version is None or not f"{version}.".startswith(f"{line}." if line else ""):
        raise LlmetalError(
            what=f"there is no toolkit of CUDA {line}" if version is None else "another toolkit",
            where=str(prefix),
            why=f"its version is {version}",
            fix="run the role again; if it stays, remove the folder and run the role again",
        )
    names = tuple(fatbin.architecture(one) for one in architectures)
    with tempfile.TemporaryDirectory(prefix="llmetal-") as folder:
        if (prefix / "bin/nvcc").exists():
            return _with_nvcc(
                prefix,
                names,
                Path(folder),
                soname=soname,
                through_cache=through_cache,
                version=version,
                timeout=timeout,
                record=record,
            )
    return _with_nvrtc(prefix, names, soname, through_cache=through_cache, version=version)


def _with_nvcc(  # noqa: PLR0913 - what a program is built with
    prefix: Path,
    names: tuple[str, ...],
    folder: Path,
    *,
    soname: str,
    through_cache: bool,
    version: str,
    timeout: float,
    record: Path | None,
) -> Proof:
    key = identity(prefix, names, soname, through_cache=through_cache)
    kept = _kept(record, key) if record else None
    program = kept or _built(prefix, names, folder, through_cache=through_cache, timeout=timeout)
    done = run([str(program)], timeout=_RUN_TIMEOUT, cwd=str(folder), env={"LD_LIBRARY_PATH": ""})
    told = done.stdout.strip().splitlines()
    if not told or not told[0].startswith("runtime "):
        raise LlmetalError(
            what=f"a program of this toolkit does not find {soname}",
            where=str(prefix),
            why=done.tail(2) or f"exit status {done.rc}",
            fix="see what `ldconfig -p` has, and module ld_path's answer for this library",
        )
    if done.rc != _NO_DRIVER and not done.ok:
        raise LlmetalError(
            what="the kernel did not run right",
            where=str(prefix),
            why="; ".join(told[1:]) or f"exit status {done.rc}",
            fix="compare the driver with what the toolkit needs (llmetal plan says it), and look "
            "at the GPU's health",
        )
    if record and kept is None:
        _keep(record, key, program)
    fresh = kept is None
    if done.rc == _NO_DRIVER:
        return Proof(version, "nvcc", names, soname, None, told[-1], compiled=fresh)
    return Proof(version, "nvcc", names, soname, len(told) - 1, compiled=fresh)


def identity(
    prefix: Path, names: Sequence[str], soname: str, *, through_cache: bool
) -> dict[str, Any]:
    """All that the built program depends on."""
    gcc = shutil.which("g++")
    used = [prefix / "bin/nvcc", prefix / "bin/ptxas", prefix / "lib64" / soname]
    used += [prefix / "nvvm/bin/cicc", prefix / "include/cuda_runtime.h"]
    files = {}
    for path in [*used, *([Path(gcc)] if gcc else [])]:
        if path.exists():
            real = path.resolve()
            seen = real.stat()
            files[str(path)] = [str(real), seen.st_size, seen.st_mtime_ns]
    program = hashlib.sha256(_PROGRAM.encode()).hexdigest()
    return {
        "files": files,
        "architectures": list(names),
        "through_cache": through_cache,
        "source": program,
    }


def _kept(record: Path, key: dict[str, Any]) -> Path | None:
    """The program of the last proof, where it is the one that would be built."""
    program = record / "proof"
    try:
        known = json.loads(read_text(record / "proof.json") or "")
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
    except (ValueError, OSError):
        return None
    return program if known == {**key, "sha256": digest} else None


def _keep(record: Path, key: dict[str, Any], program: Path) -> None:
    """Leave the program for the next proof; the record, which says what it is, comes last."""
    record.mkdir(parents=True, exist_ok=True, mode=0o755)
    with contextlib.suppress(FileNotFoundError):
        (record / "proof.json").unlink()
    shutil.copy2(program, record / "proof")
    digest = hashlib.sha256((record / "proof").read_bytes()).hexdigest()
    write_atomic(record / "proof.json", json.dumps({**key, "sha256": digest}, indent=1) + "\n")


def _built(
    prefix: Path, names: Sequence[str], folder: Path, *, through_cache: bool, timeout: float
) -> Path:
    """The program, compiled for every architecture in one call."""
    source, program = folder / "proof.cu", folder / "proof"
    source.write_text(_PROGRAM, encoding="utf-8")
    nvcc = str(prefix / "bin/nvcc")
    argv = [nvcc, "-cudart", "shared", "-o", str(program), str(source), "--threads", "0"]
    for name in names:
        argv += ["-gencode", f"arch=compute_{name},code=sm_{name}"]
    if not through_cache:
        argv += ["-Xlinker", f"-rpath={prefix / 'lib64'}"]
    built = run(argv, timeout=timeout, cwd=str(folder))
    if not built.ok:
        raise _compile_error(nvcc, built.tail(4))
    code = fatbin.read(program) or fatbin.Code()
    if missing := code.lacks(names):
        raise _not_for(program.name, missing, code)
    return program


def _compile_error(nvcc: str, words: str) -> LlmetalError:
    """Why a kernel could not be compiled, where its words say so."""
    fix = "read the compiler's words above"
    if "unsupported GNU version" in words:
        fix = "install an older g++ that this nvcc supports, or take a newer CUDA release"
    elif "not found" in words or "No such file" in words or "cannot execute" in words:
        fix = "install the package g++: nvcc calls it for the host's part of a program"
    elif "Unsupported gpu architecture" in words:
        fix = "take a CUDA release that knows this GPU (llmetal plan names it)"
    return LlmetalError(what="nvcc cannot compile a kernel", where=nvcc, why=words, fix=fix)


def _not_for(what: str, missing: Sequence[str], code: fatbin.Code) -> LlmetalError:
    return LlmetalError(
        what=f"what was compiled has no code for {', '.join(f'sm_{one}' for one in missing)}",
        where=what,
        why=f"it has {', '.join(code.as_dict()['cubin']) or 'none'}",
        fix="see whether something on PATH takes the place of the toolkit's own nvcc or ptxas",
    )


def _with_nvrtc(
    prefix: Path, names: tuple[str, ...], soname: str, *, through_cache: bool, version: str
) -> Proof:
    """The proof of a toolkit without nvcc."""
    major = version.split(".", maxsplit=1)[0]
    library = f"libnvrtc.so.{major}"
    # The path of the prefix also serves where the cache does: what loads it first does not matter.
    nvrtc = _load(library if through_cache else str(prefix / "lib64" / library))
    for name in names:
        code = fatbin.read_bytes(_compile(nvrtc, name)) or fatbin.Code()
        bare = name.rstrip("af")
        if missing := code.lacks([bare]):
            raise _not_for(library, missing, code)
    runtime = _load(soname if through_cache else str(prefix / "lib64" / soname))
    number = ctypes.c_int(0)
    if runtime.cudaRuntimeGetVersion(ctypes.byref(number)) != _SUCCESS:
        raise LlmetalError(what=f"{soname} does not answer", where=str(prefix), fix="install anew")
    why = "these wheels have no nvcc, so no program was built to run"
    return Proof(version, "nvrtc", names, soname, None, why)


def _load(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise LlmetalError(
            what="a library of the toolkit cannot be loaded",
            where=name,
            why=str(error),
            fix="see what `ldconfig -p` has, and module ld_path's answer for this library",
        ) from error


def _compile(nvrtc: ctypes.CDLL, name: str) -> bytes:
    """The machine code of the kernel for an architecture."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    option = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{name}".encode())
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), _KERNEL.encode(), b"proof.cu", 0, None, None
    )
    try:
        if made or nvrtc.nvrtcCompileProgram(program, 1, option):
            raise LlmetalError(
                what=f"NVRTC cannot compile for sm_{name}",
                why=_log(nvrtc, program),
                fix="take a CUDA release that knows this GPU (llmetal plan names it)",
            )
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace").strip()
