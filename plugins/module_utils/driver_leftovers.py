# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What earlier driver installations left on a host: found by whose it is, and taken away.

A thing is a leftover where it can be attributed: to a package of the driver set, to NVIDIA's
installer, or by a name and a version that only the driver has. The rest is listed and stays.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    driver_state,
    kernel_modules,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_FAMILY = re.compile(
    r"(?:lib)?nvidia-.+|cuda-drivers(?:-.+)?|libcuda1(?:-\d+)?|libcudadebugger1|libnvcuvid1"
    r"|libnvoptix1|libnvsdm(?:-\d+)?|nvlsm|nvlink5(?:-\d+)?|lib(?:egl|glx|gles|vdpau)-nvidia.*"
    r"|libgl1-nvidia.*|libxnvctrl0|xserver-xorg-video-nvidia.*|firmware-nvidia-.+"
    r"|glx-alternative-nvidia|linux-(?:modules|objects|signatures)-nvidia-.+"
)
_OTHERS = re.compile(
    r"(?:lib)?nvidia-container.*|nvidia-docker.*|nvidia-cuda-(?:toolkit|dev|gdb|doc).*"
    r"|nvidia-(?:opencl-dev|profiler|visual-profiler|cudnn|nsight|openjdk|fs|gds|vaapi).*"
    r"|libnvidia-egl-.+|nvidia-egl-.+|nvidia-driver-local-repo-.+|nvidia-driver-assistant"
    r"|nvidia-detect"
)
"""Names like the driver's that are no part of it: toolkits, container tools, package sources."""
_OWN_PACE = re.compile(
    r"nvidia-(?:settings|modprobe|xconfig|persistenced|prime|support|installer-cleanup"
    r"|kernel-common)|libxnvctrl0|glx-alternative-nvidia|firmware-nvidia-.+"
)
"""Parts that distributions package from sources of their own, in versions of their own."""
_DRIVER_VERSION = re.compile(r"[3-9]\d{2}\.\d{2,3}(?:\.\d{2})?(?!\d)")
_MODULE = re.compile(
    r"nvidia(?:[-_](?:current|open|uvm|modeset|drm|peermem))*\.ko(?:\.(?:xz|gz|zst))?"
)
_MODULE_FOLDERS = ("updates", "extra", "kernel/drivers/video")
_LIBRARY = (
    r"lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-(?!container)[a-z0-9-]+"
    r"|(?:GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia)\.so"
)
_VERSIONED = re.compile(rf"{_LIBRARY}\.(?P<version>{_DRIVER_VERSION.pattern})")
_PLAIN = re.compile(rf"{_LIBRARY}(?:\.\d+)?")
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/lib64",
    "usr/lib32",
    "usr/local/lib",
    "usr/local/lib64",
)
_PROGRAMS = frozenset(
    {
        "nvidia-bug-report.sh",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-debugdump",
        "nvidia-installer",
        "nvidia-modprobe",
        "nvidia-ngx-updater",
        "nvidia-pcc",
        "nvidia-persistenced",
        "nvidia-powerd",
        "nvidia-settings",
        "nvidia-sleep.sh",
        "nvidia-smi",
        "nvidia-uninstall",
        "nvidia-xconfig",
    }
)
UNINSTALLERS = (
    ("usr/bin/nvidia-uninstall", ("-s",)),
    ("usr/bin/nvidia-installer", ("--uninstall", "-s")),
)
_MODPROBE = ("etc/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")
BACKUP = "var/lib/nvidia"
SYMLINK, FILE, OLD_SYMLINK, OLD_FILE = 0, 1, 2, 100
"""Kinds of entries in the installer's log; from the last one on, numbers of backup files."""
_DIVERSION = re.compile(r"(?:local )?diversion of (?P<path>.+) to (?P<to>.+?)(?: by (?P<by>\S+))?$")
_GONE = "not-installed"
_CONFIGURATION = "config-files"
_SETTLED = {"installed", "triggers-pending", "triggers-awaited", _CONFIGURATION}
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Package:
    """A package of the driver's family, as dpkg has it."""

    name: str
    version: str
    status: str

    @property
    def bare(self) -> str:
        """Its name without an architecture."""
        return self.name.partition(":")[0]

    @property
    def installed(self) -> bool:
        """Whether it is there and configured."""
        return self.status in _SETTLED - {_CONFIGURATION}

    @property
    def broken(self) -> bool:
        """Whether a transaction left it half done."""
        return self.status not in _SETTLED

    @property
    def release(self) -> str | None:
        """The driver release in its version; None for parts with versions of their own."""
        if _OWN_PACE.fullmatch(self.bare):
            return None
        match = _DRIVER_VERSION.match(self.version.partition(":")[2] or self.version)
        return match[0] if match else None


@dataclass(frozen=True)
class Diversion:
    """A file that dpkg puts elsewhere."""

    path: str
    to: str
    by: str | None

    def __str__(self) -> str:
        """As a person reads it."""
        return f"{self.path} to {self.to} by {self.by or 'somebody'}"


@dataclass(frozen=True)
class Stays:
    """Something that disturbs and whose owner nobody can tell."""

    path: str
    why: str


@dataclass(frozen=True)
class Request:
    """What is asked for: which driver is right, and where to look."""

    version: str | None = None
    """The driver release that belongs here; None for that of most packages."""
    keep: Mapping[str, str] = field(default_factory=dict)
    """Packages that belong here, with their full versions."""
    kernel: str = ""
    root: str = "/"
    lock_timeout: float = 300
    timeout: float = 600

    @property
    def base(self) -> Path:
        """The root of the file system."""
        return Path(self.root)


@dataclass(frozen=True)
class Leftovers:
    """All that is to go, and what stays although it disturbs."""

    runfile: str | None = None
    packages: tuple[Package, ...] = ()
    dkms: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    diversions: tuple[Diversion, ...] = ()
    alternatives: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    stays: tuple[Stays, ...] = ()

    @property
    def any(self) -> bool:
        """Whether something is to go."""
        return bool(self.lines())

    def lines(self) -> list[str]:
        """Each thing in a line; of two of these, the diff is made."""
        found = [f"runfile {self.runfile}"] if self.runfile else []
        found += [f"package {p.name} {p.version} {p.status}" for p in self.packages]
        found += [f"dkms {one}" for one in self.dkms]
        found += [f"module {one}" for one in self.modules]
        found += [f"diversion {one}" for one in self.diversions]
        found += [f"alternative {one}" for one in self.alternatives]
        return found + [f"file {one}" for one in self.files]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return {
            "runfile": self.runfile,
            "packages": [
                {"name": p.name, "version": p.version, "status": p.status} for p in self.packages
            ],
            "dkms": list(self.dkms),
            "modules": list(self.modules),
            "diversions": [str(one) for one in self.diversions],
            "alternatives": list(self.alternatives),
            "files": list(self.files),
        }


def is_driver_package(name: str) -> bool:
    """Whether a package is one of the driver, of whatever source."""
    bare = name.partition(":")[0]
    return bool(_FAMILY.fullmatch(bare)) and not _OTHERS.fullmatch(bare)


def parse_packages(text: str) -> list[Package]:
    """The driver's packages in what dpkg-query printed."""
    rows = (line.split("\t") for line in text.splitlines())
    found = [Package(*row) for row in rows if len(row) == 3 and row[2] != _GONE]  # noqa: PLR2004 - the fields asked for
    return sorted((p for p in found if is_driver_package(p.name)), key=lambda p: p.name)


def query_packages() -> list[Package]:
    """The driver's packages, each with its architecture where dpkg needs it."""
    fields = "${binary:Package}\t${Version}\t${db:Status-Status}\n"
    return parse_packages(run(["dpkg-query", "-W", f"-f={fields}"], timeout=_TIMEOUT).stdout)


def reference(packages: Iterable[Package], version: str | None = None) -> str | None:
    """The release that the host should have: the one asked for, else that of most packages."""
    if version:
        return version
    counted = Counter(p.release for p in packages if p.installed and p.release)
    return max(counted, key=lambda one: (counted[one], one)) if counted else None


def strangers(packages: Sequence[Package], request: Request) -> list[Package]:
    """The packages that are half done, or not of the one set that belongs here."""
    release = reference(packages, request.version)
    revisions = {v for v in request.keep.values() if _DRIVER_VERSION.search(v)}
    found = []
    for package in packages:
        wanted = request.keep.get(package.bare)
        foreign = package.installed and (
            package.version != wanted
            if wanted
            else package.release is not None
            and (package.release != release or (revisions and package.version not in revisions))
        )
        if package.broken or foreign:
            found.append(package)
    return found


def parse_diversions(text: str) -> list[Diversion]:
    """What `dpkg-divert --list` printed."""
    matches = (_DIVERSION.fullmatch(line.strip()) for line in text.splitlines())
    return [Diversion(m["path"], m["to"], m["by"]) for m in matches if m]


@dataclass(frozen=True)
class LogEntry:
    """An entry of the installer's log: a file that it made, or one that it put aside."""

    kind: int
    path: str
    target: str = ""


def parse_log(text: str) -> list[LogEntry]:
    """The entries of /var/lib/nvidia/log."""
    lines = text.splitlines()[2:]
    entries = []
    index = 0
    while index < len(lines):
        number, colon, path = lines[index].partition(":")
        if not colon or not number.isdigit():
            index += 1
            continue
        kind = int(number)
        target = lines[index + 1] if index + 1 < len(lines) else ""
        entries.append(LogEntry(kind, path.strip(), target.strip()))
        index += 3 if kind == OLD_SYMLINK else 2
    return entries


class Owners:
    """Which files belong to a package, asked of dpkg's lists once."""

    def __init__(self, base: Path, packages: Iterable[Package] = ()) -> None:
        """Read the lists; those of packages that are only configuration say nothing."""
        self._paths: set[str] = set()
        gone = {p.bare for p in packages if not p.installed and not p.broken}
        for path in (base / "var/lib/dpkg/info").glob("*.list"):
            if path.name[: -len(".list")].partition(":")[0] not in gone:
                self._paths |= set((read_text(path) or "").splitlines())

    def has(self, path: str) -> bool:
        """Whether a package has the file, with a merged /usr or without."""
        twin = path[len("/usr") :] if path.startswith("/usr/") else f"/usr{path}"
        return path in self._paths or twin in self._paths


@dataclass(frozen=True)
class _Sight:
    """What every search needs to know."""

    request: Request
    packages: tuple[Package, ...]
    owners: Owners

    @property
    def base(self) -> Path:
        return self.request.base

    @property
    def release(self) -> str | None:
        return reference(self.packages, self.request.version)

    def name(self, path: Path) -> str:
        """The path as it is on the host."""
        return f"/{path.relative_to(self.base)}"

    def free(self, path: Path) -> bool:
        """Whether no package has the file."""
        return not self.owners.has(self.name(path))

    @property
    def builds(self) -> bool:
        """Whether an installed package builds the modules of the right release."""
        return any(
            ("dkms" in p.bare or "kernel-source" in p.bare)
            and p.installed
            and p.release in {None, self.release}
            for p in self.packages
        )


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def find_runfile(sight: _Sight) -> str | None:
    """What shows that NVIDIA's installer was at work here."""
    for program, _ in UNINSTALLERS:
        path = sight.base / program
        if path.exists() and sight.free(path):
            return sight.name(path)
    log = sight.base / BACKUP / "log"
    return sight.name(log) if log.is_file() else None


def _version_of(path: Path) -> str | None:
    try:
        return driver_state.module_version(driver_state._read_module(path))  # noqa: SLF001 - one reader of modules
    except Exception:  # noqa: BLE001 - a truncated or foreign file has no version, whatever the reader says
        return None


def _module_files(base: Path) -> Iterator[Path]:
    for kernel in _listed(base / "lib/modules"):
        for folder in _MODULE_FOLDERS:
            for place, _, names in os.walk(kernel / folder):
                yield from (Path(place, name) for name in sorted(names) if _MODULE.fullmatch(name))


def find_modules(sight: _Sight) -> tuple[list[str], list[Stays]]:
    """Modules on disk that neither a package has nor DKMS of the right release builds."""
    found, stays = [], []
    for path in _module_files(sight.base):
        if not sight.free(path):
            continue
        version = _version_of(path)
        by_dkms = "updates" in path.parts or "extra" in path.parts
        if by_dkms and sight.builds and version == sight.release:
            continue
        if version is None and path.stat().st_size:
            why = "it has the name of a driver module and does not say of which version it is"
            stays.append(Stays(sight.name(path), why))
        else:
            found.append(sight.name(path))
    return found, stays


def find_dkms(sight: _Sight) -> list[str]:
    """Trees of DKMS whose source no installed package of the right release has."""
    found = []
    for path in sorted((sight.base / "var/lib/dkms").glob("nvidia*/*")):
        name, version = path.parent.name, path.name
        if name.startswith("nvidia-fs") or not _DRIVER_VERSION.fullmatch(version):
            continue
        if path.is_symlink() or not path.is_dir():
            continue
        if not (sight.builds and version == sight.release):
            found.append(f"{name}/{version}")
    return found


def find_diversions(sight: _Sight, text: str) -> list[Diversion]:
    """Diversions of packages of the driver that are not there, and local ones to its files."""
    here = {p.bare for p in sight.packages if p.installed or p.broken}
    found = []
    for one in parse_diversions(text):
        if one.by is None:
            mine = "nvidia" in one.to.lower() or "nvidia" in one.path.lower()
        else:
            mine = is_driver_package(one.by) and one.by not in here
        if mine:
            found.append(one)
    return found


def find_alternatives(sight: _Sight, text: str) -> list[str]:
    """Alternatives of the driver that lead to a file which is gone."""
    found = []
    for line in text.splitlines():
        words = line.split(None, 2)
        if len(words) != 3 or not re.fullmatch(r"nvidia(?:-.+)?|glx", words[0]):  # noqa: PLR2004 - name, mode, value
            continue
        mine = "nvidia" in words[2].lower()
        if mine and not os.path.lexists(sight.base / words[2].lstrip("/")):
            found.append(words[0])
    return found


def _modprobe(sight: _Sight) -> tuple[list[str], list[Stays]]:
    found, stays = [], []
    seen: set[Path] = set()
    for folder in _MODPROBE:
        for path in _listed(sight.base / folder):
            real = path.resolve()
            if path.suffix != ".conf" or real in seen or not sight.free(path):
                continue
            seen.add(real)
            text = read_text(path) or ""
            if path.name.startswith("nvidia-installer") or "generated by nvidia-installer" in text:
                found.append(sight.name(path))
            elif "nvidia" in kernel_modules.kept_out(text):
                stays.append(Stays(sight.name(path), "it keeps the module nvidia from loading"))
    return found, stays


def _loader(sight: _Sight) -> tuple[list[str], list[Stays]]:
    found, stays = [], []
    for path in _listed(sight.base / "etc/ld.so.conf.d"):
        if path.suffix != ".conf" or not sight.free(path):
            continue
        lines = [line.partition("#")[0].strip() for line in (read_text(path) or "").splitlines()]
        folders = [line for line in lines if line.startswith("/")]
        places = [sight.base / folder.lstrip("/") for folder in folders]
        if folders and all("nvidia" in f for f in folders) and not any(map(Path.exists, places)):
            found.append(sight.name(path))
            continue
        for folder, place in zip(folders, places):
            drivers = [p.name for p in _listed(place) if _VERSIONED.fullmatch(p.name)]
            if drivers and folder.strip("/") not in _LIBRARY_FOLDERS:
                why = f"it has the loader find {drivers[0]} in {folder}"
                stays.append(Stays(sight.name(path), why))
    return found, stays


def _library(sight: _Sight, path: Path) -> tuple[bool, str]:
    """Whether a library file is a leftover; else why it disturbs, if it does."""
    if path.is_symlink():
        target = os.readlink(path)  # noqa: PTH115 - the text of the link
        name = target.rpartition("/")[2]
        real = Path(os.path.normpath(path.parent / target))
        if not _VERSIONED.fullmatch(name) and not _PLAIN.fullmatch(name):
            return False, ""
        return not os.path.lexists(real) or (
            bool(_VERSIONED.fullmatch(name)) and sight.free(real)
        ), ""
    if _VERSIONED.fullmatch(path.name):
        return True, ""
    return False, "it has the name of a driver library and no version, and is no link"


def _libraries(sight: _Sight) -> tuple[list[str], list[Stays]]:
    found, stays = [], []
    for folder in _LIBRARY_FOLDERS:
        place = sight.base / folder
        if place.is_symlink():
            continue
        for path in _listed(place):
            named = _VERSIONED.fullmatch(path.name) or _PLAIN.fullmatch(path.name)
            if not named or not sight.free(path):
                continue
            left, why = _library(sight, path)
            if left:
                found.append(sight.name(path))
            elif why:
                stays.append(Stays(sight.name(path), why))
    return found, stays


def _others(sight: _Sight) -> list[str]:
    """Programs and firmware of the driver that no package has."""
    programs = [sight.base / "usr/bin" / name for name in sorted(_PROGRAMS)]
    firmware = sorted((sight.base / "lib/firmware/nvidia").glob("*/gsp_*.bin"))
    firmware = [path for path in firmware if _DRIVER_VERSION.fullmatch(path.parent.name)]
    return [
        sight.name(path)
        for path in (*programs, *firmware)
        if os.path.lexists(path) and sight.free(path)
    ]


def find_files(sight: _Sight) -> tuple[list[str], list[Stays]]:
    """Configuration, libraries, programs and firmware that no package has."""
    found, stays = _others(sight), []
    for search in (_modprobe, _loader, _libraries):
        more, others = search(sight)
        found += more
        stays += others
    return found, stays


def _sight(request: Request) -> _Sight:
    packages = tuple(query_packages())
    return _Sight(request, packages, Owners(request.base, packages))


def _to_purge(sight: _Sight, *, whole: bool) -> tuple[Package, ...]:
    """The whole family where one of it is wrong: packages depend on each other's versions."""
    if whole or strangers(sight.packages, sight.request):
        return sight.packages
    kept = sight.request.keep
    return tuple(p for p in sight.packages if p.status == _CONFIGURATION and p.bare not in kept)


def look(request: Request, *, reinstall: bool = False, now: bool = False) -> Leftovers:
    """Find everything that is to go.

    Args:
        request: which driver belongs here.
        reinstall: whether the packages go even where each of them is right.
        now: judge the rest as things are, and not as they will be without the packages that go:
            what the packages of today have brought is then no leftover.
    """
    sight = _sight(request)
    runfile = find_runfile(sight)
    packages = _to_purge(sight, whole=reinstall or runfile is not None)
    gone = set() if now else {p.name for p in packages}
    left = tuple(p for p in sight.packages if p.name not in gone)
    after = _Sight(request, left, sight.owners)
    modules, unread = find_modules(after)
    files, stays = find_files(sight)
    told = run(["dpkg-divert", "--list"], timeout=_TIMEOUT).stdout
    chosen = run(["update-alternatives", "--get-selections"], timeout=_TIMEOUT).stdout
    return Leftovers(
        runfile=runfile,
        packages=packages,
        dkms=tuple(find_dkms(after)),
        modules=tuple(modules),
        diversions=tuple(find_diversions(after, told)),
        alternatives=tuple(find_alternatives(after, chosen)),
        files=tuple(files),
        stays=tuple(unread + stays),
    )
