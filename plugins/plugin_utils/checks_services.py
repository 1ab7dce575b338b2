# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of what services need: ports, memory that they may lock or share, places to write."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Findings
    from ansible_collections.llmetal.inference.plugins.plugin_utils.look import Look
    from ansible_collections.llmetal.inference.plugins.plugin_utils.plan_checks import (
        Context,
        Instance,
    )

_MIB = 1 << 20
_GIB = 1 << 30
_SHM_NEEDED = 256 * _MIB
"""Less cannot hold what the processes of one instance exchange; a container gets 64 MiB."""
_DOWNLOAD_NEEDED = 4 * _GIB
_UNLIMITED = -1
_REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3",
    "smbfs", "virtiofs",
}  # fmt: skip


def port_used(context: Context, findings: Findings) -> None:
    """A port that somebody else listens on."""
    rows = context.look.rows("ports")
    for one in context.instances:
        for row in rows:
            if row.number("port") != one.port or not _overlap(one.host, row.text("address")):
                continue
            process = row.at("process")
            ours = context.is_own(process) if process.raw else context.own_services_run
            if ours:
                continue
            findings.add(
                "port-in-use",
                fact=f"instance {one.name} wants port {one.port}; {_owner(row)} listens on "
                f"{row.text('address')}",
                fix=f"stop it (ss -ltnp 'sport = :{one.port}' shows it), or give the instance "
                "another port",
            )
            break


def _owner(row: Look) -> str:
    process = row.at("process")
    if not process.raw:
        return f"a process of user {row.number('uid')}"
    name = process.text("unit") or process.text("program") or "?"
    return f"process {process.number('pid')} ({name})"


def _overlap(wanted: str, taken: str | None) -> bool:
    """Whether two addresses of one port exclude each other."""
    try:
        mine = ipaddress.ip_address("127.0.0.1" if wanted == "localhost" else wanted)
        other = ipaddress.ip_address(taken or "")
    except ValueError:
        return False
    if other.is_unspecified or mine.is_unspecified:
        # A socket on :: usually takes the port for both families.
        return other.version == mine.version or str(other) == "::" or str(mine) == "::"
    return mine == other


def port_twice(context: Context, findings: Findings) -> None:
    """Two instances of a plan with one port."""
    taken: dict[int, Instance] = {}
    for one in context.instances:
        if one.port is None:
            continue
        other = taken.setdefault(one.port, one)
        if other is not one and _overlap(one.host, other.host):
            findings.add(
                "port-twice",
                fact=f"{other.name} and {one.name} both have port {one.port}",
                fix="give each instance a port of its own",
            )


def shared_memory(context: Context, findings: Findings) -> None:
    """A /dev/shm that is too small for processes that compute together."""
    size = context.look.number("limits", "shm_bytes")
    many = [one for one in context.on_gpus if one.ranks > 1]
    if size is not None and size < _SHM_NEEDED and many:
        findings.add(
            "shm-small",
            fact=f"shared memory (/dev/shm) has {size // _MIB} MiB, {many[0].name} computes on "
            f"{many[0].ranks} "
            "GPUs",
            fix="mount -o remount,size=16G /dev/shm; for a container --shm-size=16g or --ipc=host",
        )


def locked_memory(context: Context, findings: Findings) -> None:
    """InfiniBand, and a limit of locked memory that services cannot lift themselves."""
    limits = context.look.at("limits")
    many = [one for one in context.on_gpus if one.ranks > 1]
    if not many or not limits.texts("infiniband"):
        return
    own = context.scope == "user" or any(one.manager != "systemd" for one in many)
    if own:
        limit = limits.number("memlock_hard_bytes")
    elif context.container:
        limit = limits.number("memlock_bytes")
    else:
        return
    if limit is not None and limit != _UNLIMITED:
        findings.add(
            "memlock",
            fact=f"{limits.texts('infiniband')[0]} is there, and at most {limit // 1024} KiB can "
            "be locked",
            fix="set LimitMEMLOCK=infinity for user@.service (or the container daemon), or run "
            "containers "
            "with --ulimit memlock=-1",
        )


def temporary(context: Context, findings: Findings) -> None:
    """A /tmp on the network, where the files of an engine's metrics cannot be mapped."""
    kind = context.look.text("limits", "tmp_file_system")
    if context.instances and kind and (kind in _REMOTE or kind.startswith("fuse.")):
        findings.add(
            "tmp-not-local",
            fact=f"the folder /tmp is on {kind}",
            fix="mount a tmpfs on /tmp, or set PROMETHEUS_MULTIPROC_DIR to a folder of /run or "
            "/dev/shm in "
            "the instance's env",
        )


def start_time(context: Context, findings: Findings) -> None:
    """A service that is given up on before its model is loaded."""
    for one in context.instances:
        needed, given = one.load_seconds, one.start_timeout
        if needed is not None and given is not None and needed > given:
            findings.add(
                "start-timeout",
                fact=f"{one.name} needs about {needed:.0f} s to load, its service has "
                f"{given:.0f} s",
                fix=f"raise the instance's start timeout above {needed * 2:.0f} s",
            )


def download_memory(context: Context, findings: Findings) -> None:
    """Too little memory for a download with many connections."""
    known = [
        value
        for name in ("memory_available_bytes", "memory_limit_bytes")
        if (value := context.look.number("limits", name)) is not None
    ]
    if context.downloads and known and min(known) < _DOWNLOAD_NEEDED:
        findings.add(
            "download-memory",
            fact=f"{min(known) / _GIB:.1f} GiB can be had",
            fix="download with fewer workers (HF_XET_HIGH_PERFORMANCE unset, "
            "HF_HUB_DISABLE_XET=1), or on "
            "another host",
        )


def writable(context: Context, findings: Findings) -> None:
    """A folder that a run or a service writes to, on a disk that is mounted read-only."""
    disks = {row.text("path"): row.flag("read_only") for row in context.look.rows("disks")}
    for path in sorted(set(context.paths.values())):
        above = [
            disk
            for disk in disks
            if disk and (path == disk or path.startswith(disk.rstrip("/") + "/"))
        ]
        place = max(above, key=len, default=None)
        if place is not None and disks[place]:
            findings.add(
                "path-read-only",
                fact=f"{path} is on a disk that is mounted read-only",
                fix="remount it for writing, or set llmetal_root to another disk",
            )
            return


CHECKS = (
    port_used,
    port_twice,
    shared_memory,
    locked_memory,
    temporary,
    start_time,
    download_memory,
    writable,
)
