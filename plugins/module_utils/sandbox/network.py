# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's network: a bridge, addresses behind it, and the way out."""

from __future__ import annotations

import json
import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import ledger as ledgers

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.ledger import Ledger
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )

_TIMEOUT = 30.0
_POLL = 0.05


def firewall_rules(settings: Settings) -> list[list[str]]:
    """The rules the sandbox needs: `[table, chain, match and target...]` each."""
    subnet, bridge = str(settings.subnet), settings.bridge
    mark = ["-m", "comment", "--comment", f"llmetal-sandbox-{bridge}"]
    accept = ["-j", "ACCEPT"]
    out = ["-s", subnet, "!", "-d", subnet]
    return [
        ["nat", "POSTROUTING", *out, *mark, "-j", "MASQUERADE"],
        ["filter", "FORWARD", "-i", bridge, *mark, *accept],
        ["filter", "FORWARD", "-o", bridge, *mark, *accept],
        ["filter", "INPUT", "-i", bridge, *mark, *accept],
    ]


def collisions(routes: list[dict[str, Any]], subnet: IPv4Network, bridge: str) -> list[str]:
    """The routes of this machine that overlap a subnet and are not the bridge's own."""
    found = []
    for route in routes:
        target = str(route.get("dst", "default"))
        if target == "default" or route.get("dev") == bridge:
            continue
        try:
            network = IPv4Network(target, strict=False)
        except ValueError:
            continue
        if network.prefixlen and network.overlaps(subnet):
            found.append(f"{target} on {route.get('dev', '?')}")
    return found


def outgoing_mtu(routes: list[dict[str, Any]], links: list[dict[str, Any]]) -> int:
    """The size of the largest packet that the way out carries whole."""
    devices = {route.get("dev") for route in routes if route.get("dst") == "default"}
    sizes = [int(link["mtu"]) for link in links if link.get("ifname") in devices]
    return min([*sizes, 1500])


def ensure(settings: Settings, ledger: Ledger) -> bool:
    """Make bridge, address and rules where they are missing.

    Returns:
        Whether anything was missing.

    Raises:
        LlmetalError: the name or the addresses belong to somebody else.
    """
    links = _ip("link", "show")
    routes = _ip("-4", "route", "show", "table", "all")
    exists = any(link["ifname"] == settings.bridge for link in links)
    _refuse_foreign(settings, ledger, exists=exists, routes=routes)
    changed = _ensure_bridge(settings, ledger, exists=exists, mtu=outgoing_mtu(routes, links))
    wanted = firewall_rules(settings)
    if ledger.rules != wanted:
        ledger.rules = wanted
        ledgers.save(settings.ledger, ledger)
    for table, chain, *rule in wanted:
        if not run(["iptables", "-w", "-t", table, "-C", chain, *rule], timeout=_TIMEOUT).ok:
            _do(["iptables", "-w", "-t", table, "-I", chain, *rule])
            changed = True
    return changed


def remove(settings: Settings, ledger: Ledger) -> bool:
    """Remove what `ensure` made.

    Returns:
        Whether anything was there.
    """
    changed = False
    for table, chain, *rule in ledger.rules:
        argv = ["iptables", "-w", "-t", table]
        while run([*argv, "-C", chain, *rule], timeout=_TIMEOUT).ok:
            _do([*argv, "-D", chain, *rule])
            changed = True
    ledger.rules = []
    if ledger.bridge:
        if Path("/sys/class/net", ledger.bridge).exists():
            _do(["ip", "link", "delete", ledger.bridge, "type", "bridge"])
            changed = True
        ledger.bridge = None
    ledgers.save(settings.ledger, ledger)
    return changed


def remove_end(interface: str, *, timeout: float) -> None:
    """Remove a guest's end on the bridge; it goes with the guest, a moment after its processes.

    Raises:
        LlmetalError: it stays.
    """
    path = Path("/sys/class/net", interface)
    deadline = time.monotonic() + timeout
    while path.exists():
        done = run(["ip", "link", "delete", interface], timeout=_TIMEOUT)
        if time.monotonic() > deadline:
            raise LlmetalError(
                what=f"the network interface {interface} of a sandbox host stays",
                why=done.tail(),
                fix=f"ip link delete {interface}",
            )
        time.sleep(_POLL)


def _refuse_foreign(
    settings: Settings, ledger: Ledger, *, exists: bool, routes: list[dict[str, Any]]
) -> None:
    if ledger.bridge and ledger.bridge != settings.bridge:
        raise LlmetalError(
            what="the sandbox on this machine uses another bridge",
            where=f"{ledger.bridge}, wanted {settings.bridge}",
            fix="use one value of sandbox_bridge, or run `llmetal sandbox down` first",
        )
    if exists and not ledger.bridge:
        raise LlmetalError(
            what=f"there is a network interface {settings.bridge} that the sandbox did not make",
            fix="set sandbox_bridge to another name, or remove that interface",
        )
    taken = collisions(routes, settings.subnet, settings.bridge)
    if taken:
        raise LlmetalError(
            what=f"the sandbox's subnet {settings.subnet} is in use on this machine",
            why=", ".join(taken),
            fix="set sandbox_subnet to a free one",
        )


def _ensure_bridge(settings: Settings, ledger: Ledger, *, exists: bool, mtu: int) -> bool:
    changed = False
    bridge = settings.bridge
    if not exists:
        ledger.bridge = bridge
        ledgers.save(settings.ledger, ledger)
        _do(["ip", "link", "add", bridge, "mtu", str(mtu), "type", "bridge"])
        changed = True
    address = f"{settings.gateway}/{settings.subnet.prefixlen}"
    shown = _ip("-4", "address", "show", "dev", bridge)
    has = {f"{info['local']}/{info['prefixlen']}" for link in shown for info in link["addr_info"]}
    if address not in has:
        _do(["ip", "address", "add", address, "dev", bridge])
        changed = True
    if not shown or "UP" not in shown[0].get("flags", []):
        _do(["ip", "link", "set", bridge, "up"])
        changed = True
    return changed


def _ip(*words: str) -> list[dict[str, Any]]:
    done = run(["ip", "-j", *words], timeout=_TIMEOUT)
    if not done.ok:
        raise LlmetalError(
            what=f"`ip {' '.join(words)}` failed",
            why=done.tail(),
            fix="the sandbox needs iproute2 and root",
        )
    shown: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return [entry for entry in shown if entry]


def _do(argv: list[str]) -> None:
    done = run(argv, timeout=_TIMEOUT)
    if not done.ok:
        raise LlmetalError(
            what=f"`{' '.join(argv)}` failed",
            why=done.tail(),
            fix="the sandbox needs root, iproute2 and iptables",
        )
