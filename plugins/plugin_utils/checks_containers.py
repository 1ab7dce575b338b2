# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of Docker and of what brings GPUs into containers, where instances run in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import Context

_LEGACY = {None, "auto", "legacy"}


def snap(context: Context, findings: Findings) -> None:
    """Docker from a snap, which sees neither the toolkit nor daemon.json."""
    if context.container and context.look.text("docker", "kind") == "snap":
        findings.add(
            "docker-snap",
            fact=f"docker is {context.look.text('docker', 'path') or 'a snap'}",
            fix="snap remove docker, then install docker-ce or docker.io",
        )


def configuration(context: Context, findings: Findings) -> None:
    """A configuration with which Docker does not start."""
    if context.container and context.look.flag("docker", "daemon_json", "valid") is False:
        findings.add(
            "daemon-json",
            fact=f"/etc/docker/daemon.json: {context.look.text('docker', 'daemon_json', 'error')}",
            fix="correct or delete the file, then restart docker",
        )


def runtime(context: Context, findings: Findings) -> None:
    """Docker that knows no way to hand a GPU to a container."""
    look = context.look
    if not context.container or context.container_toolkit:
        return
    if look.text("docker", "kind") not in {"deb", "other"}:
        return
    programs = look.known("container_toolkit", "programs")
    if programs and not look.texts("container_toolkit", "programs"):
        fact = "the NVIDIA Container Toolkit is not installed"
    elif look.known("docker", "daemon", "runtimes") and "nvidia" not in look.texts(
        "docker", "daemon", "runtimes"
    ):
        fact = f"docker knows the runtimes {', '.join(look.texts('docker', 'daemon', 'runtimes'))}"
    else:
        return
    findings.add(
        "docker-gpu-runtime",
        fact=fact,
        fix="install nvidia-container-toolkit, run nvidia-ctk runtime configure --runtime=docker "
        "and "
        "restart docker",
    )


def control_groups(context: Context, findings: Findings) -> None:
    """Containers that lose their GPUs when systemd reloads its units."""
    look = context.look
    if not context.container or look.text("docker", "daemon", "cgroup_driver") != "systemd":
        return
    toolkit = look.at("container_toolkit")
    by_name = toolkit.flag("device_links") or toolkit.rows("cdi")
    if toolkit.text("mode") in _LEGACY and not by_name and toolkit.known("cdi"):
        findings.add(
            "docker-cgroup",
            fact="docker leaves control groups to systemd, and GPUs come in by the legacy mode",
            fix="use CDI (nvidia-ctk cdi generate), or nvidia-ctk system create-dev-char-symlinks "
            "--create-all; run no systemctl daemon-reload beside GPU containers",
        )


def libraries(context: Context, findings: Findings) -> None:
    """No library of the driver for the toolkit to bring into a container."""
    look = context.look
    if not context.container or context.wants_driver:
        return
    known = look.known("libraries", "libnvidia-ml")
    if known and not look.texts("libraries", "libnvidia-ml"):
        findings.add(
            "driver-libraries-missing",
            fact="ldconfig -p does not list libnvidia-ml.so.1",
            fix="install the driver's compute libraries (llmetal_driver.source) and run ldconfig",
        )


def daemon(context: Context, findings: Findings) -> None:
    """A docker command that talks to a daemon of another kernel."""
    if not context.container:
        return
    look = context.look
    name, kernel = look.text("docker", "context"), look.text("docker", "daemon", "kernel")
    if name not in {None, "default"}:
        fact = f"docker uses the context {name}"
    elif kernel and kernel != context.facts.kernel:
        fact = f"docker's daemon runs on Linux {kernel}, the host on {context.facts.kernel}"
    elif look.flag("docker", "daemon", "rootless"):
        fact = "docker's daemon is rootless"
    else:
        return
    findings.add(
        "docker-context",
        fact=fact,
        fix="docker context use default, with the daemon of docker-ce or docker.io on this host",
    )


def specification(context: Context, findings: Findings) -> None:
    """A CDI file that was made for another driver."""
    if not context.container or context.wants_driver:
        return
    for row in context.look.rows("container_toolkit", "cdi"):
        missing, version = row.number("missing") or 0, row.text("version")
        loaded = context.facts.driver_loaded
        if missing:
            fact = f"{missing} of its paths are gone ({', '.join(row.texts('missing_first')[:2])})"
        elif version and loaded and version != loaded:
            fact = f"it is for driver {version}, loaded is {loaded}"
        else:
            continue
        findings.add(
            "cdi-stale",
            fact=f"{row.text('file')}: {fact}",
            fix=f"nvidia-ctk cdi generate --output={row.text('file')}",
        )
        return


CHECKS = (snap, configuration, runtime, control_groups, libraries, daemon, specification)
