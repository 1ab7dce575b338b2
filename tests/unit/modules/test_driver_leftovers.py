# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""driver_leftovers: what is attributed to whom, a pure diagnosis, and removal on a made host."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_lock,
    driver_diagnosis,
    driver_leftovers,
    driver_removal,
)
from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult
from ansible_collections.llmetal.inference.plugins.module_utils.driver_diagnosis import (
    Evidence,
    diagnose,
    in_words,
    parse_verify,
    wants_reinstall,
)
from ansible_collections.llmetal.inference.plugins.module_utils.driver_leftovers import (
    Diversion,
    Leftovers,
    Package,
    Request,
    Stays,
    is_driver_package,
    look,
    parse_diversions,
    parse_log,
    parse_packages,
    reference,
    strangers,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOW, OLD = "580.159.04", "570.211.01"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
KERNEL = "6.1.0-40-amd64"
HEALTHY = Evidence(
    kernel=KERNEL,
    release=NOW,
    loaded=NOW,
    on_disk=NOW,
    user_space=NOW,
    packages=(Package("libnvidia-ml1", f"{NOW}-1", "installed"),),
    headers={"build": True, "complete": True},
    headers_version="6.1.1-1",
    secure_boot="disabled",
)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-driver-580-server-open",
        "nvidia-kernel-open-dkms",
        "libnvidia-ml1:i386",
        "libnvidia-compute-535",
        "libcuda1",
        "cuda-drivers",
        "cuda-drivers-580",
        "nvidia-fabricmanager-570",
        "nvlink5-580",
        "nvlsm",
        "xserver-xorg-video-nvidia",
        "linux-modules-nvidia-580-server-open-6.8.0-60-generic",
        "firmware-nvidia-gsp",
    ],
)
def test_package_of_the_driver(name: str) -> None:
    """The driver's packages of every source are known by name."""
    assert is_driver_package(name)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-container-toolkit",
        "libnvidia-container1",
        "nvidia-cuda-toolkit",
        "cuda-toolkit-13-1",
        "cuda-drivers2",
        "nvidia-driver-local-repo-debian12-580.159.04",
        "nvidia-fs-dkms",
        "linux-image-6.1.0-40-amd64",
        "linux-headers-6.1.0-40-amd64",
        "linux-modules-6.8.0-60-generic",
        "libcudart13",
    ],
)
def test_package_of_something_else(name: str) -> None:
    """Toolkits, container tools, package sources and kernels are not the driver's."""
    assert not is_driver_package(name)


@pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "driver_log").iterdir()))
def test_log_of_the_installer(case: str) -> None:
    """Files, links and what was put aside, in the order of the log."""
    folder = FIXTURES / "driver_log" / case
    entries = parse_log((folder / "log.txt").read_text())
    found = [[one.kind, one.path, one.target] for one in entries]
    assert found == json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "dpkg_divert").iterdir()))
def test_diversions(case: str) -> None:
    """A package's diversions and local ones."""
    folder = FIXTURES / "dpkg_divert" / case
    found = [[d.path, d.to, d.by] for d in parse_diversions((folder / "list.txt").read_text())]
    assert found == json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "dpkg_verify").iterdir()))
def test_verify(case: str) -> None:
    """Gone and overwritten files, but no configuration."""
    folder = FIXTURES / "dpkg_verify" / case
    found = parse_verify((folder / "verify.txt").read_text())
    assert found == json.loads((folder / "expected.json").read_text())


def test_release_is_that_of_most_packages() -> None:
    """Parts with a pace of their own do not count; the release that is asked for goes before."""
    packages = [
        Package("libcuda1", f"{NOW}-1", "installed"),
        Package("nvidia-smi", f"{NOW}-1", "installed"),
        Package("libnvidia-ml1", f"{OLD}-1", "installed"),
        Package("nvidia-settings", "535.171.04-1", "installed"),
        Package("nvidia-modprobe", "535.171.04-1", "installed"),
        Package("nvlsm", "2025.06.11-1", "installed"),
    ]
    assert reference(packages) == NOW
    assert reference(packages, OLD) == OLD
    assert reference([]) is None


def test_strangers() -> None:
    """Half-done packages, other releases, and the same release from another source."""
    keep = {"libcuda1": f"{NOW}-1", "nvlsm": "2025.06.11-1"}
    right = [
        Package("libcuda1", f"{NOW}-1", "installed"),
        Package("libnvidia-ml1", f"{NOW}-1", "triggers-pending"),
        Package("nvidia-settings", "535.171.04-1", "installed"),
        Package("nvlsm", "2025.06.11-1", "installed"),
        Package("libnvidia-cfg1", f"{OLD}-1", "config-files"),
    ]
    wrong = [
        Package("libnvidia-compute-570", f"{OLD}-0ubuntu1", "installed"),
        Package("libnvidia-encode1", f"{NOW}-1~deb12u1", "installed"),
        Package("nvidia-persistenced", f"{NOW}-1", "half-configured"),
    ]
    assert strangers([*right, *wrong], Request(version=NOW, keep=keep)) == wrong


@dataclass
class MadeHost:
    """A host's file system in a folder, and what dpkg and its relatives say."""

    root: Path
    packages: list[Package] = field(default_factory=list)
    diversions: str = ""
    alternatives: str = ""
    calls: list[list[str]] = field(default_factory=list)
    refuses: str = ""

    def run(
        self, argv: Sequence[str], *, timeout: float, env: object = None, **_: object
    ) -> CommandResult:
        """Answer as the program would."""
        assert timeout > 0
        del env
        words = list(argv)
        self.calls.append(words)
        said = ""
        if words[0] == "dpkg-query":
            lines = [f"{p.name}\t{p.version}\t{p.status}" for p in self.packages]
            said = "\n".join([*lines, "vim\t2:9.0\tinstalled", "libcuda1\t\tnot-installed"])
        elif words[0] == "dpkg-divert" and "--list" in words:
            said = self.diversions
        elif words[0] == "dpkg-divert":
            self.diversions = ""
        elif words[0] == "update-alternatives" and "--get-selections" in words:
            said = self.alternatives
        elif words[0] == "update-alternatives":
            self.alternatives = ""
        elif words[0] == "dpkg" and "--purge" in words:
            self.packages = [
                p for p in self.packages if p.name not in words or p.name == self.refuses
            ]
            return CommandResult(
                tuple(words), int(bool(self.refuses)), "", self.refuses and "prerm failed"
            )
        return CommandResult(tuple(words), 0, said, "")

    def write(self, path: str, text: str = "x") -> None:
        """Write a file."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def link(self, path: str, target: str) -> None:
        """Make a link."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def owned(self, package: str, *paths: str) -> None:
        """Have dpkg list files of a package."""
        self.write(f"var/lib/dpkg/info/{package}.list", "".join(f"/{path}\n" for path in paths))

    def request(self, **more: object) -> Request:
        """What is asked for."""
        request = Request(version=NOW, keep={"libcuda1": f"{NOW}-1"}, root=str(self.root))
        return replace(request, **more)  # type: ignore[arg-type] # passed on


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeHost:
    """A host with a sound driver of packages."""
    made = MadeHost(tmp_path)
    for module in (driver_leftovers, driver_removal):
        monkeypatch.setattr(module, "run", made.run)
    monkeypatch.setattr(apt_lock, "wait", lambda _: 0.0)
    made.packages = [
        Package("libcuda1", f"{NOW}-1", "installed"),
        Package("libnvidia-ml1", f"{NOW}-1", "installed"),
        Package("nvidia-kernel-open-dkms", f"{NOW}-1", "installed"),
    ]
    made.write(f"{LIBRARIES}/libcuda.so.{NOW}")
    made.link(f"{LIBRARIES}/libcuda.so.1", f"libcuda.so.{NOW}")
    made.link(f"{LIBRARIES}/libnvidia-ml.so.1", f"libnvidia-ml.so.{NOW}")
    made.write(f"{LIBRARIES}/libnvidia-ml.so.{NOW}")
    made.write(f"{LIBRARIES}/libnvidia-container.so.1.17.4")
    made.write("usr/local/cuda/lib64/libcudart.so.13")
    made.write("usr/bin/nvidia-smi")
    made.write("etc/modprobe.d/llmetal-nvidia.conf", "blacklist nouveau\n")
    made.owned("libcuda1", f"{LIBRARIES}/libcuda.so.{NOW}", f"{LIBRARIES}/libcuda.so.1")
    # As a package of before the merged /usr lists its files.
    made.owned("libnvidia-ml1", f"{LIBRARIES.removeprefix('usr/')}/libnvidia-ml.so.{NOW}")
    made.owned("nvidia-kernel-open-dkms", f"usr/src/nvidia-{NOW}", "usr/bin/nvidia-smi")
    made.write(f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko", f"\0version={NOW}\0")
    made.write(f"var/lib/dkms/nvidia/{NOW}/build/make.log")
    return made


def test_sound_host_has_nothing_to_go(host: MadeHost) -> None:
    """Packages, their modules by DKMS, container tools and toolkits stay; nothing is called."""
    assert look(host.request()) == Leftovers()
    assert driver_removal.remove(host.request()) == Leftovers()
    assert {words[0] for words in host.calls} <= {
        "dpkg-query",
        "dpkg-divert",
        "update-alternatives",
    }


def test_installer_over_packages(host: MadeHost) -> None:
    """It goes by its log where it cannot remove itself, and the packages that it spoiled go too."""
    old_library = f"{LIBRARIES}/libcuda.so.{OLD}"
    host.write(old_library)
    host.write(f"lib/modules/{KERNEL}/kernel/drivers/video/nvidia.ko", f"\0version={OLD}\0")
    host.write(f"var/lib/dkms/nvidia/{OLD}/source")
    host.write("etc/modprobe.d/nvidia-installer-disable-nouveau.conf", "blacklist nouveau\n")
    host.write("var/lib/nvidia/100", "the file of a package")
    host.write(
        "var/lib/nvidia/log",
        f"{OLD}\nNVIDIA\n1: /{old_library}\n1234\n"
        "100: /etc/OpenCL/vendors/other.icd\n12 0644 0 0\n",
    )
    (host.root / "etc/OpenCL/vendors").mkdir(parents=True)

    found = look(host.request())
    assert found.runfile == "/var/lib/nvidia/log"
    assert [p.name for p in found.packages] == [p.name for p in host.packages]
    # With the packages gone, nobody builds the module of the right release either.
    assert found.dkms == (f"nvidia/{OLD}", f"nvidia/{NOW}")
    assert f"/{old_library}" in found.files
    # As things are, DKMS builds it; so it is none of another installation.
    assert look(host.request(), now=True).dkms == (f"nvidia/{OLD}",)

    assert driver_removal.remove(host.request()) == Leftovers()
    assert host.packages == []
    assert not (host.root / "var/lib/nvidia").exists()
    assert not (host.root / "var/lib/dkms/nvidia").exists()
    assert list((host.root / "lib/modules").rglob("*.ko")) == []
    assert (host.root / "etc/OpenCL/vendors/other.icd").read_text() == "the file of a package"
    assert (host.root / "usr/local/cuda/lib64/libcudart.so.13").exists()
    assert (host.root / f"{LIBRARIES}/libnvidia-container.so.1.17.4").exists()
    assert (host.root / "etc/modprobe.d/llmetal-nvidia.conf").exists()
    assert ["depmod", KERNEL] in host.calls
    assert ["ldconfig"] in host.calls


def test_interrupted_removal_is_finished(host: MadeHost) -> None:
    """Packages are gone already and the rest is not: what is left is still attributed."""
    host.packages = []
    host.owned("libcuda1")
    host.owned("libnvidia-ml1")
    host.owned("nvidia-kernel-open-dkms")
    found = look(host.request())
    assert found.modules == (f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko",)
    assert found.dkms == (f"nvidia/{NOW}",)
    assert "/usr/bin/nvidia-smi" in found.files
    assert driver_removal.remove(host.request()) == Leftovers()


def test_configuration_of_removed_packages_is_purged(host: MadeHost) -> None:
    """The rest of the driver stays where each package of it is right."""
    host.packages.append(Package("nvidia-fabricmanager-570", f"{OLD}-1", "config-files"))
    assert [p.name for p in look(host.request()).packages] == ["nvidia-fabricmanager-570"]
    assert driver_removal.remove(host.request()) == Leftovers()
    assert len(host.packages) == 3


def test_nothing_is_removed_that_nobody_can_attribute(host: MadeHost) -> None:
    """A library without a version, a person's modprobe file, a folder of the loader: listed."""
    host.write("usr/local/lib/libcuda.so.1")
    host.write("etc/modprobe.d/mine.conf", "blacklist nvidia\n")
    host.write("opt/gpu/libcuda.so.535.183.01")
    host.write("etc/ld.so.conf.d/gpu.conf", "# mine\n/opt/gpu\n")
    host.write(f"lib/modules/{KERNEL}/extra/nvidia.ko", "not a module")
    left = driver_removal.remove(host.request())
    assert left.lines() == []
    assert {one.path: one.why for one in left.stays} == {
        f"/lib/modules/{KERNEL}/extra/nvidia.ko": "it has the name of a driver module and does not"
        " say of which version it is",
        "/etc/modprobe.d/mine.conf": "it keeps the module nvidia from loading",
        "/etc/ld.so.conf.d/gpu.conf": "it has the loader find libcuda.so.535.183.01 in /opt/gpu",
        "/usr/local/lib/libcuda.so.1": "it has the name of a driver library and no version, and is"
        " no link",
    }
    assert (host.root / "usr/local/lib/libcuda.so.1").exists()


def test_stale_entry_of_the_loader(host: MadeHost) -> None:
    """One that only names folders of the driver which are gone belongs to nobody any more."""
    host.write("etc/ld.so.conf.d/nvidia-old.conf", "/usr/lib/nvidia-384\n")
    host.link(f"{LIBRARIES}/libnvidia-tls.so.1", f"libnvidia-tls.so.{OLD}")
    assert set(look(host.request()).files) == {
        "/etc/ld.so.conf.d/nvidia-old.conf",
        f"/{LIBRARIES}/libnvidia-tls.so.1",
    }


def test_choices_of_packages_that_are_gone(host: MadeHost) -> None:
    """Diversions and alternatives go; those of installed or other packages stay."""
    host.diversions = (
        "diversion of /usr/lib/libGL.so.1 to /usr/lib/nvidia/libGL.so.1 by nvidia-alternative\n"
        "diversion of /bin/sh to /bin/sh.distrib by dash\n"
        "local diversion of /usr/bin/x to /usr/bin/x.real\n"
    )
    host.alternatives = "nvidia auto /usr/lib/nvidia/current\neditor auto /usr/bin/vim\n"
    found = look(host.request())
    assert found.diversions == (
        Diversion("/usr/lib/libGL.so.1", "/usr/lib/nvidia/libGL.so.1", "nvidia-alternative"),
    )
    assert found.alternatives == ("nvidia",)
    assert driver_removal.remove(host.request()) == Leftovers()
    removal = ["--package", "nvidia-alternative", "--rename", "--remove", "/usr/lib/libGL.so.1"]
    assert ["dpkg-divert", *removal] in host.calls


def test_package_that_cannot_be_purged(host: MadeHost) -> None:
    """It is named, with what dpkg said."""
    host.packages.append(Package("libnvidia-cfg1", f"{OLD}-1", "installed"))
    host.refuses = "libnvidia-cfg1"
    with pytest.raises(LlmetalError) as caught:
        driver_removal.remove(host.request())
    assert caught.value.where == "libnvidia-cfg1"
    assert "prerm failed" in caught.value.why


def test_packages_of_two_architectures() -> None:
    """They are named apart by dpkg, and so are purged apart."""
    text = f"libnvidia-ml1:amd64\t{NOW}-1\tinstalled\nlibnvidia-ml1:i386\t{OLD}-1\tinstalled\n"
    packages = parse_packages(text)
    assert [p.name for p in packages] == ["libnvidia-ml1:amd64", "libnvidia-ml1:i386"]
    assert [p.name for p in strangers(packages, Request(version=NOW))] == ["libnvidia-ml1:i386"]


def kinds(seen: Evidence, left: Leftovers | None = None) -> list[str]:
    """What is diagnosed, by name."""
    return [f"{one.kind}/{one.grade}" for one in diagnose(seen, left or Leftovers())]


def test_nothing_wrong() -> None:
    """A sound host has no finding, and neither has one that never had a driver."""
    assert kinds(HEALTHY) == []
    bare = Evidence(kernel=KERNEL, headers={"build": True, "complete": True})
    assert kinds(bare) == []


@pytest.mark.parametrize(
    ("change", "left", "expected", "reinstall"),
    [
        ({"on_disk": None, "loaded": None}, {}, ["no_module/broken"], True),
        (
            {
                "on_disk": None,
                "headers": {"build": False, "complete": False},
                "headers_version": None,
            },
            {},
            ["no_module/broken", "headers_missing/broken"],
            True,
        ),
        (
            {"headers": {"build": False, "complete": False}, "headers_version": None},
            {},
            ["headers_missing/minor"],
            False,
        ),
        ({"headers": {"build": True, "complete": False}}, {}, ["headers_missing/by_hand"], False),
        # The whole set moved on, and the host was not rebooted: nothing is purged for that.
        ({"loaded": OLD}, {}, ["mismatch/broken", "not_loaded/broken"], False),
        ({"user_space": OLD}, {}, ["mismatch/broken"], True),
        ({"loaded": None}, {}, ["not_loaded/broken"], False),
        ({"interrupted": True}, {}, ["half_configured/broken"], True),
        (
            {"strangers": (Package("libcuda1", f"{OLD}-1", "half-configured"),)},
            {},
            ["half_configured/broken"],
            True,
        ),
        (
            {"strangers": (Package("libcuda1", f"{OLD}-1", "installed"),)},
            {},
            ["mixed_sources/broken"],
            False,
        ),
        ({"foreign": {"0000:01:00.0": "nouveau"}}, {}, ["nouveau_bound/broken"], False),
        ({"missing": ("0000:01:00.0",)}, {}, ["gpu_off_bus/by_hand"], False),
        ({"changed": ("/usr/bin/nvidia-smi",)}, {}, ["files_changed/broken"], True),
        (
            {"loaded": None, "secure_boot": "enabled"},
            {},
            ["secure_boot/by_hand", "not_loaded/broken"],
            False,
        ),
        ({}, {"runfile": "/usr/bin/nvidia-uninstall"}, ["runfile/broken"], True),
        ({}, {"modules": ("/lib/modules/x/nvidia.ko",)}, ["old_modules/minor"], False),
        ({}, {"dkms": ("nvidia/570.211.01",)}, ["old_modules/minor"], False),
        ({}, {"files": ("/usr/lib/libcuda.so.570.211.01",)}, ["stray_files/minor"], False),
        ({}, {"alternatives": ("nvidia",)}, ["diverted/minor"], False),
        (
            {},
            {"packages": (Package("nvidia-smi", f"{OLD}-1", "config-files"),)},
            ["old_configuration/minor"],
            False,
        ),
    ],
)
def test_causes(
    change: dict[str, object], left: dict[str, object], expected: list[str], *, reinstall: bool
) -> None:
    """Each cause by itself, with how bad it is and whether the packages have to go."""
    seen = replace(HEALTHY, **change)  # type: ignore[arg-type] # the table's
    found = Leftovers(**left)  # type: ignore[arg-type] # likewise
    assert kinds(seen, found) == expected
    assert wants_reinstall(seen, found) is reinstall


def test_words() -> None:
    """What, why, what to do and where it was reported; what stays comes last."""
    findings = diagnose(replace(HEALTHY, user_space=OLD), Leftovers())
    lines = in_words(findings, [Stays("/usr/local/lib/libcuda.so.1", "it has no version")])
    mismatch = (
        f"module and libraries are of two versions: module {NOW}, libraries {OLD}: NVML says"
        " `Driver/library version mismatch`. What to do: module and libraries are installed anew in"
        " one version; then a reboot [drv-004, drv-005]"
    )
    stays = (
        "/usr/local/lib/libcuda.so.1 stays, for nobody can say whose it is: it has no version. What"
        " to do: remove it by hand if it is not wanted"
    )
    assert lines == [mismatch, stays]


def test_long_lists_are_cut() -> None:
    """A few names, and how many more."""
    files = tuple(f"/usr/lib/libcuda.so.5{number}.10" for number in range(10, 17))
    (finding,) = diagnose(HEALTHY, Leftovers(files=files))
    assert finding.why.endswith(" and 3 more")


def test_gather(host: MadeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence of the made host: no driver runs there, and its GPU is not on the bus."""
    monkeypatch.setattr(driver_diagnosis, "run", host.run)
    seen = driver_diagnosis.gather(host.request(kernel=KERNEL), ["00000000:01:00.0"])
    assert seen.missing == ("0000:01:00.0",)
    assert seen.loaded is None
    assert seen.on_disk == NOW
    assert seen.user_space == NOW
    assert [p.name for p in seen.packages] == [p.name for p in host.packages]
    assert not os.path.lexists(host.root / "proc")
