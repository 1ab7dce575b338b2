# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated CUDA toolkit: packages named, related and configured like those of NVIDIA's.

Names, loader files and alternatives are those of a host with NVIDIA's packages of CUDA 13.0. The
compiler is a stand-in: its programs have no machine code, say for which GPUs they were asked, load
the run-time library as any program does, and find no GPU. Not one byte of NVIDIA's is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import elf
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.deb import (
    File,
    Link,
    Package,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOTE = (
    "Simulated by the llmetal sandbox: it has the name, the relations and the\n"
    "settings of NVIDIA's package, and holds none of NVIDIA's software."
)
_LDCONFIG = "#!/bin/sh\nset -e\nldconfig\n"
_NVCC = '''\
#!/usr/bin/env python3
"""Simulated nvcc: names the architectures that it is asked for in a program without device code."""

import re
import struct
import subprocess
import sys
import tempfile

MAIN = r"""
#include <dlfcn.h>
#include <stdio.h>
__asm__(".section .nv_fatbin,\\"a\\"\\n.incbin \\"%(code)s\\"\\n.previous");
int main() {
    if (!dlopen("%(library)s", RTLD_NOW)) { fprintf(stderr, "%%s\\n", dlerror()); return 127; }
    printf("runtime %(number)s\\nno GPU: none is simulated for computing\\n");
    return 77;
}
"""


def code(names):
    entries = b""
    for digits, own in names:
        flags = 0x100000 if own == "a" else 0x200000 if own == "f" else 0
        head = struct.pack("<HHIQ12xI8xI", 2, 0x101, 64, 8, int(digits), flags)
        entries += head.ljust(64, b"\\0") + bytes(8)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def main(argv):
    if "--version" in argv:
        print("Cuda compilation tools, release @LINE@, V@VERSION@")
        return 0
    names = sorted(set(re.findall(r"(?:code|-arch)=sm_(\\d+)([af]?)", " ".join(argv))))
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/code", "wb") as out:
            out.write(code(names or [("75", "")]))
        with open(folder + "/main.cc", "w") as out:
            known = {"library": "@LIBRARY@", "number": "@NUMBER@", "code": folder + "/code"}
            out.write(MAIN % known)
        target = argv[argv.index("-o") + 1]
        return subprocess.call(["g++", "-o", target, folder + "/main.cc", "-ldl"])


sys.exit(main(sys.argv[1:]))
'''
_PTXAS = "#!/bin/sh\necho 'Cuda compilation tools, release {line}, V{version}'\n"


@dataclass(frozen=True)
class Release:
    """A toolkit release: its metapackages have its version, its parts their own."""

    version: str = "13.0.3"
    compiler: str = "13.0.88"
    runtime: str = "13.0.96"
    driver: str = "nvidia-open (>= 580)"
    """What the metapackage with a driver depends on."""

    @property
    def major(self) -> str:
        """Its major version."""
        return self.version.split(".", maxsplit=1)[0]

    @property
    def line(self) -> str:
        """What its folder is named by."""
        return ".".join(self.version.split(".")[:2])

    @property
    def dashed(self) -> str:
        """What its packages are named by."""
        return self.line.replace(".", "-")


def packages(release: Release | None = None) -> list[Package]:
    """What NVIDIA's repositories have of a toolkit, the same for each system."""
    one = release or Release()
    line, major = one.dashed, one.major
    top = f"usr/local/cuda-{one.line}"
    place = "targets/x86_64-linux/lib"
    soname = f"libcudart.so.{major}"
    told = {"LINE": one.line, "VERSION": one.compiler, "LIBRARY": soname}
    told["NUMBER"] = f"{major}0{one.line.split('.')[1]}0"
    text = _NVCC
    for name, value in told.items():
        text = text.replace(f"@{name}@", value)
    common = f"cuda-toolkit-{line}-config-common"
    return [
        _package("cuda-toolkit-config-common", one.runtime, files=_loader("000_cuda", "cuda")),
        _package(
            f"cuda-toolkit-{major}-config-common",
            one.runtime,
            files=_loader(f"987_cuda-{major}", f"cuda-{major}"),
        ),
        _package(
            common,
            one.runtime,
            f"cuda-toolkit-config-common, cuda-toolkit-{major}-config-common",
            scripts=_alternatives(one),
        ),
        _package(
            f"cuda-cudart-{line}",
            one.runtime,
            common,
            files={
                f"{top}/lib64": Link(place),
                f"{top}/{place}/{soname}.{one.runtime.split('.', 1)[1]}": File(
                    elf.shared_library(soname, loads=True)
                ),
                f"{top}/{place}/{soname}": Link(f"{soname}.{one.runtime.split('.', 1)[1]}"),
            },
            scripts={"postinst": _LDCONFIG, "postrm": _LDCONFIG},
        ),
        _package(
            f"cuda-nvcc-{line}",
            one.compiler,
            common,
            files={
                f"{top}/bin/nvcc": File(text.encode(), 0o755),
                f"{top}/bin/ptxas": File(
                    _PTXAS.format(line=one.line, version=one.compiler).encode(), 0o755
                ),
            },
        ),
        _package(
            f"cuda-toolkit-{line}", one.version, f"cuda-nvcc-{line}, cuda-cudart-{line}, {common}"
        ),
        _package(f"cuda-{line}", one.version, f"cuda-toolkit-{line}, {one.driver}"),
        _package("cuda", one.version, f"cuda-{line}"),
    ]


def _package(
    name: str,
    version: str,
    depends: str = "",
    *,
    files: Mapping[str, File | Link] | None = None,
    scripts: Mapping[str, str] | None = None,
) -> Package:
    what = f"CUDA package {name} (simulated)\n{_NOTE}"
    return Package(name, f"{version}-1", what, depends, files=files or {}, scripts=scripts or {})


def _loader(name: str, folder: str) -> dict[str, File | Link]:
    """A file for the loader."""
    text = f"/usr/local/{folder}/targets/x86_64-linux/lib\n"
    return {f"etc/ld.so.conf.d/{name}.conf": File(text.encode())}


def _alternatives(one: Release) -> dict[str, str]:
    """Both links of a toolkit, as its package sets them."""
    prefix, priority = f"/usr/local/cuda-{one.line}", one.line.replace(".", "")
    names = ("cuda", f"cuda-{one.major}")
    come = "".join(
        f"update-alternatives --install /usr/local/{name} {name} {prefix} {priority}\n"
        for name in names
    )
    go = "".join(f"update-alternatives --remove {name} {prefix}\n" for name in names)
    return {
        "postinst": f"#!/bin/sh\nset -e\n{come}ldconfig\n",
        "prerm": f"#!/bin/sh\nset -e\n{go}",
    }
