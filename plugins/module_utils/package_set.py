# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A set of packages in exact versions, brought onto a host in one transaction."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_lock,
    apt_simulation,
    dkms,
    dpkg,
    gpu_containers,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_archive import (
    LISTS,
    OS_RELEASE,
    Archive,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_messages import (
    AptError,
    failure,
    recognise,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_pins import pinned
from ansible_collections.llmetal.inference.plugins.module_utils.apt_simulation import (
    Change,
    Limits,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import (
    ETC_APT,
    KEYRINGS,
    Entry,
    Source,
    declared_elsewhere,
    read_entries,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.module_utils.dpkg import Database

_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
}
_KEEP_FILES = [
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
]
_STALE = {"hash_mismatch", "not_found"}
"""Failures of a transaction that a fresh index may cure."""
_BUILD = {"module_build"}
_MADISON = re.compile(r"^\s*(\S+)\s*\|\s*(\S+)\s*\|\s*(.+?)\s*$")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_VERSION = re.compile(r"[A-Za-z0-9.+:~-]+")


@dataclass(frozen=True)
class Wanted:
    """One package: in one version, or in any where that is null."""

    name: str
    version: str | None = None
    hold: bool = False

    @property
    def argument(self) -> str:
        """As apt-get takes it."""
        return f"{self.name}={self.version}" if self.version else self.name

    def met_by(self, database: Database) -> bool:
        """Whether it is installed as wanted."""
        version = database.version(self.name)
        return version is not None and self.version in {None, version}


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    packages: tuple[Wanted, ...]
    state: str = "present"
    source: Source | None = None
    archive: Archive | None = None
    limits: Limits = field(default_factory=Limits)
    lock_timeout: int = 300
    timeout: int = 1800
    spare_containers: bool = False
    etc_apt: str = ETC_APT
    keyrings: str = KEYRINGS
    lists: str = LISTS
    os_release: str = OS_RELEASE

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Request:
        """From a module's parameters.

        Raises:
            LlmetalError: a name or version is none, or the source's key is another one.
        """
        packages = tuple(
            Wanted(
                row["name"],
                row.get("version") or None,
                params["hold"] if row.get("hold") is None else row["hold"],
            )
            for row in params["packages"]
        )
        for package in packages:
            if not _NAME.fullmatch(package.name):
                raise LlmetalError(
                    what=f"{package.name!r} is no name of a package",
                    fix="use lower-case letters, digits, plus, minus and dot",
                )
            if package.version and not _VERSION.fullmatch(package.version):
                raise LlmetalError(what=f"{package.version!r} is no version of {package.name}")
        names = [package.name for package in packages]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise LlmetalError(
                what=f"a package is asked for twice: {', '.join(double)}",
                fix="name it once",
            )
        return cls(
            packages=packages,
            state=params["state"],
            source=Source.of(params["source"]),
            archive=Archive.of(params["source"]),
            limits=Limits(
                replaces=tuple(params.get("replaces") or ()),
                one_release=tuple(params.get("one_release") or ()),
                own_release=tuple(params.get("own_release") or ()),
                keeps=tuple(params.get("keeps") or ()),
            ),
            lock_timeout=params["lock_timeout"],
            timeout=params["timeout"],
            spare_containers=bool(params.get("spare_containers")),
        )

    @property
    def to_hold(self) -> list[str]:
        """Names of the packages to put on hold."""
        return [package.name for package in self.packages if package.hold]

    @property
    def has_source(self) -> bool:
        """Whether anything has to be declared for the packages."""
        return self.source is not None or self.archive is not None

    @property
    def source_file(self) -> str:
        """Where our own declaration of the source stands."""
        return f"{self.etc_apt}/sources.list.d/{self.source.name}.sources" if self.source else ""

    def source_files(self, entries: Sequence[Entry]) -> dict[str, str]:
        """Path and content of the files that declare the source; none where the host has them."""
        if self.state == "absent":
            return {}
        if self.archive:
            file = self.archive.file(self.etc_apt)
            text = self.archive.text(
                entries, own_file=file, lists=self.lists, os_release=self.os_release
            )
            return {file: text} if text else {}
        if self.source is None or declared_elsewhere(self.source, entries, self.source_file):
            return {}
        keyring = self.source.keyring(self.keyrings)
        return {
            keyring: self.source.key_text(),
            self.source_file: self.source.text(keyring=keyring),
        }


@dataclass(frozen=True)
class State:
    """The part of a host that a request is about; two of them are the diff."""

    packages: dict[str, str | None]
    held: tuple[str, ...]
    files: dict[str, str]

    def as_text(self) -> str:
        """For a diff."""
        lines = [f"{name} {version or '-'}" for name, version in sorted(self.packages.items())]
        lines += [f"hold {name}" for name in self.held]
        for path, content in sorted(self.files.items()):
            lines += [f"{path}:", *(f"  {line}" for line in content.splitlines())]
        return "\n".join(lines) + "\n"


@dataclass
class Outcome:
    """What a run found and did."""

    before: State
    after: State
    steps: list[str] = field(default_factory=list)
    kernels_before: list[str] = field(default_factory=list)
    kernels_after: list[str] = field(default_factory=list)
    source_files: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether anything was, or would be, done."""
        return bool(self.steps)


ANY_VERSION = "(the source's newest)"
"""Stands in a prediction for the version of a package that is wanted in any version."""


def look(request: Request, database: Database, files: Mapping[str, str]) -> State:
    """The state before: of the packages, their holds and the source's files."""
    names = [package.name for package in request.packages]
    return State(
        packages={name: database.version(name) for name in names},
        held=tuple(sorted(name for name in names if database.held(name))),
        files={path: text for path in files if (text := read_text(path)) is not None},
    )


def predict(request: Request, before: State, files: Mapping[str, str]) -> State:
    """The state after, from the request and the state before alone: no candidates are asked."""
    if request.state == "absent":
        nothing: dict[str, str | None] = dict.fromkeys(before.packages)
        return State(packages=nothing, held=(), files=dict(before.files))
    packages: dict[str, str | None] = {
        package.name: package.version or before.packages[package.name] or ANY_VERSION
        for package in request.packages
    }
    held = tuple(sorted({*before.held, *request.to_hold}))
    return State(packages=packages, held=held, files=dict(files))


def plan(request: Request, before: State, after: State, *, broken: Sequence[str]) -> list[str]:
    """The steps from the state before to the one after; none where they are the same."""
    steps = []
    ours = {package.name for package in request.packages}
    work = before.packages != after.packages
    if (work and broken) or ours & set(broken):
        steps.append("repair")
    if before.files != after.files:
        steps.append("source")
    if work:
        steps.append("remove" if request.state == "absent" else "install")
    if before.held != after.held and request.state == "present":
        steps.append("hold")
    return steps


def parse_madison(text: str) -> dict[str, list[tuple[str, str]]]:
    """Versions and their sources by package, from `apt-cache madison`."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        match = _MADISON.match(line)
        if match and not match[3].endswith("Sources"):
            found.setdefault(match[1], []).append(
                (match[2], match[3].removesuffix(" Packages").strip())
            )
    return found


def _explained(error: AptError) -> AptError:
    """With what the compiler said, where a kernel module was not built."""
    said = dkms.compiler_said() if error.kind in _BUILD else None
    if said is None:
        return error
    more = AptError(
        what=error.what,
        where=error.where,
        why=f"{error.why} / {said[0]}: {' / '.join(said[1])}",
        fix=error.fix,
    )
    more.kind = error.kind
    return more


def _checked(result: CommandResult, *, stage: str, where: str = "") -> CommandResult:
    """The result, where the program did what it was to do.

    Raises:
        AptError: it did not, and what it said.
    """
    if result.rc < 0:
        raise AptError(
            what=f"{stage} failed: {result.argv[0]} was killed by signal {-result.rc}",
            where=where,
            why="somebody or the kernel's memory guard ended it",
            fix="see the journal for why; then run again, it goes on from here",
        )
    if not result.ok:
        raise _explained(failure(result.stdout + result.stderr, stage=stage, where=where))
    return result


class Apt:
    """apt-get and its relatives, with what every call has in common."""

    def __init__(self, *, lock_timeout: int, timeout: int) -> None:
        """Bound how long a lock may be held by others, and how long a call may take."""
        self._deadline = time.monotonic() + lock_timeout
        self._timeout = timeout

    def call(self, argv: Sequence[str]) -> CommandResult:
        """Run it when nobody else is at work; again when somebody came between."""
        while True:
            left = max(0.0, self._deadline - time.monotonic())
            apt_lock.wait(left)
            result = run(argv, timeout=self._timeout, env=_ENVIRONMENT)
            if result.ok:
                return result
            known = recognise(result.stdout + result.stderr)
            if not known or known[0].kind != "locked" or time.monotonic() >= self._deadline:
                return result
            time.sleep(1)

    def must(self, argv: Sequence[str], *, stage: str, where: str = "") -> CommandResult:
        """Run it, and raise what apt said where it failed."""
        return _checked(self.call(argv), stage=stage, where=where)

    def simulate(self, *arguments: str) -> list[Change]:
        """What a changing apt-get would do. It needs no lock."""
        result = run(["apt-get", "-s", "-q", *arguments], timeout=self._timeout, env=_ENVIRONMENT)
        return apt_simulation.parse(_checked(result, stage="simulating the installation").stdout)

    def get(self, *arguments: str, stage: str, where: str = "") -> CommandResult:
        """A changing apt-get."""
        return self.must(
            ["apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=30", *_KEEP_FILES, *arguments],
            stage=stage,
            where=where,
        )

    def known(self, packages: Sequence[Wanted]) -> set[Wanted]:
        """Which of the packages apt's lists have in the wanted version."""
        if not packages:
            return set()
        names = [package.name for package in packages]
        told = run(["apt-cache", "madison", *names], timeout=60)
        offered = parse_madison(told.stdout)
        return {
            package
            for package in packages
            if (versions := [version for version, _ in offered.get(package.name, [])])
            and (package.version is None or package.version in versions)
        }

    def update_source(self, file: str, name: str) -> None:
        """Fetch the index of one source, and leave the others as they are."""
        self.get(
            "-o",
            f"Dir::Etc::sourcelist={file}",
            "-o",
            "Dir::Etc::sourceparts=/dev/null",
            "-o",
            "APT::Get::List-Cleanup=false",
            "-o",
            "APT::Update::Error-Mode=any",
            "update",
            stage="reading the package source",
            where=name,
        )

    def update_all(self) -> str:
        """Fetch every index; what it warned about, for the case that a package is missing."""
        result = self.get("update", stage="reading the package sources")
        return result.stdout + result.stderr

    def configure(self) -> None:
        """Finish what an interrupted or failed transaction left unpacked.

        It may fail for the very reason that the coming transaction removes (missing headers, a
        library that is half there); so that is not the end, the state after it is what counts.
        """
        self.call(["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])


def _write(path: str, text: str) -> None:
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(path, text, mode=0o644)
    except OSError as error:
        raise LlmetalError(
            what="the package source cannot be written",
            where=path,
            why=error.strerror or str(error),
            fix="see that /etc is writable and has room",
        ) from error


def _refresh(
    request: Request, apt: Apt, *, source_changed: bool, lists: str, stale: bool = False
) -> None:
    """Have apt know every wanted version, with as little fetching as possible."""
    missing = set(request.packages) - apt.known(request.packages)
    if not missing and not source_changed:
        return
    if request.archive and source_changed and not stale:
        apt.update_source(request.archive.file(request.etc_apt), request.archive.name)
        missing = set(request.packages) - apt.known(request.packages)
    elif request.source is None and source_changed:
        apt.update_all()
    if request.source:
        file = lists or request.source_file
        apt.update_source(file, request.source.name)
        missing = set(request.packages) - apt.known(request.packages)
    if not missing:
        return
    warnings = apt.update_all()
    missing = set(request.packages) - apt.known(request.packages)
    if missing:
        names = ", ".join(sorted(package.argument for package in missing))
        lines = [line for line in warnings.splitlines() if line.startswith(("W:", "Err:", "E:"))]
        raise LlmetalError(
            what="installing packages failed: a package of the lock is in none of the sources",
            where=names,
            why="; ".join(lines[:3]) or "apt's lists are fresh and do not have it",
            fix="check the address and suite of its source; where the source has dropped the"
            " version, plan anew",
        )


def _check(request: Request) -> Database:
    """The state after, and that it is what was asked for."""
    database = dpkg.query()
    unmet = [p for p in request.packages if not p.met_by(database)]
    ours = {package.name for package in request.packages} & set(database.broken)
    if unmet or ours:
        has = ", ".join(f"{p.name} {database.version(p.name) or 'not installed'}" for p in unmet)
        raise LlmetalError(
            what="installing packages failed: apt said that it was done, and it is not",
            where=", ".join(sorted(ours)),
            why=f"dpkg has {has or 'them half configured'}",
            fix="run `dpkg --configure -a` on the host and see what it says",
        )
    return database


def _survey(request: Request, files: Mapping[str, str]) -> Outcome:
    """What there is and what is to be done."""
    database = dpkg.query()
    before = look(request, database, files)
    after = predict(request, before, files)
    steps = plan(request, before, after, broken=database.broken)
    kernels = dpkg.kernels(database)
    return Outcome(before, after, steps, kernels, kernels, sorted(files))


def _remove(request: Request, apt: Apt) -> None:
    database = dpkg.query()
    names = [p.name for p in request.packages if p.name in database.packages]
    options = ["--allow-change-held-packages", "remove"]
    apt.get(*options, *names, stage="removing packages")


_EXACTLY = ["--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages"]


def _install(request: Request, apt: Apt, *, options: Sequence[str]) -> None:
    """The one transaction; it also completes what an earlier one left half done."""
    database = dpkg.query()
    if half := database.half_installed:
        # One that was to stay in its version apt would not unpack again by itself. Where it was
        # to get another one this may fail, and the transaction itself brings that.
        apt.call(
            [
                *("apt-get", "-y", "-q", *_KEEP_FILES, *options, *_EXACTLY),
                *("--fix-broken", "--reinstall", "--no-remove", "install", *half),
            ]
        )
        database = dpkg.query()
    arguments = _arguments(request, database, options)
    _guard(request, apt, database, arguments)
    apt.get(*arguments, stage="installing packages")


_RELATION = re.compile(r"([a-z0-9][a-z0-9+.-]+)(?::\w+)?\s*(\([^)]*\))?")


def _relations(text: str) -> set[str]:
    """The names in a relation field that stand there without a version."""
    found = (_RELATION.match(part.strip()) for part in text.split(","))
    return {match[1] for match in found if match and not match[2]}


def _in_the_way(request: Request, database: Database) -> list[str]:
    """Installed packages that conflict with those asked for, of those that may be removed.

    The preferences for the set's version speak for the other flavour of it too, and then apt takes
    neither away by itself.
    """
    wanted = [p.argument for p in request.packages if not p.met_by(database)]
    if not request.limits.replaces or not wanted:
        return []
    told = run(["apt-cache", "show", *wanted], timeout=60)
    conflicts: set[str] = set()
    for line in told.stdout.splitlines():
        if line.startswith("Conflicts:"):
            conflicts |= _relations(line.partition(":")[2])
    installed = run(["dpkg-query", "-W", "-f=${Package}\t${Provides}\n"], timeout=60)
    names = {package.name for package in request.packages}
    found = []
    for line in installed.stdout.splitlines():
        name, _tab, provides = line.partition("\t")
        provided = {match[1] for p in provides.split(",") if (match := _RELATION.match(p.strip()))}
        if (
            name not in names
            and database.version(name)
            and conflicts & {name, *provided}
            and request.limits.may_remove(name)
        ):
            found.append(name)
    return sorted(set(found))


def _arguments(request: Request, database: Database, options: Sequence[str]) -> list[str]:
    """Those of the one transaction, for apt's simulation and for the real one."""
    names = {package.name for package in request.packages}
    return [
        *options,
        *_EXACTLY,
        *(["--fix-broken"] if database.broken else []),
        "install",
        *(package.argument for package in request.packages),
        *(name for name in database.half_installed if name not in names),
        *(f"{name}-" for name in _in_the_way(request, database)),
    ]


def _guard(request: Request, apt: Apt, database: Database, arguments: Sequence[str]) -> None:
    """Simulate the transaction, and stop where it does more than was asked for."""
    apt_simulation.refuse(
        apt.simulate(*arguments),
        asked={package.name: package.version for package in request.packages},
        holds=database.holds,
        limits=request.limits,
    )


def _apply(request: Request, steps: Sequence[str], apt: Apt) -> None:
    """Install or remove, after what an earlier transaction left is in order."""
    if dpkg.interrupted() or "repair" in steps:
        apt.configure()
    if request.state == "absent":
        _remove(request, apt)
        return
    lists = ""
    if request.source:
        entries = read_entries(request.etc_apt)
        entry = declared_elsewhere(request.source, entries, request.source_file)
        lists = entry.file if entry else ""
    _refresh(request, apt, source_changed="source" in steps, lists=lists)
    versions = [package.version for package in request.packages if package.version]
    with pinned(versions, etc_apt=request.etc_apt) as options:
        try:
            _install(request, apt, options=options)
        except AptError as error:
            if error.kind not in _STALE:
                raise
            # The index that apt has is older than the files of the repository: read it again.
            _refresh(request, apt, source_changed=True, lists=lists, stale=True)
            _install(request, apt, options=options)


def _foresee(request: Request, outcome: Outcome) -> None:
    """In check mode, stop where the transaction would be stopped, as far as apt knows it now."""
    if "install" not in outcome.steps or {"repair", "source"} & set(outcome.steps):
        return
    apt = Apt(lock_timeout=0, timeout=request.timeout)
    if set(request.packages) - apt.known(request.packages):
        return
    versions = [package.version for package in request.packages if package.version]
    with pinned(versions, etc_apt=request.etc_apt) as options:
        database = dpkg.query()
        _guard(request, apt, database, _arguments(request, database, options))


def converge(request: Request, *, check_mode: bool) -> Outcome:
    """Bring a host to what is asked for, or say what that would take.

    Raises:
        LlmetalError: it cannot be done; it says why and what to do.
    """
    files = request.source_files(read_entries(request.etc_apt) if request.has_source else [])
    outcome = _survey(request, files)
    if request.spare_containers and {"install", "remove", "repair"} & set(outcome.steps):
        gpu_containers.refuse_packages()
    if check_mode:
        _foresee(request, outcome)
        return outcome
    if not outcome.steps:
        return outcome
    if apt_lock.wait(request.lock_timeout) > 0.1:  # noqa: PLR2004 - somebody was at work
        outcome = _survey(request, files)
    apt = Apt(lock_timeout=request.lock_timeout, timeout=request.timeout)
    if "source" in outcome.steps:
        for path, text in files.items():
            _write(path, text)
    if {"install", "remove", "repair"} & set(outcome.steps):
        _apply(request, outcome.steps, apt)
    if request.to_hold and request.state == "present" and outcome.steps != ["source"]:
        apt.must(["apt-mark", "hold", *request.to_hold], stage="holding packages")
    if request.state == "present":
        database = _check(request)
        outcome.after = look(request, database, files)
        outcome.kernels_after = dpkg.kernels(database)
    return outcome
