# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The compatibility data of data/, typed: GPUs, driver branches, packages, engines, rules."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).resolve().parent / "data"

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNVERIFIED = "unverified"
_DESKTOP = re.compile(r"GeForce|RTX|TITAN|Quadro")


def load_yaml(text: str | bytes) -> Any:  # noqa: ANN401 - any YAML value
    """Read one YAML document with the fast loader where there is one."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, in C or in Python


def load_data(name: str) -> Any:  # noqa: ANN401 - any YAML value
    """Read a file of the data folder."""
    return load_yaml((DATA / name).read_bytes())


@dataclass(frozen=True)
class Rule:
    """What can stop a plan: its sentence, where that was read, whether that is worth a refusal."""

    name: str
    refuses: bool
    says: str
    source: str


@dataclass(frozen=True)
class Gpu:
    """A GPU by its PCI device id: the model where it is a listed one, else the chip alone."""

    device_id: str
    key: str | None
    name: str
    arch: str
    compute: str
    kernel_module: str
    min_driver: str | None
    min_driver_known: bool
    max_branch: str | None
    fabric: str
    driver_from: str | None
    """The system that brings the driver, where no package source does."""
    open_since: Mapping[str, str]
    """Per driver branch, the first release whose open modules list it (`all`: every one)."""

    @property
    def data_centre(self) -> bool:
        """Whether it is sold for data centres, by its name: other boards say what they are."""
        return not _DESKTOP.search(self.name)


@dataclass(frozen=True)
class Branch:
    """A driver branch."""

    name: str
    lts: bool
    supported: bool
    status: str


@dataclass(frozen=True)
class FabricExtras:
    """What comes with a fabric manager."""

    same: tuple[str, ...]
    """In the driver's very version."""
    own: tuple[str, ...]
    """In a version of their own."""
    optional: tuple[str, ...]
    """In the driver's version, where it is offered."""


@dataclass(frozen=True)
class FabricSet:
    """The fabric manager of a package source, and what comes with it on which boards."""

    package: str
    service: str
    nvswitch: FabricExtras
    nvlink5: FabricExtras | None
    """None where the source has nothing for B200 and B300."""


@dataclass(frozen=True)
class PackageSet:
    """The packages of a driver set from one source, with their place holders filled in."""

    source: str
    external: bool
    modules: Mapping[str, tuple[str, ...]]
    user_space: tuple[str, ...]
    companions: tuple[str, ...]
    optional: tuple[str, ...]
    fabric: FabricSet | None
    """None where the source ships no fabric manager."""
    components: tuple[str, ...] = ()
    """The components of the distribution's archive that the packages are in."""


@dataclass(frozen=True)
class Release:
    """A release of an engine that can be planned."""

    engine: str
    version: str
    device: str
    default: bool
    package: str
    environment: str
    requirements: str
    options: str
    options_of: str
    architectures: str
    installable: bool
    device_code: tuple[str, ...]
    """The compute capabilities that its libraries have kernels for, as ptxas writes them."""
    ptx: tuple[str, ...]
    nvcc_at_run_time: bool
    memory: Mapping[str, float | None]
    aliases: tuple[Mapping[str, str], ...]
    imports: tuple[str, ...]
    python_from: str
    python_below: str
    min_glibc: str | None
    cuda_major: int | None
    min_driver: str | None
    min_compute: str | None
    size_bytes: int | None
    base_memory_bytes: int | None
    amx_dtype: str | None


@dataclass(frozen=True)
class OperatingSystem:
    """An operating system that hosts may have."""

    key: str
    family: str
    codename: str
    archive_driver: str | None


@dataclass(frozen=True)
class Compat:
    """All compatibility data; plain values, so that tests can make their own."""

    sources: Mapping[str, Mapping[str, str]]
    rules: Mapping[str, Mapping[str, Any]]
    gpus: Mapping[str, Mapping[str, Any]]
    devices: Mapping[str, Mapping[str, Any]]
    switches: Mapping[str, Mapping[str, Any]]
    default_branch: str
    branches: Mapping[str, Mapping[str, Any]]
    package_sets: tuple[Mapping[str, Any], ...]
    fabric_sets: tuple[Mapping[str, Any], ...]
    systems: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, Mapping[str, Any]]
    base_packages: tuple[str, ...]
    device_packages: Mapping[str, tuple[str, ...]]
    engines: Mapping[str, tuple[Mapping[str, Any], ...]]
    late_targets: frozenset[str]
    """Compute capabilities that compilers learnt late."""
    supervisor: Mapping[str, Any]
    uv_requirements: str

    def rule(self, name: str) -> Rule:
        """A rule by its name; it refuses only where one of its sources was really read."""
        row = self.rules[name]
        names = [str(source) for source in row["source"]]
        read = any(self.sources[source]["evidence"] != _UNVERIFIED for source in names)
        text = "; ".join(
            f"{self.sources[source]['what']} ({self.sources[source]['where']})" for source in names
        )
        return Rule(name, row["severity"] == "refuse" and read, str(row["says"]), text)

    def gpu(self, device_id: str) -> Gpu | None:
        """The GPU with a PCI device id; None where the id is unknown."""
        device = self.devices.get(device_id)
        if device is None:
            return None
        key = device.get("gpu")
        model: Mapping[str, Any] = self.gpus.get(str(key), {}) if key else {}
        arch = str(device["arch"])
        return Gpu(
            device_id=device_id,
            key=str(key) if key else None,
            name=str(device["name"]),
            arch=arch,
            compute=str(device["cc"]),
            kernel_module=str(model.get("kernel_module") or _modules_of(arch)),
            min_driver=_text(model.get("min_driver")),
            min_driver_known=str(model.get("min_driver_basis", "know")) != "know",
            max_branch=_text(model.get("max_driver_branch")) or _last_branch_of(arch),
            fabric=str(model.get("fabric_manager", "not_needed")),
            driver_from=_text(model.get("driver_from")),
            open_since={str(k): str(v) for k, v in (device.get("open") or {}).items()},
        )

    def branch(self, name: str) -> Branch | None:
        """A driver branch; None where there is none of that name."""
        row = self.branches.get(name)
        if row is None:
            return None
        return Branch(name, bool(row["lts"]), bool(row["supported"]), str(row["status"]))

    def system(self, key: str) -> OperatingSystem | None:
        """An operating system by the survey's key for it."""
        row = self.systems.get(key)
        if row is None:
            return None
        driver = _text(row.get("archive_driver"))
        return OperatingSystem(key, str(row["family"]), str(row["codename"]), driver)

    def package_set(self, source: str, family: str, branch: str) -> PackageSet | None:
        """The driver set of a source for a family of systems; None where the source has none."""
        for row in self.package_sets:
            last = row.get("up_to_branch")
            if (row["source"], row["family"]) != (source, family):
                continue
            if last is not None and int(branch) > int(last):
                continue
            return PackageSet(
                source=source,
                external=bool(row["external"]),
                modules={k: _filled(v, branch) for k, v in row["modules"].items()},
                user_space=_filled(row["user_space"], branch),
                companions=_filled(row["companions"], branch),
                optional=_filled(row["optional"], branch),
                fabric=self.fabric_set(source, branch),
                components=tuple(row.get("components", ())),
            )
        return None

    def fabric_set(self, source: str, branch: str) -> FabricSet | None:
        """The fabric manager of a source; None where the source ships none."""
        for row in self.fabric_sets:
            last = row.get("up_to_branch")
            if row["source"] != source or (last is not None and int(branch) > int(last)):
                continue
            nvlink5 = row["nvlink5"]
            return FabricSet(
                package=_filled([row["package"]], branch)[0],
                service=str(row["service"]),
                nvswitch=_extras(row["nvswitch"], branch),
                nvlink5=None if nvlink5 is None else _extras(nvlink5, branch),
            )
        return None

    def releases(self, engine: str) -> tuple[Release, ...]:
        """The releases of an engine that can be planned."""
        return tuple(_release(engine, row) for row in self.engines.get(engine, ()))

    def release(self, engine: str, device: str, version: str | None) -> Release | None:
        """The asked release of an engine for a device, or the device's default one."""
        for release in self.releases(engine):
            if release.device != device:
                continue
            if release.default if version is None else release.version == version:
                return release
        return None


@functools.cache
def load_compat() -> Compat:
    """Read the data folder, once."""
    pci, branches, systems = load_data("pci_devices.yml"), _branches(), load_data("os.yml")
    engines, sources = load_data("engines.yml"), load_data("sources.yml")
    packages = load_data("driver_packages.yml")
    return Compat(
        sources=sources["sources"],
        rules=_rules(),
        gpus=load_data("gpus.yml")["gpus"],
        devices=pci["devices"],
        switches=pci["switches"],
        default_branch=branches["default"],
        branches=branches["branches"],
        package_sets=tuple(packages["package_sets"]),
        fabric_sets=tuple(packages["fabric_sets"]),
        systems=systems["os"],
        keys=systems["keys"],
        base_packages=tuple(systems["base_packages"]),
        device_packages={name: tuple(systems[f"{name}_packages"]) for name in ("cpu", "gpu")},
        engines={name: tuple(rows) for name, rows in engines["engines"].items()},
        late_targets=frozenset(engines["late_targets"]["capabilities"]),
        supervisor=engines["supervisor"],
        uv_requirements=engines["uv"],
    )


@functools.cache
def load_option_table(name: str) -> Mapping[str, Any]:
    """The option table of an engine release: a file of data/engine_options."""
    table: dict[str, Any] = json.loads((DATA / "engine_options" / name).read_bytes())
    return table


@functools.cache
def load_architectures(name: str) -> frozenset[str]:
    """The model classes that an engine release has code for: a file of data/architectures."""
    return frozenset(json.loads((DATA / "architectures" / name).read_bytes())["architectures"])


@functools.cache
def load_cuda() -> Mapping[str, Any]:
    """CUDA releases, majors, GPU architectures and forward compatibility; read when asked for."""
    data: dict[str, Any] = load_data("cuda.yml")
    return data


@functools.cache
def load_interpreters() -> Mapping[str, Any]:
    """The interpreters that a host can be given; `all` has those too whose Python is too old."""
    data: dict[str, Any] = load_data("interpreters.yml")
    return data | {"all": [*data["installers"], *data["older"]]}


def _rules() -> dict[str, Mapping[str, Any]]:
    """The rules of all files of data/rules."""
    names = sorted(path.name for path in (DATA / "rules").glob("*.yml"))
    return {key: row for name in names for key, row in load_data(f"rules/{name}").items()}


def _branches() -> Mapping[str, Any]:
    data: Mapping[str, Any] = load_data("driver_branches.yml")
    return data


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _filled(names: list[str], branch: str) -> tuple[str, ...]:
    return tuple(name.replace("{branch}", branch) for name in names)


def _extras(row: Mapping[str, list[str]], branch: str) -> FabricExtras:
    return FabricExtras(**{name: _filled(names, branch) for name, names in row.items()})


def _modules_of(arch: str) -> str:
    """The kernel modules that GPUs of an architecture have (archmx, kmod in sources.yml)."""
    if arch == "volta":
        return "proprietary_only"
    return "open_only" if arch == "blackwell" else "either"


def _last_branch_of(arch: str) -> str | None:
    """The last driver branch of an architecture (archmx in sources.yml)."""
    return "580" if arch == "volta" else None


def _release(engine: str, row: Mapping[str, Any]) -> Release:
    return Release(
        engine=engine,
        version=str(row["release"]),
        device=str(row["device"]),
        default=bool(row["default"]),
        package=str(row["package"]),
        environment=str(row["environment"]),
        requirements=str(row["requirements"]),
        options=str(row["options"]),
        options_of=str(row["options_of"]),
        architectures=str(row["architectures"]),
        installable=bool(row["installable"]),
        device_code=tuple(row["device_code"]),
        ptx=tuple(row["ptx"]),
        nvcc_at_run_time=bool(row["nvcc_at_run_time"]),
        memory=row["memory"],
        aliases=tuple(row["aliases"]),
        imports=tuple(row["imports"]),
        python_from=str(row["python"]["from"]),
        python_below=str(row["python"]["below"]),
        min_glibc=_text(row["min_glibc"]),
        cuda_major=row["cuda_major"],
        min_driver=_text(row["min_driver"]),
        min_compute=_text(row["min_cc"]),
        size_bytes=row["size_bytes"],
        base_memory_bytes=row["base_memory_bytes"],
        amx_dtype=row["amx_dtype"],
    )
