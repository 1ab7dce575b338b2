# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an inventory asks of one host: its `llmetal_*` variables, typed and with defaults."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils.canonical import sha256_of
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PREFIX = "llmetal_"

_ABOUT_THE_RUN = frozenset({"lock_dir", "plan_lock", "resolve_ttl", "hypothetical", "engine_only"})
"""What says how to go about it, and not what the host gets."""


@dataclass(frozen=True)
class Mirror:
    """Address and key of a package source."""

    uri: str
    suite: str
    components: tuple[str, ...]
    key: str
    fingerprint: str


@dataclass(frozen=True)
class DriverRequest:
    """Which driver, from where."""

    source: str = "none"
    branch: str | None = None
    version: str | None = None
    chooser: str = "data"
    """What chooses the branch where nothing else is asked: `data`, or `ubuntu_drivers`."""
    modules: str = "auto"
    mirror: Mirror | None = None
    unload: bool = False
    """Whether an upgrade may unload the modules instead of rebooting the host."""
    secure_boot: str = "refuse"
    """What to do where Secure Boot is on: `refuse`, or `enrol` a key."""


@dataclass(frozen=True)
class CudaRequest:
    """Which CUDA toolkit."""

    version: str | None = None
    forward_compatibility: bool = False
    provider: str = "auto"
    also: tuple[str, ...] = ()
    """Further releases, side by side with it."""
    repository: Mirror | None = None
    """Where its packages come from; by default from the driver's source."""
    runfile_mirror: str | None = None
    """Address, or folder on the host, of runfiles."""
    default: bool = True
    """Whether the path without a version leads to it."""


@dataclass(frozen=True)
class PythonRequest:
    """Which interpreter the engines get."""

    source: str = "auto"
    installer: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class BuildRequest:
    """How engines are installed."""

    origin: str = "auto"
    max_jobs: int | None = None
    nvcc_threads: int = 1


@dataclass(frozen=True)
class ModelRequest:
    """A model and where it lies."""

    name: str
    source_type: str
    path: str


@dataclass(frozen=True)
class InstanceRequest:
    """One served model."""

    name: str
    engine: str
    model: str
    engine_version: str | None = None
    device: str = "gpu"
    gpus: tuple[int, ...] | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    context: int | None = None
    concurrency: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    expert_parallel: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HostRequest:
    """Everything that the inventory asks of a host."""

    name: str
    groups: tuple[str, ...] = ()
    scope: str = "system"
    root: str = "/opt/llmetal"
    driver: DriverRequest = field(default_factory=DriverRequest)
    cuda: CudaRequest = field(default_factory=CudaRequest)
    python: PythonRequest = field(default_factory=PythonRequest)
    runtime: str = "native"
    build: BuildRequest = field(default_factory=BuildRequest)
    models: tuple[ModelRequest, ...] = ()
    instances: tuple[InstanceRequest, ...] = ()
    index_url: str | None = None
    wheel_cache: str | None = None
    lock_dir: str | None = None
    plan_lock: str = "use"
    resolve_ttl: int = 3600
    hypothetical: bool = False
    """Whether this is about hardware that nobody has yet."""
    engine_only: bool = False
    """Whether its instance stands for an engine without a model."""

    @property
    def only_looks(self) -> bool:
        """Whether nothing is going to be installed from the plan."""
        return self.hypothetical or self.plan_lock in {"compare", "upgrade"}

    @property
    def sha256(self) -> str:
        """The hash of what is asked, which the lock keeps: another one means to plan anew."""
        asked = {k: v for k, v in asdict(self).items() if k not in _ABOUT_THE_RUN}
        return sha256_of(asked)

    @property
    def used_models(self) -> tuple[ModelRequest, ...]:
        """The models that an instance serves, in the order of the inventory."""
        used = {instance.model for instance in self.instances}
        return tuple(model for model in self.models if model.name in used)


@functools.cache
def site_options() -> Mapping[str, Any]:
    """The site variables and what they may be: data/site_variables.yml."""
    options: dict[str, Any] = load_data("site_variables.yml")["argument_specs"]["main"]["options"]
    return options


@functools.cache
def site_groups() -> tuple[str, ...]:
    """The groups of which every host must be in one."""
    return tuple(load_data("site_variables.yml")["site_groups"])


def from_variables(
    name: str,
    groups: Iterable[str],
    variables: Mapping[str, Any],
    read_key: Callable[[str], str],
) -> HostRequest:
    """Read a host's variables.

    Args:
        name: the host.
        groups: its groups; those that are not site groups do not matter.
        variables: its variables, templated; those of others are left alone.
        read_key: gives the armored key in a file of the controller.

    Raises:
        LlmetalError: a variable is not as it should be, or a key file cannot be read.
    """
    from ansible_collections.llmetal.inference.plugins.plugin_utils import (  # noqa: PLC0415 - imports Ansible
        argument_spec,
    )

    options = site_options()
    mine = {k: v for k, v in variables.items() if k in options}
    good, issues = argument_spec.check(options, mine)
    if issues:
        issue = issues[0]
        raise LlmetalError(
            what=f"{argument_spec.shown(issue.path)} {issue.why}",
            where=name,
            why=f"found {issue.found}, allowed is {issue.allowed}",
            fix=issue.fix or "set it right in the inventory",
        )
    gets = {key.removeprefix(PREFIX): value for key, value in good.items()}
    member = tuple(group for group in site_groups() if group in set(groups))
    serves = "gpu" in member
    return HostRequest(
        name=name,
        groups=member,
        scope=gets["scope"],
        root=gets["root"],
        driver=_driver(gets["driver"], read_key) if serves else DriverRequest(),
        cuda=_cuda(gets["cuda"], read_key) if serves else CudaRequest(),
        python=PythonRequest(**gets["python"]) if serves else PythonRequest(),
        runtime=gets["runtime"],
        build=_build(gets["build"]) if serves else BuildRequest(),
        models=tuple(_model(row) for row in gets["models"]) if serves else (),
        instances=tuple(_instance(row) for row in gets["instances"]) if serves else (),
        index_url=gets.get("index_url"),
        wheel_cache=gets.get("wheel_cache"),
        lock_dir=gets.get("lock_dir"),
        plan_lock=gets["plan_lock"],
        resolve_ttl=gets["resolve_ttl"],
    )


def _driver(row: Mapping[str, Any], read_key: Callable[[str], str]) -> DriverRequest:
    mirror = row.get("mirror")
    return DriverRequest(
        source=row["source"],
        branch=row.get("branch"),
        version=row.get("version"),
        chooser=row["chooser"],
        modules=row["modules"],
        mirror=_mirror(mirror, read_key),
        unload=row["unload"],
        secure_boot=row["secure_boot"],
    )


def _mirror(row: Mapping[str, Any] | None, read_key: Callable[[str], str]) -> Mirror | None:
    if row is None:
        return None
    return Mirror(
        uri=row["uri"],
        suite=row["suite"],
        components=tuple(row["components"]),
        key=read_key(row["key_file"]),
        fingerprint=row["fingerprint"].replace(" ", "").upper(),
    )


def _cuda(row: Mapping[str, Any], read_key: Callable[[str], str]) -> CudaRequest:
    return CudaRequest(
        version=row.get("version"),
        forward_compatibility=row["forward_compatibility"],
        provider=row["provider"],
        also=tuple(row["also"]),
        repository=_mirror(row.get("repository"), read_key),
        runfile_mirror=row.get("runfile_mirror"),
        default=row["default"],
    )


def _build(row: Mapping[str, Any]) -> BuildRequest:
    return BuildRequest(row["from"], row.get("max_jobs"), row["nvcc_threads"])


def _model(row: Mapping[str, Any]) -> ModelRequest:
    return ModelRequest(row["name"], row["source"]["type"], row["source"]["path"])


def _instance(row: Mapping[str, Any]) -> InstanceRequest:
    gpus = row.get("gpus")
    return InstanceRequest(
        name=row["name"],
        engine=row["engine"],
        model=row["model"],
        engine_version=row.get("engine_version"),
        device=row["device"],
        gpus=None if gpus is None else tuple(sorted(set(gpus))),
        host=row["host"],
        port=row["port"],
        context=row.get("context"),
        concurrency=row.get("concurrency"),
        tensor_parallel=row.get("tensor_parallel"),
        pipeline_parallel=row.get("pipeline_parallel"),
        data_parallel=row.get("data_parallel"),
        expert_parallel=row.get("expert_parallel"),
        options=dict(row["options"]),
    )
