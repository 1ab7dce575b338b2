# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a host: from inventory, facts and candidates to a lock, or to refusals.

Pure: the same input gives the same plan, and no input raises. What stands against a plan is a
finding (data/rules); one refusal is enough for no lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    candidates as candidates_,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    facts as facts_,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    lock as lock_,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    lock_diff,
    plan_checks,
    plan_chooser,
    plan_context,
    plan_driver,
    plan_engine,
    plan_fabric,
    plan_nvlink,
    plan_toolkit,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Finding, Findings
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import upstream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat
    from ansible_collections.llmetal.inference.plugins.plugin_utils.facts import Facts
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_ARCHITECTURES = ("x86_64",)
_SHOWN = 5
_SERVICE_USER = "llmetal"
_SYSTEM_PATHS = {
    "store": "/var/lib/llmetal/models",
    "cache": "/var/cache/llmetal",
    "config": "/etc/llmetal",
    "run": "/run/llmetal",
    "log": "/var/log/llmetal",
}
_FABRIC_MANAGER = "nvidia-fabricmanager"
_UNRESOLVED = "found when package sources and model folders are asked"
_USER_PATHS = {"store": "models", "cache": "cache", "config": "config", "run": "run", "log": "log"}


@dataclass(frozen=True)
class Plan:
    """What a host would get, or why it gets nothing."""

    host: str
    lock: lock_.Lock | None
    refusals: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    from_file: bool = False
    """Whether the lock is the one that was there."""
    changes: tuple[lock_diff.Change, ...] = ()
    """What a lock made afresh would change of the one that was there."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """System and GPUs of the host, for a plan without a lock too; empty where facts are unread."""

    def as_dict(self) -> dict[str, Any]:
        """The plan as `llmetal plan --format json` prints it."""
        return {
            "status": "ok" if self.lock is not None else "refused",
            "lock": self.lock,
            "refusals": [_bare(finding) for finding in self.refusals],
            "warnings": [_bare(finding) for finding in self.warnings],
            "changes": [change.as_dict() for change in self.changes],
            "about": dict(self.about),
        }


@dataclass(frozen=True)
class Question:
    """What the resolve stage has to find out about a host."""

    packages: tuple[str, ...] = ()
    """Whose versions the host's package sources have."""
    models: tuple[tuple[str, str], ...] = ()
    """Names and folders of models to read."""
    cache: str = ""
    """The host's cache folder."""
    source: str = ""
    """The name of the driver's package source."""
    components: tuple[str, ...] = ()
    """Those of the distribution's archive that its packages are in."""
    toolkits: bool = False
    """Whether some of the packages are those of CUDA toolkits."""


def question(request: HostRequest, raw_facts: object, compat: Compat) -> Question:
    """Say what has to be known of a host before it can be planned."""
    findings = Findings(request.name, compat)
    facts = _facts(raw_facts, findings)
    if facts is None:
        return Question()
    settled, _why = plan_driver.settle(request, facts, compat)
    intent = plan_driver.intend(settled, facts, compat, findings)
    paths = paths_of(request, facts)
    models = tuple(
        (model.name, plan_context.at_home(model.path, facts.home)) for model in request.used_models
    )
    gpus = plan_driver.known_gpus(facts, compat)
    toolkits = plan_toolkit.questions(settled, facts, gpus, compat, findings)
    return Question(
        packages=(*(intent.questions if intent else ()), *toolkits),
        models=models,
        cache=paths["cache"],
        source=plan_driver.source_name(settled.driver.source, facts.os_key),
        components=plan_driver.components(settled, intent.packages) if intent else (),
        toolkits=bool(toolkits),
    )


def paths_of(request: HostRequest, facts: Facts) -> dict[str, str]:
    """Where things lie on a host."""
    root = plan_context.at_home(request.root, facts.home)
    rest = (
        _SYSTEM_PATHS
        if request.scope == "system"
        else {name: f"{root}/{folder}" for name, folder in _USER_PATHS.items()}
    )
    return {"root": root, "environments": f"{root}/environments", **rest}


def plan_host(
    request: HostRequest,
    raw_facts: object,
    raw_candidates: Mapping[str, Any] | None,
    compat: Compat,
    existing: lock_.Lock | None = None,
) -> Plan:
    """Plan one host.

    Args:
        request: what the inventory asks.
        raw_facts: the survey's result.
        raw_candidates: the resolve stage's result; None where it was not asked.
        compat: the compatibility data.
        existing: the lock that is there. It is kept where it still is what the inventory asks;
            else its versions are preferred.
    """
    findings = Findings(request.name, compat)
    facts = _facts(raw_facts, findings)
    if facts is None:
        return _ended(request, None, findings)
    plan = _plan_known(request, facts, raw_candidates, findings, existing)
    names = [known.name if (known := compat.gpu(g.device_id)) else g.name for g in facts.gpus]
    return replace(plan, about={"os": facts.os_key, "gpus": names})


def _plan_known(
    request: HostRequest,
    facts: Facts,
    raw_candidates: Mapping[str, Any] | None,
    findings: Findings,
    existing: lock_.Lock | None,
) -> Plan:
    """Plan a host whose facts are read."""
    if existing is not None and request.plan_lock in {"use", "compare"}:
        if existing["host"]["request_sha256"] == request.sha256:
            _check_lock(existing, request, facts, findings)
            kept = _ended(request, existing, findings, from_file=True)
            return _compared(kept, request, facts, raw_candidates, findings.compat)
        findings.add(
            "lock-renewed",
            fact="the inventory changed since the lock was made",
            fix="nothing to do: versions stay as they were where they still fit",
        )
    lock = _plan(request, facts, raw_candidates, findings, existing)
    if not request.only_looks:
        _check_whole(lock, findings)
    ended = _ended(request, lock, findings)
    if existing is None or ended.lock is None:
        return ended
    return replace(ended, changes=lock_diff.changes(existing, ended.lock))


def _compared(
    kept: Plan,
    request: HostRequest,
    facts: Facts,
    raw_candidates: Mapping[str, Any] | None,
    compat: Compat,
) -> Plan:
    """The plan that keeps a lock, with what a fresh one would change where that is asked."""
    if request.plan_lock != "compare" or kept.lock is None:
        return kept
    findings = Findings(request.name, compat)
    fresh = _plan(request, facts, raw_candidates, findings, None)
    if findings.refusals:
        first = findings.refusals[0]
        findings.add(
            "lock-not-again",
            fact=f"{first.fact} [{first.rule}]",
            fix=f"keep the lock, or: {first.fix}",
        )
        return replace(kept, warnings=(*kept.warnings, findings.warnings[-1]))
    return replace(kept, changes=lock_diff.changes(kept.lock, fresh))


def needs_no_answers(request: HostRequest, existing: lock_.Lock | None) -> bool:
    """Whether a host's lock is used as it is, so that nothing has to be asked."""
    return (
        existing is not None
        and request.plan_lock == "use"
        and existing["host"]["request_sha256"] == request.sha256
    )


def _facts(raw: object, findings: Findings) -> Facts | None:
    try:
        return facts_.parse(raw)
    except facts_.FactsError as error:
        findings.add(
            "facts-unreadable",
            fact=f"{error.key} is of type {error.found}",
            fix="see the survey of the host: the module's result and its warnings",
        )
        return None


def _ended(
    request: HostRequest,
    lock: lock_.Lock | None,
    findings: Findings,
    *,
    from_file: bool = False,
) -> Plan:
    kept = None if findings.refusals else lock
    refusals, warnings = tuple(findings.refusals), tuple(findings.warnings)
    return Plan(request.name, kept, refusals, warnings, from_file)


def _plan(
    asked: HostRequest,
    facts: Facts,
    raw_candidates: Mapping[str, Any] | None,
    findings: Findings,
    existing: lock_.Lock | None,
) -> lock_.Lock:
    compat = findings.compat
    _check_host(asked, facts, findings)
    found = candidates_.parse(raw_candidates)
    before = (existing or {}).get("driver") or {}
    request, why = plan_driver.settle(asked, facts, compat)
    intent = plan_driver.intend(request, facts, compat, findings)
    driver = plan_driver.decide(
        request,
        facts,
        intent,
        found,
        compat=compat,
        findings=findings,
        prefer=None if request.plan_lock == "upgrade" else before.get("version"),
    )
    if driver.driver is not None:
        driver.driver["why"].insert(0, why)
    release = driver.release or facts.driver_loaded
    _check_fabric(facts, driver, findings)
    paths = paths_of(request, facts)
    toolkits = plan_toolkit.decide(
        request,
        facts,
        plan_driver.known_gpus(facts, compat),
        found,
        compat=compat,
        findings=findings,
        driver=release,
        paths=paths,
    )
    if not request.instances:
        plan_toolkit.check_room(toolkits, facts, paths["root"], findings)
    user = _SERVICE_USER if request.scope == "system" else facts.user
    engine = plan_engine.decide(
        request,
        facts,
        found,
        compat=compat,
        findings=findings,
        paths=paths,
        user=user,
        driver=release,
        needs=plan_toolkit.needs(toolkits, facts, paths["root"]),
    )
    plan_toolkit.with_python(toolkits, engine.python, facts, compat)
    plan_toolkit.set_environment(toolkits, engine.instances, paths)
    toolkit = toolkits.toolkit
    _check_not_yet(request, facts, findings)
    plan_checks.check(
        _around(request, facts, paths, driver=driver, toolkit=toolkit, engine=engine), findings
    )
    plan_chooser.explain(request, findings)
    unresolved = [*driver.unresolved, *toolkits.unresolved, *engine.unresolved]
    return {
        "schema": lock_.SCHEMA,
        "host": _host(asked, facts, compat, paths, user),
        "kernel": driver.kernel,
        "driver": driver.driver,
        "fabric": driver.fabric,
        "nvlink": _nvlink(request, facts, driver, compat),
        "toolkit": toolkit,
        "toolkits": toolkits.toolkits,
        "container": None,
        "python": engine.python,
        "engines": engine.engines,
        "models": engine.models,
        "instances": engine.instances,
        "unresolved": [{"field": name, "why": _UNRESOLVED} for name in unresolved],
    }


def _around(  # noqa: PLR0913 - all that a run does to a host
    request: HostRequest,
    facts: Facts,
    paths: Mapping[str, str],
    *,
    driver: plan_driver.DriverPlan,
    toolkit: Mapping[str, Any] | None,
    engine: plan_engine.EnginePlan,
) -> plan_checks.Context:
    """What a run would do with the host, for the checks of what is there already."""
    row, mirror = driver.driver or {}, request.driver.mirror
    environments = {one["name"]: one for one in (engine.python or {}).get("environments", ())}
    engines = []
    for one in engine.engines:
        environment: Mapping[str, Any] = environments.get(one["environment"], {})
        needs = environment.get("requirements", ())
        engines.append(
            plan_checks.Engine(
                name=one["name"],
                version=one["version"],
                device=one["device"],
                cuda_major=int(one["cuda"]) if one["cuda"] else None,
                environment=f"{paths['environments']}/{one['environment']}",
                python=(environment.get("python") or {}).get("path"),
                requirements=tuple(f"{need['name']}=={need['version']}" for need in needs),
            )
        )
    return plan_checks.Context(
        facts=facts,
        scope=request.scope,
        wants_driver=driver.driver is not None,
        driver_source=request.driver.source,
        driver_branch=row.get("branch"),
        driver_release=driver.release,
        driver_modules=row.get("modules"),
        driver_packages=_of_driver(driver),
        source_uri=mirror.uri if mirror else None,
        source_suite=mirror.suite if mirror else None,
        source_fingerprint=mirror.fingerprint if mirror else None,
        toolkit=toolkit["version"] if toolkit else None,
        engines=engines,
        instances=[_served(one) for one in engine.instances],
        container=request.runtime == "container",
        model_bytes=sum(file["size"] for one in engine.models for file in one["files"]),
        paths=paths,
    )


def _nvlink(
    request: HostRequest, facts: Facts, driver: plan_driver.DriverPlan, compat: Compat
) -> dict[str, Any] | None:
    """What the links must be like, on a host whose GPUs have a driver that can say so."""
    if request.scope != "system" or (driver.driver is None and facts.driver_loaded is None):
        return None
    return plan_nvlink.decide(request, facts, compat)


def _of_driver(driver: plan_driver.DriverPlan) -> dict[str, str | None]:
    """The packages of the driver set, the fabric's among them, and their versions."""
    fabric = driver.fabric or {}
    found = {one["name"]: one["version"] for one in (driver.driver or {}).get("packages", ())}
    found |= {one["name"]: one["version"] for one in fabric.get("packages", ())}
    return found | ({fabric["package"]: fabric["version"]} if fabric else {})


def _served(row: Mapping[str, Any]) -> plan_checks.Instance:
    layout = row["layout"] or {}
    return plan_checks.Instance(
        name=row["name"],
        engine=row["engine"],
        device=row["device"],
        host=row["host"],
        port=row["port"],
        gpus=tuple(row["gpus"]),
        tensor_parallel=layout.get("tensor"),
        pipeline_parallel=layout.get("pipeline"),
        start_timeout=row["start_timeout"],
        manager=row["manager"],
    )


def _check_not_yet(request: HostRequest, facts: Facts, findings: Findings) -> None:
    """What this release can plan, and has no role for."""
    if request.runtime == "container":
        plan_engine.not_yet("engines in containers", request, findings, fix="leave it out")
    if request.runtime == "container" and facts.os_key == "ubuntu2004":
        findings.add("os-docker-focal", fact=facts.os_pretty, fix="upgrade to Ubuntu 22.04")


def _host(
    request: HostRequest, facts: Facts, compat: Compat, paths: dict[str, str], user: str
) -> dict[str, Any]:
    return {
        "name": request.name,
        "os": facts.os_key,
        "os_pretty": facts.os_pretty,
        "arch": facts.arch,
        "scope": request.scope,
        "user": user,
        "paths": paths,
        "packages": _packages(request, compat),
        "gpus": [
            {
                "pci": "not known" if request.hypothetical else gpu.pci,
                "id": gpu.device_id,
                "key": known.key if (known := compat.gpu(gpu.device_id)) else None,
                "name": known.name if known else gpu.name,
            }
            for gpu in facts.gpus
        ],
        "platform": {} if request.hypothetical else dict(facts.platform),
        "request_sha256": request.sha256,
    }


def _packages(request: HostRequest, compat: Compat) -> list[dict[str, str]]:
    """The distribution packages that a host gets besides the driver; none without root."""
    if request.scope == "user":
        return []
    names = set(compat.base_packages)
    for one in request.instances:
        names.update(compat.device_packages[one.device])
    return [{"name": name} for name in sorted(names)]


def _check_host(request: HostRequest, facts: Facts, findings: Findings) -> None:
    if facts.unreadable:
        findings.add(
            "facts-partial",
            fact=", ".join(facts.unreadable),
            fix="survey the host again with this release",
        )
    if facts.arch not in _ARCHITECTURES:
        key = plan_context.nearest_gpu(facts, findings.compat, lambda _row: True)
        findings.add(
            "arch",
            fact=f"the host is of architecture {facts.arch}",
            fix=f"take {findings.compat.gpus[key]['model']} in a host of x86_64"
            if request.hypothetical and key
            else "take the host out of the inventory",
            relax={"gpus": [key] * len(facts.gpus)},
        )
    if findings.compat.system(facts.os_key) is None:
        known = ", ".join(findings.compat.systems)
        findings.add("os-unknown", fact=facts.os_pretty, fix=f"install one of {known}")


def _check_fabric(facts: Facts, driver: plan_driver.DriverPlan, findings: Findings) -> None:
    """Whether a driver that is kept has the fabric manager that its switches need."""
    count = plan_fabric.switches(facts, findings.compat)
    if count and driver.driver is None and facts.driver_loaded and not facts.fabric_active:
        findings.add(
            "fm-needed",
            fact=f"{count} NVSwitches, and nvidia-fabricmanager is not active",
            fix="start nvidia-fabricmanager in the driver's version, or let llmetal install the "
            "driver set (llmetal_driver.source)",
        )
    managers = {n: v for n, v in facts.packages.items() if n.startswith(_FABRIC_MANAGER)}
    other = [n for n, v in managers.items() if upstream(v) != facts.driver_loaded]
    if count and driver.driver is None and facts.driver_loaded and other:
        findings.add(
            "fm-version",
            fact=f"{other[0]} {managers[other[0]]}, driver {facts.driver_loaded}",
            fix="install it in the driver's version, or let llmetal install the driver set "
            "(llmetal_driver.source)",
        )


def _check_lock(lock: lock_.Lock, request: HostRequest, facts: Facts, findings: Findings) -> None:
    """Whether a lock that is there is whole, and belongs to this host as it is now."""
    _check_whole(lock, findings)
    again = "plan anew: remove the lock file, or run with -e llmetal_plan_lock=ignore"
    host = lock["host"]
    if host["name"] != request.name:
        fact = f"the lock is that of {host['name']}"
        findings.add("lock-host", fact=fact, fix=again)
    for what, before, now in (
        ("operating system", host["os"], facts.os_key),
        ("architecture", host["arch"], facts.arch),
        ("GPUs", _ids(row["id"] for row in host["gpus"]), _ids(g.device_id for g in facts.gpus)),
    ):
        if before != now:
            fact = f"{what}: the lock has {before or 'none'}, the host {now or 'none'}"
            findings.add("lock-host", fact=fact, fix=again)
    kernel = lock["kernel"]
    # A reboot boots the newest kernel that was there: the modules are built for both.
    booted = {kernel["running"], (kernel.get("newest") or {}).get("release")}
    if lock["driver"] is not None and facts.kernel not in booted:
        findings.add(
            "lock-kernel",
            fact=f"the lock is for Linux {kernel['running']}, running is {facts.kernel}",
            fix=f"boot Linux {kernel['running']}, or {again}",
        )
    for fact in plan_fabric.of_other_version(lock):
        findings.add("fm-version", fact=fact, fix=again)


def _check_whole(lock: lock_.Lock, findings: Findings) -> None:
    """Whether a lock has everything that a run installs."""
    if lock["unresolved"]:
        findings.add(
            "lock-unresolved",
            fact=", ".join(row["field"] for row in lock["unresolved"][:_SHOWN]),
            fix="plan where the host can be reached: llmetal plan -i INVENTORY --upgrade --write",
        )


def _ids(ids: Any) -> str:  # noqa: ANN401 - an iterable of texts
    return ", ".join(sorted(ids))


def _bare(finding: Finding) -> dict[str, str]:
    return {key: value for key, value in finding.as_dict().items() if key != "host"}
