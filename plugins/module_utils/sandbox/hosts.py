# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox as a whole: hosts come and go, and with the last one everything goes."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (
    base,
    breakage,
    guest,
    hardware,
    ledger,
    locks,
    machine,
    mounts,
    network,
    repository,
    sources,
    ssh,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.scenario import (
    load_fault,
    load_scenario,
)

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.guest import Wish
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

_SHARED_TIMEOUT = 120.0
_HOST_TIMEOUT = 1500.0
_INSTALL_TIMEOUT = 600.0
_NEEDED = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gpg": "gnupg",
}


@dataclass(frozen=True)
class Outcome:
    """What was done to a host."""

    changed: bool
    before: dict[str, Any]
    after: dict[str, Any]
    host: dict[str, Any]


def missing_tools() -> list[str]:
    """The Debian packages of the programs that this machine lacks."""
    return sorted({package for tool, package in _NEEDED.items() if not shutil.which(tool)})


def install_tools(settings: Settings) -> bool:
    """Install what this machine lacks, where it has apt.

    Returns:
        Whether anything was installed.

    Raises:
        LlmetalError: it cannot be installed here.
    """
    if not missing_tools():
        return False
    with locks.held(settings.lock, timeout=_INSTALL_TIMEOUT):
        missing = missing_tools()
        if not missing:
            return False
        if not shutil.which("apt-get"):
            raise LlmetalError(
                what="this machine lacks programs that the sandbox needs",
                why=", ".join(missing),
                fix="install them; on Debian or Ubuntu the sandbox does that itself",
            )
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "-q", "update"], timeout=_INSTALL_TIMEOUT, env=env)
        argv = ["apt-get", "-q", "-y", "--no-install-recommends", "install", *missing]
        done = run(argv, timeout=_INSTALL_TIMEOUT, env=env)
        if not done.ok:
            raise LlmetalError(
                what="the programs that the sandbox needs cannot be installed",
                why=done.tail(),
                fix=f"apt-get install {' '.join(missing)}",
            )
    return True


def start(
    settings: Settings,
    wish: Wish,
    *,
    faults: list[str] | None = None,
    reset: bool = False,
    check: bool = False,
) -> Outcome:
    """Make a host and start it, or find that it runs as wished.

    Args:
        settings: the sandbox.
        wish: the host.
        faults: the faults to be switched on, all others off; None leaves them as they are.
        reset: throw away what the host holds.
        check: change nothing.

    Raises:
        LlmetalError: it cannot be made.
    """
    _refuse_unfit(settings, wish)
    scenario = load_scenario(settings.files, wish.scenario) if wish.scenario else None
    broken = [load_fault(settings.files, name) for name in sorted(set(faults or []))]
    paths = settings.host(wish.name)
    before = _describe(settings, wish.name)
    kept = [] if reset else before.get("faults", [])
    after = _as_wished(wish, kept if faults is None else [fault.name for fault in broken])
    if check:
        steps = guest.steps_to_start(wish, guest.read_reality(paths), reset=reset)
        changed = steps.any() or before != after
        return Outcome(changed, before, after, _public(settings, wish.name, after))
    changed = install_tools(settings)
    with locks.held(settings.host_lock(wish.name), timeout=_HOST_TIMEOUT):
        reality = guest.read_reality(paths)
        steps = guest.steps_to_start(wish, reality, reset=reset)
        root = Path(reality.base)
        if steps.wipe:
            codename = base.SYSTEMS[wish.os].codename
            mirror = sources.machine_mirror(settings.debian_mirror)
            root, _ = base.ensure(base.machine_recipe(codename, mirror), settings.cache)
        with locks.held(settings.lock, timeout=_SHARED_TIMEOUT):
            public_key, made = _ensure_shared(settings, wish)

        def install(target: Path) -> None:
            hardware.install(settings, target, wish.name, wish.os, scenario)

        outfit = guest.Outfit(root, public_key, install)
        guest.carry_out(steps, settings, wish, outfit)
        if not steps.start and not guest.is_running(paths):
            guest.start(settings, paths, memory_mib=wish.memory_mib)
        ready = guest.wait_until_ready(settings, wish.name)
        if faults is not None or steps.configure:
            wanted = [load_fault(settings.files, name) for name in after["faults"]]
            changed = breakage.set_faults(settings, wish.name, scenario, wanted) or changed
    host = {**_public(settings, wish.name, after), **ready}
    return Outcome(changed or made or steps.any(), before, after, host)


def stop(settings: Settings, name: str, *, check: bool = False) -> Outcome:
    """Power a host off; what it holds stays."""
    _refuse_foreign(settings)
    before = _describe(settings, name)
    after = {**before, "state": "stopped"} if before["state"] != "absent" else before
    changed = before != after
    if changed and not check:
        with locks.held(settings.host_lock(name), timeout=_HOST_TIMEOUT):
            guest.stop(settings.host(name))
    return Outcome(changed, before, after, _public(settings, name, after))


def remove(settings: Settings, name: str, *, check: bool = False) -> Outcome:
    """Remove a host; with the last one, everything that the sandbox made."""
    _refuse_foreign(settings)
    before = _describe(settings, name)
    after = {"state": "absent"}
    book = ledger.load(settings.ledger)
    changed = before != after or name in book.hosts
    if not check and settings.state.exists():
        with locks.held(settings.host_lock(name), timeout=_HOST_TIMEOUT):
            guest.remove(settings.host(name))
            with locks.held(settings.lock, timeout=_SHARED_TIMEOUT):
                changed = _forget(settings, name) or changed
    return Outcome(changed, before, after, _public(settings, name, after))


def everyone(settings: Settings) -> list[dict[str, Any]]:
    """All hosts of the sandbox; one that is not whole is `unfinished`."""
    found = []
    for name, entry in sorted(ledger.load(settings.ledger).hosts.items()):
        state = _describe(settings, name)
        if state["state"] == "absent":
            state = {**entry, "state": "unfinished", "faults": []}
        found.append({"name": name, **state})
    return found


def break_host(settings: Settings, name: str, faults: list[str], *, fix: bool) -> list[str]:
    """Switch faults of a running host on, or off (all of them where none is named).

    Returns:
        The faults that are on now.

    Raises:
        LlmetalError: the host is not known or cannot be broken so.
    """
    with locks.held(settings.host_lock(name), timeout=_HOST_TIMEOUT):
        entry = ledger.load(settings.ledger).hosts.get(name)
        if entry is None:
            raise LlmetalError(
                what=f"there is no sandbox host {name}", fix="`llmetal sandbox list` shows them"
            )
        scenario = load_scenario(settings.files, entry["scenario"]) if entry["scenario"] else None
        active = set(breakage.active(settings, name))
        gone = set(faults) or active
        wanted = active - gone if fix else active | set(faults)
        loaded = [load_fault(settings.files, fault) for fault in sorted(wanted)]
        breakage.set_faults(settings, name, scenario, loaded)
    return sorted(wanted)


def _refuse_unfit(settings: Settings, wish: Wish) -> None:
    if os.geteuid() != 0:
        raise LlmetalError(
            what="the sandbox needs root",
            fix="run it as root, or use inventory/local, which needs none",
        )
    _refuse_foreign(settings)
    try:
        address = IPv4Address(wish.address)
    except ValueError as error:
        raise LlmetalError(
            what=f"{wish.address!r} is not an address",
            where=f"sandbox host {wish.name}",
            fix=f"give it one of {settings.subnet} (ansible_host, or sandbox_address)",
        ) from error
    edges = {
        settings.gateway,
        settings.subnet.network_address,
        settings.subnet.broadcast_address,
    }
    if address not in settings.subnet or address in edges:
        raise LlmetalError(
            what=f"sandbox host {wish.name} cannot have the address {wish.address}",
            why=f"the sandbox's subnet is {settings.subnet}, {settings.gateway} is the machine",
            fix="give it another address of the subnet, or set sandbox_subnet",
        )
    taken = ledger.load(settings.ledger).address_taken_by(wish.address, other_than=wish.name)
    if taken:
        raise LlmetalError(
            what=f"sandbox host {wish.name} cannot have the address {wish.address}",
            why=f"sandbox host {taken} has it",
            fix=f"give it another one, or run `llmetal sandbox down {taken}`",
        )
    for bind in wish.binds:
        if not Path(bind.source).is_dir():
            raise LlmetalError(
                what=f"sandbox host {wish.name} is to see a folder that does not exist",
                where=bind.source,
                fix="make the folder, or take it out of sandbox_binds",
            )


def _refuse_foreign(settings: Settings) -> None:
    """Refuse a folder that exists and is not a sandbox's."""
    if not settings.ledger.exists() and not ledger.is_unwritten(settings.ledger):
        raise LlmetalError(
            what="the sandbox's folder exists and the sandbox did not make it",
            where=str(settings.state),
            fix="set sandbox_state_dir to another folder, or remove that one",
        )


def _ensure_shared(settings: Settings, wish: Wish) -> tuple[str, bool]:
    """Make what all hosts share, and enter the host into the ledger; the lock is held."""
    book = ledger.load(settings.ledger)
    entry = {"address": wish.address, "os": wish.os, "scenario": wish.scenario}
    changed = book.hosts.get(wish.name) != entry
    book.hosts[wish.name] = entry
    ledger.save(settings.ledger, book)
    settings.host(wish.name).folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    changed = network.ensure(settings, book) or changed
    changed = machine.enter(settings) or changed
    if _install_programs(settings):
        repository.stop(settings)
    public_key = ssh.ensure_key(settings)
    folder = settings.host(wish.name).folder
    ssh.make_key(folder / "ssh_host_ed25519_key", comment=wish.name)
    ssh.write_client_files(settings, book)
    changed = repository.ensure(settings) or changed
    return public_key, changed


def _install_programs(settings: Settings) -> bool:
    """Copy the programs that outlive this run; whether any of them is new."""
    changed = False
    settings.programs.mkdir(parents=True, exist_ok=True)
    for source in sorted((settings.files / "bin").glob("*.py")):
        target = settings.programs / source.name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)
            changed = True
    return changed


def _forget(settings: Settings, name: str) -> bool:
    """Take a host out of the ledger; tear down what is shared with the last one."""
    if not settings.ledger.exists() and not ledger.is_unwritten(settings.ledger):
        return False
    book = ledger.load(settings.ledger)
    changed = book.hosts.pop(name, None) is not None
    ledger.save(settings.ledger, book)
    if book.hosts:
        ssh.write_client_files(settings, book)
        return changed
    repository.stop(settings)
    network.remove(settings, book)
    machine.leave(settings)
    mounts.unmount_all(settings.state)
    for path in settings.state.iterdir():
        if path == settings.ledger:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    settings.ledger.unlink(missing_ok=True)
    settings.state.rmdir()
    return True


def _describe(settings: Settings, name: str) -> dict[str, Any]:
    """What there is of a host, for the diff."""
    entry = ledger.load(settings.ledger).hosts.get(name)
    reality = guest.read_reality(settings.host(name))
    if entry is None or not reality.prepared_os:
        return {"state": "absent"}
    return {
        "state": "started" if reality.running else "stopped",
        "os": reality.prepared_os,
        "address": entry["address"],
        "scenario": entry["scenario"],
        "faults": sorted(breakage.active(settings, name)),
    }


def _as_wished(wish: Wish, faults: list[str]) -> dict[str, Any]:
    return {
        "state": "started",
        "os": wish.os,
        "address": wish.address,
        "scenario": wish.scenario,
        "faults": faults,
    }


def _public(settings: Settings, name: str, after: dict[str, Any]) -> dict[str, Any]:
    """What a caller learns of a host."""
    return {
        "name": name,
        **after,
        "ssh": {
            "user": "root",
            "key": str(settings.ssh / "id_ed25519"),
            "known_hosts": str(settings.ssh / "known_hosts"),
            "config": str(settings.ssh / "ssh_config"),
        },
        "console": str(settings.host(name).console),
        "repository": f"http://{settings.gateway}:{settings.port}",
    }
