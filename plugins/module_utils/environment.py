# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python environments of exact, hashed packages: built beside the live one, switched in one step.

An environment lives in `<root>/<name>/<digest>`, where the digest is that of everything it is made
from; the link `<root>/<name>/current` names the one in use. A stamp, written last, lists what was
installed: without it the folder is unfinished; where the two differ, somebody changed it by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

STAMP = "llmetal-environment.json"
_SCHEMA = 1
_DIGEST_LENGTH = 12
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGEST_LENGTH}}}")
_SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_ROOM_MARGIN = 256 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

_IMPORT_SCRIPT = """\
import importlib, json, sys, traceback
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        traceback.print_exc()
        failed[name] = "%s: %s" % (type(error).__name__, error)
print(json.dumps(failed))
"""


@dataclass(frozen=True)
class Requirement:
    """One distribution at one version, and the hashes its files may have."""

    name: str
    version: str
    sha256: tuple[str, ...]

    def line(self) -> str:
        """The requirement as one line of a requirements file."""
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in self.sha256)
        return f"{self.name}=={self.version} {hashes}"


@dataclass(frozen=True)
class Alias:
    """A distribution name that is answered although another package brings the code."""

    distribution: str
    version: str

    @property
    def folder(self) -> str:
        """The name of its dist-info folder."""
        return f"{re.sub(r'[-_.]+', '_', self.distribution)}-{self.version}.dist-info"


@dataclass(frozen=True)
class EnvironmentSpec:
    """All that an environment is made from."""

    name: str
    python: str
    python_version: str
    requirements: tuple[Requirement, ...]
    aliases: tuple[Alias, ...] = ()
    imports: tuple[str, ...] = ()
    provider: str = "uv"

    @property
    def digest(self) -> str:
        """What the environment's folder is called: equal inputs, equal digest."""
        recipe = {
            "schema": _SCHEMA,
            "provider": self.provider,
            "python": [self.python, minor_version(self.python_version)],
            "requirements": sorted(
                [normal_name(one.name), one.version, sorted(one.sha256)]
                for one in self.requirements
            ),
            "aliases": sorted([one.distribution, one.version] for one in self.aliases),
        }
        text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]

    def check(self) -> None:
        """Refuse what cannot be installed as locked.

        Raises:
            LlmetalError: a name that is no name, or a package without a hash.
        """
        if not _NAME.match(self.name):
            raise LlmetalError(
                what="the environment's name is not a plain name",
                where=repr(self.name),
                fix="use letters, digits, dot, dash and underscore",
            )
        bare = sorted(one.name for one in self.requirements if not one.sha256)
        if bare:
            raise LlmetalError(
                what="packages without a hash are not installed",
                where=f"environment {self.name}",
                why=f"no sha256 for {', '.join(bare)}",
                fix="make the lock again, so that every package carries the hashes of its files",
            )


@dataclass(frozen=True)
class Places:
    """The paths of one environment."""

    home: Path
    final: Path
    building: Path
    link: Path

    @classmethod
    def of(cls, root: str, spec: EnvironmentSpec) -> Places:
        """Where the environment of this recipe lives below `root`."""
        home = Path(root) / spec.name
        final = home / spec.digest
        # What `python -m venv` makes cannot be moved, so it is built where it stays.
        building = final if spec.provider == "venv" else home / f".building-{spec.digest}"
        return cls(home, final, building, home / "current")


@dataclass(frozen=True)
class EnvironmentState:
    """What is there now."""

    linked: str | None
    built: bool
    changes: tuple[str, ...] = ()

    def is_current(self, digest: str) -> bool:
        """Whether the environment of this digest is whole, unchanged and the one in use."""
        return self.built and not self.changes and self.linked == digest


@dataclass(frozen=True)
class Installer:
    """How packages come to the host."""

    uv: str = ""
    index_url: str = ""
    cache: str = ""
    install_timeout: float = 3600
    import_timeout: float = 900
    size_bytes: int = 0


@dataclass
class Outcome:
    """What `ensure` did."""

    digest: str
    distributions: int = 0
    seconds: float = 0.0
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    """How one way of failing is recognised, and what it means."""

    pattern: str
    what: str
    fix: str


_AGAIN = (
    "do not install it: ask who runs the index or mirror why its file differs, or make the lock"
    " again if the change is known and wanted"
)

_FAILURES = (
    Failure(
        pattern=r"No space left on device",
        what="the disk is full",
        fix="free some room on the file systems of the environments and of the wheel "
        "cache; what was begun is removed by the next run",
    ),
    Failure(
        pattern=r"Disk quota exceeded",
        what="the disk quota is used up",
        fix="raise the quota of the user who owns the environments and the wheel cache",
    ),
    Failure(
        pattern=r"Hash mismatch for `(?P<package>[^`]+)`",
        what="the file of {package} is not the one in the lock",
        fix=_AGAIN,
    ),
    Failure(
        pattern=r"THESE PACKAGES DO NOT MATCH THE HASHES",
        what="a package's file is not the one in the lock",
        fix=_AGAIN,
    ),
    Failure(
        pattern=r"Because (?P<package>[^ {]+)(?:\{[^}]*\})?==\S+ has no usable wheels",
        what="there is no wheel of {package} for this Python and machine",
        fix="use a Python version that the engine's release has wheels for, or add a "
        "built wheel to the mirror",
    ),
    Failure(
        pattern=r"there is no version of (?P<package>[^=]+)==\S+ and",
        what="the index does not have the locked version of {package}",
        fix="check that the mirror is complete, or make the lock again",
    ),
    Failure(
        pattern=r"Because (?P<package>\S+) was not found in the (?:package registry|cache)",
        what="the index does not have {package}",
        fix="check that the mirror is complete, or make the lock again",
    ),
    Failure(
        pattern=r"(?i)invalid peer certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED",
        what="the index's certificate is not trusted on this host",
        fix="add the authority that signed it to the host's certificate store (update-ca-"
        "certificates)",
    ),
    Failure(
        pattern=r"(?i)HTTP status (?:client|server) error \((?P<status>[^)]*)\)",
        what="the package index answered {status}",
        fix="check the index in `llmetal_index_url`, and that it serves these packages",
    ),
    Failure(
        pattern=r"(?i)error sending request|dns error|connection refused|timed out"
        r"|NewConnectionError",
        what="the package index cannot be reached",
        fix="check the host's network, proxy and `llmetal_index_url`; with every package "
        "in the wheel cache no index is asked",
    ),
    Failure(
        pattern=r"No matching distribution found for (?P<package>\S+)",
        what="the index does not have {package}",
        fix="check that the host reaches the index and that the mirror is complete",
    ),
)


def normal_name(name: str) -> str:
    """A distribution's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def minor_version(version: str) -> str:
    """`3.11` of `3.11.2`: what decides which wheels fit."""
    return ".".join(version.split(".")[:2])


def interpreter_version(python: str) -> str:
    """The version of an interpreter.

    Raises:
        LlmetalError: there is none at this path, or it does not run.
    """
    script = "import platform; print(platform.python_version())"
    answer = run([python, "-I", "-c", script], timeout=60)
    if not answer.ok:
        raise LlmetalError(
            what="the Python interpreter does not run",
            where=python,
            why=answer.tail(2),
            fix="install the interpreter that the lock names, or make the lock again on this host",
        )
    return answer.stdout.strip()


def installed(environment: Path) -> dict[str, str]:
    """The distributions in an environment by their metadata folders, without running it."""
    found: dict[str, str] = {}
    for folder in environment.glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = folder.name[: -len(".dist-info")].partition("-")
        found[normal_name(name)] = version
    return found


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, ...]:
    """What changed between two sets of distributions, one readable entry each."""
    entries = []
    for name in sorted({*wanted, *found}):
        before, after = wanted.get(name), found.get(name)
        if before != after:
            entries.append(f"{name} {before or 'absent'} -> {after or 'absent'}")
    return tuple(entries)


def read_state(spec: EnvironmentSpec, places: Places) -> EnvironmentState:
    """Look at what is there; changes nothing."""
    linked = None
    with contextlib.suppress(OSError):
        linked = str(places.link.readlink())
    try:
        stamp = json.loads(read_text(places.final / STAMP) or "")
        recorded = {str(name): str(version) for name, version in stamp["distributions"].items()}
        built = stamp["digest"] == spec.digest
    except (ValueError, KeyError, TypeError, AttributeError):
        return EnvironmentState(linked, built=False)
    changes = differences(recorded, installed(places.final))
    if not os.access(places.final / "bin" / "python", os.X_OK):
        changes = (*changes, "bin/python does not lead to an interpreter")
    return EnvironmentState(linked, built=built, changes=changes)


def explain(result: CommandResult, name: str) -> LlmetalError:
    """Say why an installer failed, in the words of a person who can act on it."""
    text = f"{result.stdout}\n{result.stderr}"
    causes = re.findall(r"^\s*(?:error|cause|ERROR):\s*(.+?)\s*$", text, flags=re.MULTILINE)
    why = "; ".join(dict.fromkeys(causes)) or result.tail()
    where = f"environment {name}"
    for failure in _FAILURES:
        match = re.search(failure.pattern, text)
        if match:
            what = failure.what.format(**match.groupdict())
            return LlmetalError(what=what, where=where, why=why, fix=failure.fix)
    return LlmetalError(
        what="the packages could not be installed",
        where=where,
        why=why,
        fix="read the installer's words above",
    )


def ensure(
    spec: EnvironmentSpec,
    places: Places,
    installer: Installer,
    finish: Callable[[Path], None] | None = None,
) -> Outcome:
    """Build what is missing, switch to it, and remove what nobody needs any more.

    Args:
        spec: what the environment is made from.
        places: where it lives.
        installer: how packages come to the host.
        finish: called with the folder of a new environment before it is used; may add to it.

    Returns:
        What was done.

    Raises:
        LlmetalError: it could not be built; the environment in use is then as it was.
    """
    started = time.monotonic()
    try:
        places.home.mkdir(parents=True, exist_ok=True)
        with only_one(places.home / ".lock", installer.install_timeout):
            state = read_state(spec, places)
            if not state.built or state.changes:
                _build(spec, places, installer, finish)
            switch_link(places.link, spec.digest)
            removed = _prune(places, state.linked)
            distributions = len(installed(places.final))
    except OSError as error:
        raise _disk_error(error, places) from error
    seconds = round(time.monotonic() - started, 1)
    return Outcome(spec.digest, distributions, seconds, removed)


def switch_link(link: Path, target: str) -> bool:
    """Point a link at a target in one step; whether it pointed elsewhere before."""
    with contextlib.suppress(OSError):
        if str(link.readlink()) == target:
            return False
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def _disk_error(error: OSError, places: Places) -> LlmetalError:
    """What the operating system refused, with the path."""
    return LlmetalError(
        what="the environment's folder cannot be written",
        where=str(error.filename or places.home),
        why=error.strerror or str(error),
        fix="check the free room and the owner of the folder",
    )


@contextlib.contextmanager
def only_one(path: Path, timeout: float) -> Iterator[None]:
    """Hold a file lock; a run that lost its controller may still be busy here.

    Raises:
        LlmetalError: the other one did not end in time.
    """
    with path.open("w", encoding="utf-8") as stream:
        limit = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise LlmetalError(
                        what="another run still builds this environment",
                        where=str(path),
                        fix="wait for it, or end the process that holds the lock file",
                    ) from None
                time.sleep(0.5)
        yield


def _build(
    spec: EnvironmentSpec,
    places: Places,
    installer: Installer,
    finish: Callable[[Path], None] | None,
) -> None:
    """Make the environment in a folder of its own, and move it into place when it is whole."""
    _remove(places.building)
    _check_room(places.home, installer.size_bytes)
    _make_venv(spec, places, installer)
    _install(spec, places, installer)
    for alias in spec.aliases:
        _write_alias(places.building, alias)
    check_imports(places.building, spec.imports, installer.import_timeout)
    if finish is not None:
        finish(places.building)
    stamp = {
        "schema": _SCHEMA,
        "digest": spec.digest,
        "name": spec.name,
        "python": spec.python,
        "distributions": installed(places.building),
    }
    write_atomic(
        places.building / STAMP, json.dumps(stamp, indent=1, sort_keys=True) + "\n", mode=0o644
    )
    if places.building == places.final:
        return
    replaced = places.home / f".replaced-{spec.digest}"
    _remove(replaced)
    if places.final.exists():
        places.final.rename(replaced)
    places.building.rename(places.final)
    _remove(replaced)


def _check_room(home: Path, size_bytes: int) -> None:
    """Refuse to begin what cannot fit."""
    free = shutil.disk_usage(home).free
    if size_bytes and free < size_bytes + _ROOM_MARGIN:
        raise LlmetalError(
            what="there is not enough room for the environment",
            where=str(home),
            why=f"it takes {size_bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
            fix="free some room, or put `llmetal_root` on a larger file system",
        )


def _installer_environment(installer: Installer) -> dict[str, str]:
    """The variables that both installers get."""
    variables = {
        "UV_SYSTEM_CERTS": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    if installer.cache:
        variables.update(UV_CACHE_DIR=installer.cache, PIP_CACHE_DIR=installer.cache)
    if "PIP_CERT" not in os.environ and Path(_SYSTEM_CERTIFICATES).exists():
        variables["PIP_CERT"] = _SYSTEM_CERTIFICATES
    return variables


def _make_venv(spec: EnvironmentSpec, places: Places, installer: Installer) -> None:
    if spec.provider == "venv":
        argv = [spec.python, "-I", "-m", "venv", str(places.building)]
    else:
        options = ["--quiet", "--no-project", "--relocatable", "--python", spec.python]
        argv = [installer.uv, "venv", *options, str(places.building)]
    made = run(argv, timeout=300, env=_installer_environment(installer), cwd=str(places.home))
    if made.ok:
        return
    if "ensurepip" in made.stdout + made.stderr:
        raise LlmetalError(
            what="this Python cannot make environments",
            where=spec.python,
            why="its module ensurepip is not installed",
            fix="install the package python3-venv",
        )
    raise explain(made, spec.name)


def _install(spec: EnvironmentSpec, places: Places, installer: Installer) -> None:
    """Install the locked files: from the cache alone if it has them all, else from the index."""
    python = str(places.building / "bin" / "python")
    variables = _installer_environment(installer)
    with tempfile.TemporaryDirectory(prefix="llmetal-") as folder:
        listing = Path(folder) / "requirements.txt"
        listing.write_text(
            "".join(f"{one.line()}\n" for one in spec.requirements), encoding="utf-8"
        )
        if spec.provider == "venv":
            argv = [python, "-I", "-m", "pip", "install", "--only-binary", ":all:"]
            attempts = [argv]
        else:
            argv = [installer.uv, "pip", "install", "--python", python, "--no-build"]
            attempts = [[*argv, "--offline"], argv]
        rest = ["--no-deps", "--require-hashes", "-r", str(listing)]
        if installer.index_url:
            rest += ["--index-url", installer.index_url]
        for attempt in attempts:
            done = run(
                [*attempt, *rest], timeout=installer.install_timeout, env=variables, cwd=folder
            )
            if done.ok:
                return
    raise explain(done, spec.name)


def _write_alias(environment: Path, alias: Alias) -> None:
    """Give the environment one more distribution name.

    An engine's CPU build has another package name than the engine, and the engine asks for its own.
    """
    for packages in environment.glob("lib/python3*/site-packages"):
        folder = packages / alias.folder
        folder.mkdir(exist_ok=True)
        content = {
            "METADATA": f"Metadata-Version: 2.1\nName: {alias.distribution}\n"
            f"Version: {alias.version}\n",
            "INSTALLER": "llmetal\n",
        }
        for name, text in content.items():
            write_atomic(folder / name, text)
        names = [*content, "RECORD"]
        write_atomic(folder / "RECORD", "".join(f"{alias.folder}/{name},,\n" for name in names))


def check_imports(environment: Path, modules: Sequence[str], timeout: float) -> None:
    """Import modules with the environment's own interpreter.

    Raises:
        LlmetalError: one cannot be imported; its last words are in the message.
    """
    if not modules:
        return
    with tempfile.TemporaryDirectory(prefix="llmetal-") as scratch:
        private = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), scratch)
        done = run(
            [str(environment / "bin" / "python"), "-I", "-c", _IMPORT_SCRIPT, *modules],
            timeout=timeout,
            env={**private, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            cwd=scratch,
        )
    failed = None
    with contextlib.suppress(ValueError, IndexError):
        failed = json.loads(done.stdout.strip().splitlines()[-1])
    if done.ok and failed == {}:
        return
    first = next(iter(failed.items()), None) if isinstance(failed, dict) else None
    raise LlmetalError(
        what=f"`import {first[0] if first else modules[0]}` fails in the new environment",
        where=str(environment),
        why=first[1] if first else done.tail(3) or f"exit status {done.rc}",
        fix="the environment in use is as before; compare the lock with the release's own"
        " requirements and the host's libraries",
    )


def _prune(places: Places, previous: str | None) -> list[str]:
    """Remove rests and older environments, but for the previous one and what a process uses."""
    rests, older = [], []
    for entry in places.home.iterdir():
        if entry.name.startswith((".building-", ".replaced-", ".current-")):
            rests.append(entry)
        elif _DIGEST.fullmatch(entry.name) and entry != places.final:
            older.append(entry)
    older.sort(key=lambda entry: (entry.name == previous, entry.stat().st_mtime))
    candidates = [*rests, *older[:-1]]
    used = in_use(candidates) if candidates else set()
    removed = sorted(set(candidates) - used)
    for entry in removed:
        _remove(entry)
    return [entry.name for entry in removed]


def in_use(folders: Sequence[Path], proc: Path = Path("/proc")) -> set[Path]:
    """Those of the folders that a running process has loaded code from or was started in."""
    used: set[Path] = set()
    for process in proc.glob("[0-9]*"):
        text = "".join(read_text(process / name) or "" for name in ("maps", "cmdline"))
        used.update(folder for folder in folders if f"{folder}/" in text)
    return used


def _remove(path: Path) -> None:
    """Remove a folder, file or link, if there is one."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
