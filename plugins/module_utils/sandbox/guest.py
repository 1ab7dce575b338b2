# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sandbox host: its root, its configuration, its guest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (
    mounts,
    network,
    processes,
    ssh,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.base import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        HostPaths,
        Settings,
    )

_READY_TIMEOUT = 90.0
_STOP_TIMEOUT = 30.0
_KILL_TIMEOUT = 10.0
_POLL = 0.05
_EXPORTS = Path("/run/systemd/nspawn/unix-export")
"""Where newer releases of systemd-nspawn mount a folder for each guest; a killed one leaves it."""
_CGROUPS = Path("/sys/fs/cgroup")
_UNIFIED = _CGROUPS / "cgroup.controllers"


@dataclass(frozen=True)
class Bind:
    """A folder of this machine that the guest sees."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Wish:
    """What a host is to be."""

    name: str
    os: str
    address: str
    scenario: str = ""
    binds: tuple[Bind, ...] = ()
    memory_mib: int = 0

    @property
    def digest(self) -> str:
        """Changes when the guest has to be configured and started again."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Reality:
    """What there is of a host."""

    prepared_os: str = ""
    prepared_digest: str = ""
    base: str = ""
    base_exists: bool = False
    mounted: bool = False
    running: bool = False


@dataclass(frozen=True)
class Steps:
    """What to do, in this order."""

    stop: bool = False
    wipe: bool = False
    mount: bool = False
    configure: bool = False
    start: bool = False

    def any(self) -> bool:
        """Whether there is anything to do."""
        return any(asdict(self).values())


def steps_to_start(wish: Wish, reality: Reality, *, reset: bool = False) -> Steps:
    """What brings a host to be running as wished, whatever an interrupted run left.

    A root whose preparation did not finish is thrown away (nothing of value can be in it yet), and
    so is one whose base is gone.

    Raises:
        LlmetalError: the host exists with another operating system.
    """
    is_whole = bool(reality.prepared_os) and reality.base_exists
    if is_whole and not reset and reality.prepared_os != wish.os:
        raise LlmetalError(
            what=f"sandbox host {wish.name} is {reality.prepared_os}, wanted {wish.os}",
            fix=f"reset it (`llmetal sandbox reset {wish.name}`): what it holds is lost",
        )
    wipe = reset or not is_whole
    configure = wipe or reality.prepared_digest != wish.digest
    return Steps(
        stop=reality.running and configure,
        wipe=wipe,
        mount=wipe or not reality.mounted,
        configure=configure,
        start=configure or not reality.running,
    )


def read_reality(paths: HostPaths) -> Reality:
    """Look at what there is of a host."""
    prepared: dict[str, str] = {}
    text = read_text(paths.prepared)
    if text:
        try:
            prepared = json.loads(text)
        except ValueError:
            prepared = {}
    base = prepared.get("base", "")
    return Reality(
        prepared_os=prepared.get("os", ""),
        prepared_digest=prepared.get("digest", ""),
        base=base,
        base_exists=bool(base) and Path(base).is_dir(),
        mounted=mounts.is_mounted(paths.root),
        running=is_running(paths),
    )


@dataclass(frozen=True)
class Outfit:
    """What a root is made with."""

    base: Path
    """What it stands on; used only where it is made anew."""
    public_key: str
    """The key that root accepts."""
    hardware: Callable[[Path], None]
    """Puts the scenario's hardware into it."""


def is_running(paths: HostPaths) -> bool:
    """Whether the guest runs and nobody has asked it to end."""
    return processes.is_alive(paths.supervisor_pid) and not paths.stopping.exists()


def carry_out(steps: Steps, settings: Settings, wish: Wish, outfit: Outfit) -> None:
    """Do the steps; each one can be interrupted and done again."""
    base = outfit.base
    paths = settings.host(wish.name)
    if steps.stop:
        stop(paths)
    if steps.wipe:
        stop(paths)
        paths.prepared.unlink(missing_ok=True)
        mounts.unmount_all(paths.root)
        for folder in (paths.upper, paths.work):
            shutil.rmtree(folder, ignore_errors=True)
        paths.faults.unlink(missing_ok=True)
    else:
        base = Path(read_reality(paths).base)
    if steps.mount:
        mounts.mount_overlay(base=base, upper=paths.upper, work=paths.work, root=paths.root)
    if steps.configure:
        _configure(settings, wish, paths.root, public_key=outfit.public_key, is_new=steps.wipe)
        outfit.hardware(paths.root)
        write_atomic(paths.guest, json.dumps(start_plan(settings, wish), indent=2) + "\n")
        prepared = {"os": wish.os, "base": str(base), "digest": wish.digest}
        write_atomic(paths.prepared, json.dumps(prepared, indent=2) + "\n")
    if steps.start:
        start(settings, paths, memory_mib=wish.memory_mib)


def start_plan(settings: Settings, wish: Wish) -> dict[str, Any]:
    """How systemd-nspawn is started for a host."""
    argv = [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        "--register=no",
        "--keep-unit",
        f"--directory={settings.host(wish.name).root}",
        f"--machine={wish.name}",
        f"--network-bridge={settings.bridge}",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--kill-signal=SIGRTMIN+4",
        "--capability=all",
        "--system-call-filter=add_key keyctl bpf",
        "--console=pipe",
    ]
    for bind in wish.binds:
        option = "--bind-ro" if bind.read_only else "--bind"
        argv.append(f"{option}={_quote(bind.source)}:{_quote(bind.target)}")
    env = {}
    if SYSTEMS[wish.os].codename != "bookworm" and not _UNIFIED.exists():
        env["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] = "1"
        argv.append("--setenv=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
    return {"argv": argv, "env": env, "memory_mib": wish.memory_mib}


def start(settings: Settings, paths: HostPaths, *, memory_mib: int = 0) -> None:
    """Start the supervisor, which starts the guest; one that is ending is waited for."""
    stop(paths)
    program = settings.programs / "supervise_guest.py"
    argv = [sys.executable, "-I", str(program), str(paths.folder)]
    processes.start_detached(
        argv, pid_file=paths.supervisor_pid, log=paths.console, memory_mib=memory_mib
    )


def stop(paths: HostPaths) -> bool:
    """Power a guest off, at last by force; one that outlived its supervisor too.

    Returns:
        Whether its supervisor ran.
    """
    ran = processes.stop(paths.supervisor_pid, timeout=_STOP_TIMEOUT)
    processes.kill_in_root(paths.root, timeout=_KILL_TIMEOUT)
    network.remove_end(f"vb-{paths.folder.name}", timeout=_KILL_TIMEOUT)
    _remove_groups(f"llmetal-sandbox-{paths.folder.name}")
    return ran


def _remove_groups(name: str) -> None:
    """Remove the control groups of a guest whose supervisor could not; the deepest first."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    while groups := [
        path for path in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if path.exists()
    ]:
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        if time.monotonic() > deadline:
            return  # An empty group that stays is taken over by the next guest of that name.
        time.sleep(_POLL)


def remove(paths: HostPaths) -> bool:
    """Remove everything of a host.

    Returns:
        Whether there was anything.
    """
    if not paths.folder.exists():
        return False
    stop(paths)
    paths.prepared.unlink(missing_ok=True)
    mounts.unmount_all(paths.folder)
    exported = _EXPORTS / paths.folder.name
    mounts.unmount_all(exported)
    shutil.rmtree(exported, ignore_errors=True)
    shutil.rmtree(paths.folder)
    return True


def wait_until_ready(settings: Settings, name: str) -> dict[str, str]:
    """Wait until the guest answers over ssh and has booted.

    Returns:
        `boot_id` and `system` (running or degraded, in systemd's words).

    Raises:
        LlmetalError: it does not come up.
    """
    paths = settings.host(name)
    deadline = time.monotonic() + _READY_TIMEOUT
    said = ""
    while time.monotonic() < deadline:
        words = ("cat", "/proc/sys/kernel/random/boot_id;", "systemctl", "is-system-running")
        done = ssh.on_host(settings, name, *words, "--wait", timeout=_READY_TIMEOUT)
        lines = done.stdout.split()
        if len(lines) == 2 and lines[1] in {"running", "degraded"}:  # noqa: PLR2004 - two words
            return {"boot_id": lines[0], "system": lines[1]}
        said = done.tail(2)
        if not is_running(paths):
            break
        time.sleep(0.15)
    raise LlmetalError(
        what=f"sandbox host {name} does not come up",
        where=str(paths.console),
        why=said or "it ended",
        fix="read its console in that file, then `llmetal sandbox reset` it",
    )


def machine_resolver() -> str:
    """A resolv.conf that works in a guest too: one whose servers are not this machine's own."""
    for path in ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"):
        lines = [line for line in (read_text(path) or "").splitlines() if line.strip()]
        kept = [line for line in lines if not line.startswith(("nameserver 127.", "#", ";"))]
        if any(line.startswith("nameserver") for line in kept):
            return "\n".join(kept) + "\n"
    return ""


def _configure(
    settings: Settings, wish: Wish, root: Path, *, public_key: str, is_new: bool
) -> None:
    """Write what makes a root this host: name, address, resolver, keys."""
    system = SYSTEMS[wish.os]
    etc = root / "etc"
    write_atomic(etc / "hostname", wish.name + "\n")
    write_atomic(
        etc / "hosts", f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {wish.name}\n"
    )
    write_atomic(
        etc / "systemd/network/10-host0.network",
        "[Match]\nName=host0\n\n[Network]\n"
        f"Address={wish.address}/{settings.subnet.prefixlen}\nGateway={settings.gateway}\n"
        "LinkLocalAddressing=no\nIPv6AcceptRA=no\n",
    )
    (etc / "resolv.conf").unlink(missing_ok=True)
    write_atomic(etc / "resolv.conf", machine_resolver())
    ssh.install_host_key(settings, wish.name, root)
    folder = root / "root/.ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / "authorized_keys", public_key + "\n", mode=0o600)
    if is_new:
        write_atomic(etc / "machine-id", secrets.token_hex(16) + "\n", mode=0o444)
        if system.os_release:
            (etc / "os-release").unlink(missing_ok=True)
            write_atomic(etc / "os-release", system.os_release)
    for bind in wish.binds:
        (root / bind.target.lstrip("/")).mkdir(parents=True, exist_ok=True)


def _quote(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")
