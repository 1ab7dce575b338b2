# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""package_set: prediction and plan as pure functions, and the whole against a made host."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_lock,
    dpkg,
    gpu_containers,
    package_set,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_archive import Archive
from ansible_collections.llmetal.inference.plugins.module_utils.apt_simulation import Limits
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import Source
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.package_set import (
    ANY_VERSION,
    Request,
    State,
    Wanted,
    converge,
    parse_madison,
    plan,
    predict,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXTURES = Path(__file__).parents[2] / "fixtures"
KEY = (FIXTURES / "openpgp" / "sandbox_ed25519" / "key.asc").read_text()
FINGERPRINT = json.loads((FIXTURES / "openpgp" / "sandbox_ed25519" / "expected.json").read_text())[
    0
]
DRIVER = Wanted("nvidia-driver-cuda", "580.159.04-1", hold=True)
SOURCE = {
    "name": "cuda",
    "uri": "http://mirror.example/cuda/",
    "suite": "/",
    "components": [],
    "key": KEY,
    "fingerprint": FINGERPRINT,
}


@dataclass
class MadeHost:
    """A host with a package database, package lists and a repository, but no apt."""

    installed: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    broken: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    repository: dict[str, list[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    simulation: str = ""
    shown: str = ""

    def run(self, argv: Sequence[str], **_: object) -> CommandResult:
        """Stand in for every program."""
        words = list(argv)
        if words[0] == "dpkg-query":
            return self._ok(words, self._database())
        if words[:2] == ["apt-cache", "madison"]:
            rows = [
                f" {n} | {v} | http://x Packages" for n in words[2:] for v in self.lists.get(n, [])
            ]
            return self._ok(words, "\n".join(rows))
        if words[:2] == ["apt-cache", "show"]:
            return self._ok(words, self.shown)
        if words[:2] == ["apt-get", "-s"]:
            return self._ok(words, self.simulation)
        self.calls.append(words)
        if "install" in words and self.failures:
            return CommandResult(tuple(words), 100, "", self.failures.pop(0))
        self._change(words)
        return self._ok(words, "")

    def _change(self, words: list[str]) -> None:
        if "update" in words:
            self.lists = {**self.lists, **self.repository}
        elif "--configure" in words:
            self.broken = {n: s for n, s in self.broken.items() if s == "half-installed"}
        elif "install" in words:
            for word in words[words.index("install") + 1 :]:
                name, _equals, version = word.partition("=")
                if name.endswith("-"):
                    self.installed.pop(name[:-1])
                    continue
                self.installed[name] = version or self.lists[name][0]
                self.broken.pop(name, None)
        elif "remove" in words:
            for name in words[words.index("remove") + 1 :]:
                self.installed.pop(name, None)
        elif "hold" in words:
            self.held |= set(words[2:])

    def steps(self) -> list[str]:
        """What was called, in short."""
        words = ("update", "install", "remove", "hold", "--configure")
        return [next(w for w in words if w in call) for call in self.calls]

    def _database(self) -> str:
        return "".join(
            f"{name}\tamd64\t{version}\t{'hold' if name in self.held else 'install'}\t"
            f"{self.broken.get(name, 'installed')}\n"
            for name, version in self.installed.items()
        )

    @staticmethod
    def _ok(words: list[str], stdout: str) -> CommandResult:
        return CommandResult(tuple(words), 0, stdout, "")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> MadeHost:
    """A made host in place of this machine."""
    made = MadeHost()
    monkeypatch.setattr(package_set, "run", made.run)
    monkeypatch.setattr(dpkg, "run", made.run)
    monkeypatch.setattr(dpkg, "interrupted", lambda: False)
    monkeypatch.setattr(dpkg, "kernels", lambda _database: ["6.1.0-40-amd64"])
    monkeypatch.setattr(apt_lock, "wait", lambda _seconds: 0.0)
    return made


def request_of(tmp_path: Path, *packages: Wanted, **values: Any) -> Request:  # noqa: ANN401 - any field
    """A request whose files are below a folder of the test."""
    source = values.pop("source", None)
    return Request(
        packages=packages,
        source=Source.of(source),
        etc_apt=str(tmp_path / "apt"),
        keyrings=str(tmp_path / "apt/keyrings"),
        **values,
    )


def test_installs_once(host: MadeHost, tmp_path: Path) -> None:
    """A bare host gets source, packages and hold; a second run calls nothing."""
    host.repository = {"nvidia-driver-cuda": ["595.91.07-1", "580.159.04-1"]}
    request = request_of(tmp_path, DRIVER, source=SOURCE)
    outcome = converge(request, check_mode=False)
    assert outcome.steps == ["source", "install", "hold"]
    assert host.steps() == ["update", "install", "hold"]
    assert outcome.after.packages == {"nvidia-driver-cuda": "580.159.04-1"}
    text = (tmp_path / "apt/sources.list.d/cuda.sources").read_text()
    assert f"Signed-By: {tmp_path}/apt/keyrings/cuda.asc" in text
    host.calls.clear()
    again = converge(request, check_mode=False)
    assert not again.changed
    assert host.calls == []


def test_reads_only_the_given_source(host: MadeHost, tmp_path: Path) -> None:
    """The indexes of other sources are left alone where the given one has it all."""
    host.repository = {"nvidia-driver-cuda": ["580.159.04-1"]}
    converge(request_of(tmp_path, DRIVER, source=SOURCE), check_mode=False)
    (update,) = [call for call in host.calls if "update" in call]
    assert f"Dir::Etc::sourcelist={tmp_path}/apt/sources.list.d/cuda.sources" in update
    assert "Dir::Etc::sourceparts=/dev/null" in update


ARCHIVE = {"name": "debian12-archive", "components": ["contrib", "non-free"]}


def test_components_of_the_archive(host: MadeHost, tmp_path: Path) -> None:
    """Those that the host lacks are declared once, in a file that the receipt gets."""
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt/sources.list").write_text("deb http://x/debian bookworm main contrib\n")
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    host.repository = {"nvidia-driver-cuda": ["580.159.04-1"]}
    request = request_of(
        tmp_path,
        DRIVER,
        archive=Archive.of(ARCHIVE),
        lists=str(tmp_path / "lists"),
        os_release=str(tmp_path / "os-release"),
    )
    file = f"{tmp_path}/apt/sources.list.d/debian12-archive.sources"
    foreseen = converge(request, check_mode=True)
    assert foreseen.steps == ["source", "install", "hold"]
    assert "  Components: non-free" in foreseen.after.as_text().splitlines()
    assert not Path(file).exists()
    outcome = converge(request, check_mode=False)
    assert outcome.source_files == [file]
    assert host.steps() == ["update", "install", "hold"]
    assert f"Dir::Etc::sourcelist={file}" in host.calls[0]
    again = converge(request, check_mode=False)
    assert not again.changed
    assert again.source_files == [file]


@pytest.mark.parametrize("check_mode", [True, False])
def test_containers_with_gpus(
    host: MadeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, check_mode: bool
) -> None:
    """Nothing is installed while one runs; where nothing is to be installed they do not matter."""
    running = [gpu_containers.GpuContainer("4f1c0ffee123", "docker", 4711, "vllm", scope=True)]
    monkeypatch.setattr(gpu_containers, "endangered", lambda _proc: running)
    request = request_of(tmp_path, DRIVER, spare_containers=True)
    with pytest.raises(LlmetalError, match=r"docker 4f1c0ffee123 \(vllm\).*daemon-reload.*drain"):
        converge(request, check_mode=check_mode)
    assert host.calls == []
    host.installed = {"nvidia-driver-cuda": "580.159.04-1"}
    assert converge(request, check_mode=check_mode).steps == ["hold"]


def test_exact_versions_in_one_transaction(host: MadeHost, tmp_path: Path) -> None:
    """All packages are named in one call, each in its version; what is there may go down."""
    host.installed = {"nvidia-driver-cuda": "595.91.07-1"}
    host.lists = {"nvidia-driver-cuda": ["595.91.07-1", "580.159.04-1"], "gcc": ["4:12.2.0-3"]}
    converge(request_of(tmp_path, Wanted("gcc"), DRIVER), check_mode=False)
    (install,) = [call for call in host.calls if "install" in call]
    assert install[install.index("install") + 1 :] == ["gcc", "nvidia-driver-cuda=580.159.04-1"]
    assert "--allow-downgrades" in install
    assert "--no-install-recommends" in install


def test_check_mode_needs_no_candidates(host: MadeHost, tmp_path: Path) -> None:
    """On a bare host the prediction comes from the package database alone."""
    request = request_of(tmp_path, DRIVER, Wanted("gcc"), source=SOURCE)
    outcome = converge(request, check_mode=True)
    assert outcome.changed
    assert outcome.after.packages == {"nvidia-driver-cuda": "580.159.04-1", "gcc": ANY_VERSION}
    assert outcome.after.held == ("nvidia-driver-cuda",)
    assert host.calls == []
    assert not (tmp_path / "apt").exists()


def test_finishes_an_interrupted_transaction(host: MadeHost, tmp_path: Path) -> None:
    """A package that is half configured is not installed, and is repaired first."""
    host.installed = {"nvidia-driver-cuda": "580.159.04-1"}
    host.broken = {"nvidia-driver-cuda": "unpacked"}
    host.lists = {"nvidia-driver-cuda": ["580.159.04-1"]}
    outcome = converge(request_of(tmp_path, DRIVER), check_mode=False)
    assert outcome.steps == ["repair", "install", "hold"]
    assert host.steps()[0] == "--configure"


def test_unpacks_again_what_is_half_there(host: MadeHost, tmp_path: Path) -> None:
    """A library that was being unpacked is named, for apt would not touch it by itself."""
    host.installed = {"nvidia-driver-cuda": "580.159.04-1", "libnvidia-ml1": "580.95.05-1"}
    host.broken = {"nvidia-driver-cuda": "unpacked", "libnvidia-ml1": "half-installed"}
    host.lists = {"nvidia-driver-cuda": ["580.159.04-1"], "libnvidia-ml1": ["580.159.04-1"]}
    converge(request_of(tmp_path, DRIVER), check_mode=False)
    again, install = [call for call in host.calls if "install" in call]
    assert {"--fix-broken", "--reinstall"} <= set(again)
    assert again[-1] == "libnvidia-ml1"
    assert "--reinstall" not in install
    assert host.broken == {}


def test_killed_apt(host: MadeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apt that was killed is said to be, whatever it printed last."""
    host.lists = {"nvidia-driver-cuda": ["580.159.04-1"]}
    run = host.run

    def kill(argv: Sequence[str], **kwargs: object) -> CommandResult:
        words = tuple(argv)
        return (
            CommandResult(words, -9, "Unpacking", "") if "install" in words else run(argv, **kwargs)
        )

    monkeypatch.setattr(package_set, "run", kill)
    with pytest.raises(LlmetalError, match=r"killed by signal 9.*run again"):
        converge(request_of(tmp_path, DRIVER), check_mode=False)


def test_killed_between_install_and_hold(host: MadeHost, tmp_path: Path) -> None:
    """Only what is missing is done."""
    host.installed = {"nvidia-driver-cuda": "580.159.04-1"}
    outcome = converge(request_of(tmp_path, DRIVER), check_mode=False)
    assert outcome.steps == ["hold"]
    assert host.steps() == ["hold"]


def test_stale_index_is_read_again(host: MadeHost, tmp_path: Path) -> None:
    """A file of another size than the index says costs one more update, not the run."""
    host.lists = host.repository = {"nvidia-driver-cuda": ["580.159.04-1"]}
    host.failures = ["E: Failed to fetch http://x  File has unexpected size (1 != 2)."]
    converge(request_of(tmp_path, DRIVER), check_mode=False)
    assert host.steps() == ["install", "update", "install", "hold"]
    host.installed.clear()
    host.failures = ["E: Failed to fetch http://x  File has unexpected size (1 != 2)."] * 2
    with pytest.raises(LlmetalError, match="of two moments"):
        converge(request_of(tmp_path, DRIVER), check_mode=False)


def test_unknown_version(host: MadeHost, tmp_path: Path) -> None:
    """A version that no source has is named."""
    host.repository = {"nvidia-driver-cuda": ["595.91.07-1"]}
    with pytest.raises(LlmetalError, match=r"nvidia-driver-cuda=580\.159\.04-1.*plan anew"):
        converge(request_of(tmp_path, DRIVER), check_mode=False)
    assert host.steps() == ["update"]


def test_apt_says_done_and_is_not(
    host: MadeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package database has the last word."""
    host.lists = {"nvidia-driver-cuda": ["580.159.04-1"]}
    run = host.run

    def lie(argv: Sequence[str], **kwargs: object) -> CommandResult:
        return CommandResult(tuple(argv), 0, "", "") if "install" in argv else run(argv, **kwargs)

    monkeypatch.setattr(package_set, "run", lie)
    with pytest.raises(LlmetalError, match="and it is not"):
        converge(request_of(tmp_path, DRIVER), check_mode=False)


def test_remove(host: MadeHost, tmp_path: Path) -> None:
    """What is not there any more is not removed again."""
    host.installed = {"nvidia-driver-cuda": "580.159.04-1"}
    request = request_of(tmp_path, Wanted("nvidia-driver-cuda"), Wanted("gone"), state="absent")
    assert converge(request, check_mode=False).steps == ["remove"]
    assert host.calls[-1][-1] == "nvidia-driver-cuda"
    assert not converge(request, check_mode=False).changed


def test_stops_before_a_kernel_moves(host: MadeHost, tmp_path: Path) -> None:
    """What apt's simulation shows stops the transaction before it begins, in check mode too."""
    host.lists = {DRIVER.name: ["580.159.04-1"]}
    host.simulation = "Inst linux-image-6.1.0-41-amd64 (6.1.158-1 Debian:12/stable [amd64])\n"
    for check_mode in (True, False):
        with pytest.raises(LlmetalError, match="move a kernel of the host"):
            converge(request_of(tmp_path, DRIVER), check_mode=check_mode)
    assert host.steps() == []


def test_other_flavour_is_taken_away(host: MadeHost, tmp_path: Path) -> None:
    """What conflicts with the set is removed in its transaction, if it may be."""
    host.installed = {"nvidia-kernel-dkms": "580.159.04-1", "apache2": "2"}
    host.lists = {DRIVER.name: ["580.159.04-1"]}
    host.shown = "Package: x\nConflicts: nvidia-kernel-dkms, apache2, old (<< 2)\n"
    limits = Limits(replaces=("nvidia-*",))
    converge(request_of(tmp_path, DRIVER, limits=limits), check_mode=False)
    call = next(call for call in host.calls if "install" in call)
    assert call[-2:] == ["nvidia-driver-cuda=580.159.04-1", "nvidia-kernel-dkms-"]


def test_second_declaration_is_refused(host: MadeHost, tmp_path: Path) -> None:
    """Two declarations of one repository make apt refuse everything: it is found before."""
    folder = tmp_path / "apt/sources.list.d"
    folder.mkdir(parents=True)
    (folder / "old.list").write_text("deb http://mirror.example/cuda /\n")
    with pytest.raises(LlmetalError, match=r"old\.list"):
        converge(request_of(tmp_path, DRIVER, source=SOURCE), check_mode=True)
    assert host.calls == []


def test_second_declaration_that_serves(host: MadeHost, tmp_path: Path) -> None:
    """One that trusts the very key is used, and none is stacked on it."""
    folder = tmp_path / "apt/sources.list.d"
    folder.mkdir(parents=True)
    keyring = tmp_path / "own.asc"
    keyring.write_text(KEY)
    (folder / "own.list").write_text(f"deb [signed-by={keyring}] http://mirror.example/cuda /\n")
    host.repository = {"nvidia-driver-cuda": ["580.159.04-1"]}
    outcome = converge(request_of(tmp_path, DRIVER, source=SOURCE), check_mode=False)
    assert outcome.steps == ["install", "hold"]
    (update,) = [call for call in host.calls if "update" in call]
    assert f"Dir::Etc::sourcelist={folder}/own.list" in update
    assert sorted(path.name for path in folder.iterdir()) == ["own.list"]


PARAMS: dict[str, Any] = {
    "packages": [{"name": "a1", "version": "1"}, {"name": "b1", "version": "1", "hold": False}],
    "state": "present",
    "hold": True,
    "source": None,
    "lock_timeout": 1,
    "timeout": 1,
}


def test_request() -> None:
    """A package may say for itself whether it is held."""
    assert Request.of(PARAMS).to_hold == ["a1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packages": [{"name": "--force"}]}, "no name of a package"),
        ({"packages": [{"name": "a1", "version": "1 2"}]}, "no version of a1"),
        ({"packages": [{"name": "a1"}, {"name": "a1"}]}, "asked for twice: a1"),
        ({"source": {**SOURCE, "name": "../x"}}, "no name for a package source"),
        ({"source": {**SOURCE, "key": None}}, "has no key"),
        ({"source": {**SOURCE, "fingerprint": "00"}}, "not the expected one"),
        ({"source": {**SOURCE, "uri": "http://x /"}}, "blank"),
    ],
)
def test_bad_requests(change: dict[str, Any], message: str) -> None:
    """What cannot be meant is refused before anything is looked at."""
    with pytest.raises(LlmetalError, match=message):
        Request.of({**PARAMS, **change})


def test_source_of_the_distribution() -> None:
    """A source without an address stands for what the host has."""
    assert Request.of({**PARAMS, "source": {"name": "debian", "uri": None}}).source is None


def test_unrelated_breakage_is_left_alone() -> None:
    """Where nothing is to be done, nothing is repaired."""
    request = Request(packages=(Wanted("a1", "1"),))
    state = State({"a1": "1"}, (), {})
    after = predict(request, state, {})
    assert plan(request, state, after, broken=["other"]) == []
    assert plan(request, State({"a1": None}, (), {}), after, broken=["other"]) == [
        "repair",
        "install",
    ]


@pytest.mark.parametrize("name", ["debian12", "debian13"])
def test_madison(name: str) -> None:
    """Recorded answers of apt-cache madison."""
    folder = FIXTURES / "madison" / name
    expected = json.loads((folder / "expected.json").read_text())
    found = parse_madison((folder / "output.txt").read_text())
    assert {package: [list(row) for row in rows] for package, rows in found.items()} == expected
