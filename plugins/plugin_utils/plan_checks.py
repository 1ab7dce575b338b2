# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What else on a host stands against a plan: all the rules of data/rules/host.yml.

Each check looks at one thing and asks for no more than it needs. What nobody could read is
unknown: it says neither yes nor no, so nothing is refused or warned of because of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    checks_apt,
    checks_containers,
    checks_driver,
    checks_gpus,
    checks_services,
    checks_toolkits,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.look import Look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts, SeenGpu
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings


@dataclass(frozen=True)
class Engine:
    """An engine that a plan brings."""

    name: str
    version: str = ""
    device: str = "gpu"
    cuda_major: int | None = None
    environment: str | None = None
    """Folder of its Python environment."""
    python: str | None = None
    """The interpreter that the environment is made with."""
    requirements: tuple[str, ...] = ()
    """Its packages, as `name==version`."""


@dataclass(frozen=True)
class Instance:
    """A served model that a plan brings."""

    name: str
    engine: str = "vllm"
    device: str = "gpu"
    host: str = "127.0.0.1"
    port: int | None = None
    gpus: tuple[int, ...] = ()
    """Positions among the host's GPUs."""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    memory_fraction: float | None = None
    """The part of a GPU's memory that it takes; the engine's default where it is None."""
    load_seconds: float | None = None
    """How long its start takes, where that can be said."""
    start_timeout: float | None = None
    """Seconds after which its service counts as failed."""
    manager: str = "systemd"

    @property
    def ranks(self) -> int:
        """How many processes compute together."""
        asked = (self.tensor_parallel or 1) * (self.pipeline_parallel or 1)
        return max(asked, len(self.gpus))


@dataclass(frozen=True)
class Context:
    """What a plan is about to do with a host; whoever knows less leaves the rest out."""

    facts: Facts
    compat: Compat | None = None
    scope: str = "system"
    wants_driver: bool = False
    """Whether the run installs a driver."""
    driver_source: str = "none"
    driver_branch: str | None = None
    driver_release: str | None = None
    driver_modules: str | None = None
    driver_packages: Mapping[str, str | None] = field(default_factory=dict)
    """Packages of the driver set, and the version of each that is planned."""
    source_uri: str | None = None
    source_suite: str | None = None
    source_fingerprint: str | None = None
    packages: tuple[str, ...] = ()
    """Distribution packages that the run brings besides."""
    toolkit: str | None = None
    """The CUDA toolkit that the run brings."""
    engines: Sequence[Engine] = ()
    instances: Sequence[Instance] = ()
    container: bool = False
    """Whether instances run in containers."""
    container_toolkit: bool = False
    """Whether the run installs and configures the NVIDIA Container Toolkit."""
    model_bytes: int = 0
    downloads: bool = False
    """Whether the host itself downloads models."""
    paths: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False

    @property
    def look(self) -> Look:
        """The survey's result."""
        return self.facts.look

    @property
    def on_gpus(self) -> tuple[Instance, ...]:
        """The instances that compute on GPUs."""
        return tuple(one for one in self.instances if one.device == "gpu")

    @property
    def gpu_engines(self) -> tuple[Engine, ...]:
        """The engines that compute on GPUs."""
        return tuple(one for one in self.engines if one.device == "gpu")

    @property
    def needs_gpu(self) -> bool:
        """Whether anything of the plan computes on a GPU."""
        return bool(self.on_gpus or self.gpu_engines)

    @property
    def uses_own_driver(self) -> bool:
        """Whether the driver that is there has to do: one is needed and the run brings none."""
        return self.needs_gpu and not self.wants_driver

    def gpus(self) -> Iterator[tuple[int, SeenGpu, Look, Look]]:
        """Each GPU: its position, what it is, what gpu_info says of it, and its health."""
        reported = {row.text("pci_address"): row for row in self.look.at("gpu").rows("gpus")}
        health = {row.text("pci_address"): row for row in self.look.rows("gpu_health")}
        for position, gpu in enumerate(self.facts.gpus):
            yield position, gpu, reported.get(gpu.pci, Look()), health.get(gpu.pci, Look())

    def users_of(self, position: int) -> tuple[Instance, ...]:
        """The instances that compute on a GPU."""
        return tuple(one for one in self.on_gpus if position in one.gpus)

    @property
    def own_services_run(self) -> bool:
        """Whether an instance of llmetal is running."""
        units = self.look.at("services")
        names = (name for name in units.texts() if name.startswith("llmetal-"))
        return any(units.text(name, "active") in {"active", "activating"} for name in names)

    def is_own(self, process: Look) -> bool:
        """Whether a process is one of an instance of llmetal, which a run may stop."""
        unit, folder = process.text("unit") or "", process.text("folder") or ""
        if unit.startswith("llmetal-"):
            return True
        cache, environments = self.paths.get("cache"), self.paths.get("environments")
        if cache and folder.startswith(f"{cache}/engines/"):
            return True
        return bool(environments and f"{environments}/" in (process.text("program") or ""))


CHECKS: tuple[Callable[[Context, Findings], None], ...] = (
    *checks_driver.CHECKS,
    *checks_apt.CHECKS,
    *checks_gpus.CHECKS,
    *checks_toolkits.CHECKS,
    *checks_services.CHECKS,
    *checks_containers.CHECKS,
)


def check(context: Context, findings: Findings) -> None:
    """Look whether the host lets the plan work.

    Args:
        context: what is planned, for which host.
        findings: collects what stands against it.
    """
    for one in CHECKS:
        one(context, findings)
