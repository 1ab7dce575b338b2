# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the driver set of a host: branch, modules, one version for it and its fabric, packages.

In two steps, both pure: `intend` says from inventory and facts alone what is wanted, so that the
resolve stage knows what to ask; `decide` picks exact versions from the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    plan_chooser,
    plan_fabric,
    plan_kernel,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    branch_of,
    is_at_least,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ansible_collections.llmetal.inference.plugins.plugin_utils.candidates import Candidates
    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import (
        Compat,
        Gpu,
        OperatingSystem,
        PackageSet,
    )
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_fabric import Fabric
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_MANY = 2
_PERSISTENCE = "nvidia-persistenced.service"
"""The unit that keeps GPUs initialized between programs; the driver set brings it."""
_REPOSITORIES = {"cuda_repo": "llmetal-nvidia", "ppa": "llmetal-graphics-drivers"}


@dataclass(frozen=True)
class Intent:
    """The driver that a host should get, before anyone looked which versions there are."""

    branch: str
    modules: str
    packages: PackageSet
    gpus: tuple[Gpu, ...]
    fabric: Fabric | None
    kernel: tuple[str, ...]
    """The packages that modules are built with: headers of each kernel, the compiler."""
    secure_boot: dict[str, str] | None
    why: tuple[str, ...]

    @property
    def driver(self) -> tuple[str, ...]:
        """The packages of the driver that come in its one version."""
        return (*self.packages.modules[self.modules], *self.packages.user_space)

    @property
    def one_version(self) -> tuple[str, ...]:
        """All packages that come in the one version of the driver."""
        return (*self.driver, *(self.fabric.one_version if self.fabric else ()))

    @property
    def questions(self) -> tuple[str, ...]:
        """The packages whose versions the resolve stage has to ask for."""
        optional = [name.replace("{version}", "*") for name in self.packages.optional]
        fabric = self.fabric.questions if self.fabric else ()
        return (*self.driver, *fabric, *self.packages.companions, *optional, *self.kernel)


@dataclass(frozen=True)
class DriverPlan:
    """The parts of a lock that the driver decides."""

    kernel: dict[str, Any]
    driver: dict[str, Any] | None = None
    fabric: dict[str, Any] | None = None
    release: str | None = None
    """The driver release to count with: the planned one, else the newest known of the branch."""
    unresolved: tuple[str, ...] = ()
    """The fields of the lock that only the resolve stage could fill."""


def known_gpus(facts: Facts, compat: Compat) -> tuple[Gpu, ...]:
    """The GPUs of a host that the data knows, each kind once, in order."""
    kinds = {gpu.device_id: compat.gpu(gpu.device_id) for gpu in facts.gpus}
    return tuple(gpu for gpu in kinds.values() if gpu is not None)


def source_name(source: str, os_key: str) -> str:
    """The name under which a driver's package source is known to the host."""
    return _REPOSITORIES.get(source, f"{os_key}-archive")


def needed_branch(request: HostRequest, gpus: Iterable[Gpu], compat: Compat) -> int:
    """The oldest driver branch that the GPUs and the asked engines can do with; 0 for any."""
    wanted = (compat.release(i.engine, i.device, i.engine_version) for i in request.instances)
    floors = [gpu.min_driver for gpu in gpus]
    floors += [release.min_driver for release in wanted if release is not None]
    return max((int(branch_of(floor)) for floor in floors if floor), default=0)


def choose_source(
    request: HostRequest, facts: Facts, gpus: tuple[Gpu, ...], compat: Compat
) -> tuple[str, str]:
    """The package source of the driver where the inventory leaves it open, and why that one.

    The distribution's own is signed by keys that the host has already; it must carry a branch that
    is new enough, and on a host with NVSwitches the fabric manager.
    """
    asked, system = request.driver.source, compat.system(facts.os_key)
    if asked != "auto":
        return asked, f"source {asked} is asked for in the inventory"
    if request.driver.mirror is not None:
        return "cuda_repo", "source cuda_repo, since llmetal_driver.mirror is set"
    if system is None or system.family != "ubuntu":
        archive = branch_of(system.archive_driver or "") if system else ""
        floor = max(needed_branch(request, gpus, compat), int(request.driver.branch or 0))
        lacks = "" if archive and int(archive) >= floor else f"branch {archive or 'none'}"
        if not lacks and plan_fabric.is_wanted(facts, gpus, compat):
            lacks = "no fabric manager"
        if lacks:
            return "cuda_repo", f"source cuda_repo: the archive has {lacks}"
        return "debian", f"source debian: its branch {archive} serves these GPUs and engines"
    if any(gpu.key in plan_fabric.NVLINK5_GPUS for gpu in gpus):
        return "cuda_repo", "source cuda_repo: Ubuntu has no nvlink5 packages"
    return "ubuntu", "source ubuntu: signed, and with the fabric manager of each branch"


def settle(request: HostRequest, facts: Facts, compat: Compat) -> tuple[HostRequest, str]:
    """The request with a driver source instead of `auto`, and why that one."""
    source, why = choose_source(request, facts, known_gpus(facts, compat), compat)
    if source == request.driver.source:
        return request, why
    return replace(request, driver=replace(request.driver, source=source)), why


def intend(request: HostRequest, facts: Facts, compat: Compat, findings: Findings) -> Intent | None:
    """Say which driver a host should get; None where it gets none, or where nothing can work.

    Args:
        request: what the inventory asks.
        facts: what the survey saw.
        compat: the compatibility data.
        findings: collects what stands against it.
    """
    if request.driver.source == "none" or not facts.gpus or request.scope == "user":
        return None
    system = compat.system(facts.os_key)
    if system is None or _foreign_platform(facts, compat, findings):
        return None
    unknown = sorted({g.device_id for g in facts.gpus if compat.gpu(g.device_id) is None})
    for device in unknown:
        findings.add(
            "unknown-id",
            fact=f"10de:{device}",
            fix="set llmetal_driver.source to none and install the driver by hand, or add the id "
            "to pci_devices.yml (docs/planning.md says how)",
        )
    gpus = known_gpus(facts, compat)
    chosen = plan_chooser.choose(request, facts, system, findings)
    branch, why = chosen or _branch(request, gpus, system, compat)
    _check_branch(branch, gpus, compat, findings)
    modules = _modules(request, gpus, system, _newest_known(request, branch, compat), findings)
    packages = _packages(request, system, branch, compat, findings)
    if unknown or modules is None or packages is None:
        return None
    why += [*plan_chooser.notes(request, facts), *_why_modules(modules, gpus)]
    fabric = plan_fabric.intend(facts, gpus, packages, compat, findings)
    _look_at_host(request, facts, system, findings)
    maybe = [gpu for gpu in gpus if gpu.fabric == "required_if_nvswitch"]
    if request.hypothetical and maybe and not fabric and len(facts.gpus) >= _MANY:
        findings.add(
            "fm-hidden",
            fact=f"{len(facts.gpus)} x {maybe[0].name}: whether switches join them is not said",
            fix="count on the fabric manager where they sit on a board with switches",
        )
    return Intent(
        branch=branch,
        modules=modules,
        packages=packages,
        gpus=gpus,
        fabric=fabric,
        kernel=plan_kernel.questions(facts),
        secure_boot=plan_kernel.secure_boot(request, facts, compat, findings),
        why=tuple(why),
    )


def decide(  # noqa: PLR0913 - a pure function of all that a driver depends on
    request: HostRequest,
    facts: Facts,
    intent: Intent | None,
    candidates: Candidates,
    *,
    compat: Compat,
    findings: Findings,
    prefer: str | None = None,
) -> DriverPlan:
    """Pick exact versions for what is intended.

    Args:
        request: what the inventory asks.
        facts: what the survey saw.
        intent: the driver wanted; None for none.
        candidates: the versions that there are.
        compat: the compatibility data.
        findings: collects what stands against it.
        prefer: the release of an earlier lock, kept where it still fits.
    """
    if intent is None:
        return DriverPlan(plan_kernel.nothing(facts))
    if not candidates.asked:
        return _unresolved(request, facts, intent, compat, findings=findings)
    kernel = plan_kernel.decide(facts, candidates, findings)
    release = _release(request, intent, candidates, findings, prefer)
    if release is None:
        return DriverPlan(kernel)
    _check_gpus(release, intent, compat, findings)
    packages = [
        {"name": name, "version": candidates.releases(name)[release]} for name in intent.driver
    ]
    companions = _companions(intent, candidates, release, findings)
    why = [*intent.why, _why_release(request, release, prefer)]
    driver = _lock_of(request, facts, intent, release, [*packages, *companions], why)
    if intent.fabric is None:
        return DriverPlan(kernel, driver, None, release)
    extras = plan_fabric.extras(intent.fabric, candidates, release, findings)
    manager = candidates.releases(intent.fabric.packages.package)[release]
    fabric = plan_fabric.lock_of(intent.fabric, facts, version=manager, packages=extras)
    return DriverPlan(kernel, driver, fabric, release)


def _lock_of(  # noqa: PLR0913, PLR0917 - what a lock has of a driver
    request: HostRequest,
    facts: Facts,
    intent: Intent,
    version: str | None,
    packages: list[dict[str, Any]],
    why: list[str],
) -> dict[str, Any]:
    """The driver as the lock has it."""
    return {
        "branch": intent.branch,
        "version": version,
        "modules": intent.modules,
        "source": _source(request, facts, intent.packages),
        "packages": packages,
        "persistence": _PERSISTENCE,
        "unload": request.driver.unload,
        "secure_boot": intent.secure_boot,
        "why": why,
    }


def _unresolved(
    request: HostRequest,
    facts: Facts,
    intent: Intent,
    compat: Compat,
    *,
    findings: Findings,
) -> DriverPlan:
    """The driver set without the versions that only package sources know."""
    asked = request.driver.version
    release = _newest_known(request, intent.branch, compat)
    _check_known(request, facts, intent.branch, compat, findings)
    _check_gpus(release, intent, compat, findings)
    names = (*intent.driver, *intent.packages.companions)
    packages: list[dict[str, Any]] = [{"name": name, "version": None} for name in names]
    why = [*intent.why, *_why_unresolved(request, release, intent)]
    driver = _lock_of(request, facts, intent, asked, packages, why)
    extras = intent.fabric.extras if intent.fabric else None
    with_it = (*extras.same, *extras.own) if extras else ()
    fabric = plan_fabric.lock_of(
        intent.fabric,
        facts,
        version=None,
        packages=[{"name": name, "version": None} for name in with_it],
    )
    kernel, missing = plan_kernel.unresolved(facts)
    fields = [f"driver.packages.{name}" for name in names]
    fields += ["driver.version"] if asked is None else []
    fields += ["fabric.version"] if fabric else []
    fields += [f"fabric.packages.{name}" for name in with_it]
    return DriverPlan(kernel, driver, fabric, release, (*fields, *missing))


def _why_unresolved(request: HostRequest, release: str, intent: Intent) -> list[str]:
    why = []
    if request.driver.version is None:
        why.append(f"rules look at {release}, the newest release that is known of the branch")
    if intent.packages.external and request.driver.mirror is None:
        why.append("an inventory names that source's address and key in llmetal_driver.mirror")
    return [*why, "exact versions are found when the host's package sources are asked"]


def _check_known(
    request: HostRequest,
    facts: Facts,
    branch: str,
    compat: Compat,
    findings: Findings,
) -> None:
    """What can be said of a release or branch that nobody looked up in a package source."""
    asked, newest = request.driver.version, compat.branches.get(branch, {}).get("latest_seen")
    if asked and newest and not is_at_least(str(newest), asked):
        findings.add(
            "driver-not-seen",
            fact=f"driver {asked}; the newest that was seen of branch {branch} is {newest}",
            fix="see that the package source has it",
        )
    carried = compat.systems.get(facts.os_key, {}).get("archive_branches")
    if request.driver.source == "ubuntu" and carried and branch not in carried:
        findings.add(
            "driver-not-seen",
            fact=f"branch {branch}; the archive of {facts.os_key} was seen with "
            f"{', '.join(carried)}",
            fix="take one of these branches, or llmetal_driver.source cuda_repo",
        )


def _foreign_platform(facts: Facts, compat: Compat, findings: Findings) -> bool:
    """Whether the driver of this platform is none of ours."""
    fix = "set llmetal_driver.source to none: the driver that is there is used"
    found = False
    for gpu in known_gpus(facts, compat):
        fact = f"10de:{gpu.device_id} ({gpu.name})"
        if gpu.driver_from == "DGX OS" and not facts.platform.get("dgx"):
            findings.add("spark-dgx-os", fact=f"{fact}, without DGX OS", fix="install DGX OS")
        if gpu.driver_from == "Jetson Linux":
            findings.add("jetson-spark", fact=fact, fix=fix)
            found = True
    for name, rule in (
        ("dgx", "platform-dgx"),
        ("wsl", "platform-wsl"),
        ("jetson", "jetson-spark"),
    ):
        if facts.platform.get(name):
            findings.add(rule, fact=f"the host is of platform {name}", fix=fix)
            found = True
    return found


def _branch(
    request: HostRequest, gpus: Iterable[Gpu], system: OperatingSystem, compat: Compat
) -> tuple[str, list[str]]:
    """The branch that is asked for, or the one of the data, and why."""
    asked = request.driver.branch or (
        branch_of(request.driver.version) if request.driver.version else None
    )
    if asked is not None:
        return asked, [f"branch {asked} is asked for in the inventory"]
    if request.driver.source == "debian" and system.archive_driver:
        branch = branch_of(system.archive_driver)
        return branch, [f"branch {branch} is the one of {system.codename}"]
    return _preferred_branch(gpus, compat)


def _check_branch(branch: str, gpus: Iterable[Gpu], compat: Compat, findings: Findings) -> None:
    """Whether a branch is known, and still gets fixes."""
    row = compat.branch(branch)
    if row is None:
        findings.add(
            "branch-unknown",
            fact=f"branch {branch}",
            fix="take one of " + ", ".join(compat.branches),
            relax={"driver": _preferred_branch(gpus, compat)[0]},
        )
    elif not row.supported:
        findings.add(
            "branch-ended",
            fact=f"branch {branch}: {row.status}",
            fix=f"take branch {compat.default_branch}, the supported LTS branch",
        )


def _preferred_branch(gpus: Iterable[Gpu], compat: Compat) -> tuple[str, list[str]]:
    """The default branch, or the next supported one where a GPU needs it."""
    floor = max((int(branch_of(g.min_driver)) for g in gpus if g.min_driver), default=0)
    default = compat.default_branch
    if floor <= int(default):
        return default, [f"branch {default} is the LTS branch that serves these GPUs"]
    newer = [
        name
        for name in compat.branches
        if int(name) >= floor and (row := compat.branch(name)) is not None and row.supported
    ]
    branch = newer[0] if newer else str(floor)
    return branch, [f"branch {branch} is the first supported one that serves these GPUs"]


def _newest_known(request: HostRequest, branch: str, compat: Compat) -> str:
    """The release that rules look at where none is resolved: the newest known of the branch."""
    newest = compat.branches.get(branch, {}).get("latest_seen")
    return request.driver.version or str(newest or branch)


def _modules(
    request: HostRequest,
    gpus: Iterable[Gpu],
    system: OperatingSystem,
    release: str,
    findings: Findings,
) -> str | None:
    """The kernel modules that all GPUs can use; None where there are none.

    Open ones are preferred, where those of the branch list every GPU.
    """
    asked = request.driver.modules
    closed = [gpu for gpu in gpus if gpu.kernel_module == "proprietary_only"]
    opened = [gpu for gpu in gpus if gpu.kernel_module == "open_only"]
    if closed and opened:
        findings.add(
            "mixed-impossible",
            fact=f"{closed[0].name} and {opened[0].name}",
            fix="put them into different hosts",
            relax={"gpus": [gpu.key for gpu in opened]},
        )
        return None
    if asked == "open" and closed:
        fix = "set llmetal_driver.modules to auto or proprietary"
        findings.add("proprietary-required", fact=closed[0].name, fix=fix)
        return None
    if asked == "proprietary" and opened:
        fix = "set llmetal_driver.modules to auto or open"
        findings.add("open-required", fact=opened[0].name, fix=fix)
        return None
    old_open = request.driver.source == "debian" and system.key == "debian12"
    if asked == "open" and old_open:
        findings.add(
            "deb-open-bookworm",
            fact="llmetal_driver.modules is open, source is debian",
            fix="set llmetal_driver.modules to proprietary, or take source cuda_repo",
        )
        return None
    if asked != "auto":
        return asked
    unlisted = any(_unlisted(gpu, release) for gpu in gpus)
    return "proprietary" if closed or ((old_open or unlisted) and not opened) else "open"


def _why_modules(modules: str, gpus: Iterable[Gpu]) -> list[str]:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return [f"{modules} kernel modules serve {names}"]


def _packages(
    request: HostRequest,
    system: OperatingSystem,
    branch: str,
    compat: Compat,
    findings: Findings,
) -> PackageSet | None:
    source = request.driver.source
    packages = compat.package_set(source, system.family, branch)
    if packages is None:
        fitting = sorted(
            {str(row["source"]) for row in compat.package_sets if row["family"] == system.family}
        )
        findings.add(
            "driver-source",
            fact=f"llmetal_driver.source is {source}, the host has {system.key}",
            fix="take one of " + ", ".join(fitting),
        )
        return None
    if packages.external and request.driver.mirror is None and not request.hypothetical:
        key = _key_of(system, source, compat)
        findings.add(
            "driver-source-unset",
            fact=f"the driver comes from {source}, and llmetal_driver.mirror is not set",
            fix=f"set llmetal_driver.mirror to uri, suite, key_file and fingerprint{key}",
        )
        return None
    return packages


def _key_of(system: OperatingSystem, source: str, compat: Compat) -> str:
    for name, row in compat.keys.items():
        fits = name == "graphics_drivers_ppa" if source == "ppa" else system.key in str(row)
        if fits and "fingerprint" in row:
            return f" (the fingerprint of the original is {row['fingerprint']})"
    return ""


def _look_at_host(
    request: HostRequest, facts: Facts, system: OperatingSystem, findings: Findings
) -> None:
    """What of the host itself stands against installing a driver."""
    if facts.driver_loaded and not facts.has_driver_packages:
        findings.add(
            "mixed-sources",
            fact=f"driver {facts.driver_loaded} is loaded, and no package brought it",
            fix="remove it (nvidia-uninstall), or keep it: set llmetal_driver.source to none",
        )
    if facts.broken:
        findings.add("packages-broken", fact=", ".join(facts.broken[:5]), fix="nothing to do")
    if request.driver.source == "debian" and "-rt-" in f"{facts.kernel}-":
        findings.add("rt-kernel", fact=facts.kernel, fix="boot a kernel without PREEMPT_RT")
    if system.key == "ubuntu2004":
        findings.add("os-driver-focal", fact=system.key, fix="upgrade to Ubuntu 22.04 or newer")


def _release(
    request: HostRequest,
    intent: Intent,
    candidates: Candidates,
    findings: Findings,
    prefer: str | None,
) -> str | None:
    """The newest release of the branch that every package of the set has."""
    offered = {name: candidates.releases(name) for name in intent.one_version}
    lead = offered[intent.one_version[0]]
    asked = request.driver.version
    if missing := [name for name, releases in offered.items() if not releases]:
        findings.add(
            "driver-set-incomplete",
            fact=f"source {request.driver.source} has no {', '.join(missing)}",
            fix="see that llmetal_driver.mirror is a whole copy, and names the right suite"
            if request.driver.mirror
            else "take a branch that the source has, and see that apt-get update works on the host",
        )
        return None
    mine = [up for up in lead if branch_of(up) == intent.branch and asked in {None, up}]
    if not mine:
        findings.add(
            "driver-version",
            fact=f"asked is {asked or 'branch ' + intent.branch}, offered {_few(lead)}",
            fix="ask for a release or branch that is offered, or bring the mirror up to date",
        )
        return None
    whole = [up for up in mine if all(up in releases for releases in offered.values())]
    if not whole:
        lacking = [name for name, releases in offered.items() if mine[0] not in releases]
        findings.add(
            "driver-set-incomplete",
            fact=f"{', '.join(lacking)}: not in version {mine[0]}",
            fix="ask for a release that the source has whole, or bring the mirror up to date",
        )
        return None
    return prefer if prefer in whole else whole[0]


def _few(names: Iterable[str]) -> str:
    listed, limit = list(names), 5
    return ", ".join(listed[:limit]) + (", ..." if len(listed) > limit else "")


def _why_release(request: HostRequest, release: str, prefer: str | None) -> str:
    if request.driver.version:
        return f"release {release} is asked for in the inventory"
    if prefer == release:
        return f"release {release} is that of the lock before"
    return f"release {release} is the newest of its branch that {request.driver.source} has whole"


def _check_gpus(release: str, intent: Intent, compat: Compat, findings: Findings) -> None:
    """Whether every GPU is served by the release, compared per branch."""
    branch = branch_of(release)
    for gpu in intent.gpus:
        if gpu.max_branch and int(branch) > int(gpu.max_branch):
            findings.add(
                "branch-arch-floor",
                fact=f"{gpu.name}, branch {branch}",
                fix=f"take branch {gpu.max_branch}",
                relax={"driver": gpu.max_branch},
            )
        elif gpu.min_driver and not is_at_least(release, gpu.min_driver):
            findings.add(
                "gpu-min-driver" if gpu.min_driver_known else "gpu-min-driver-unverified",
                fact=f"{gpu.name} needs {gpu.min_driver}, planned is {release}",
                fix=f"take driver {gpu.min_driver} or newer",
                relax={"driver": _preferred_branch(intent.gpus, compat)[0]},
            )
        elif intent.modules == "open" and (fix := _unlisted(gpu, release)):
            fact = f"{gpu.name} (10de:{gpu.device_id}), driver {release}"
            relax = {"driver": _preferred_branch(intent.gpus, compat)[0]}
            findings.add("gpu-in-branch", fact=fact, fix=fix, relax=relax)


def _unlisted(gpu: Gpu, release: str) -> str:
    """What to take instead where open modules of a release do not list a GPU; else empty."""
    since, branch = gpu.open_since, branch_of(release)
    if not since or int(branch) > max(map(int, since)):
        return ""
    first = since.get(branch)
    if first is None:
        missing = int(branch) < min(map(int, since))
        return "take one of the branches " + ", ".join(since) if missing else ""
    return "" if first == "all" or is_at_least(release, first) else f"take driver {first} or newer"


def _companions(
    intent: Intent, candidates: Candidates, release: str, findings: Findings
) -> list[dict[str, str]]:
    rows = []
    for name in intent.packages.companions:
        version = candidates.closest(name, release)
        if version is None:
            findings.add(
                "driver-set-incomplete",
                fact=f"no source has {name}",
                fix="see that llmetal_driver.mirror is a whole copy, and names the right suite",
            )
        else:
            rows.append({"name": name, "version": version})
    rows += [
        {"name": name, "version": version}
        for name in (one.replace("{version}", release) for one in intent.packages.optional)
        if (version := candidates.newest(name))
    ]
    return rows


def components(request: HostRequest, packages: PackageSet) -> tuple[str, ...]:
    """The components that packages of the distribution's archive are in; none of a mirror's own.

    Those that a host does not read yet are added beside its own declarations.
    """
    return () if request.driver.mirror or packages.external else packages.components


def _source(request: HostRequest, facts: Facts, packages: PackageSet) -> dict[str, Any]:
    driver, mirror = request.driver, request.driver.mirror
    return {
        "name": source_name(driver.source, facts.os_key),
        "type": driver.source,
        "uri": mirror.uri if mirror else None,
        "suite": mirror.suite if mirror else None,
        "components": list(mirror.components if mirror else components(request, packages)),
        "key": mirror.key if mirror else None,
        "fingerprint": mirror.fingerprint if mirror else None,
    }
