# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the sandbox keeps what it makes, and the few names it gives to things of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

STATE_DIR = "/var/lib/llmetal-sandbox"
BRIDGE = "llmetal0"
SUBNET = IPv4Network("10.213.0.0/24")
PORT = 8213
LOCKS = Path("/run/lock/llmetal-sandbox")


def default_cache() -> Path:
    """The user's cache folder for base images.

    `$LLMETAL_CACHE/sandbox`, else `$XDG_CACHE_HOME/llmetal/sandbox`, else below `~/.cache`.
    """
    if named := os.environ.get("LLMETAL_CACHE"):
        return Path(named).expanduser() / "sandbox"
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "llmetal" / "sandbox"


@dataclass(frozen=True)
class Settings:
    """What all hosts of one sandbox share."""

    files: Path
    """The role's own files: programs, scenarios, recordings, faults."""
    state: Path = Path(STATE_DIR)
    cache: Path = Path()
    bridge: str = BRIDGE
    subnet: IPv4Network = SUBNET
    port: int = PORT
    debian_mirror: str = ""

    @property
    def gateway(self) -> IPv4Address:
        """The machine's own address on the bridge: the first of the subnet."""
        return self.subnet.network_address + 1

    @property
    def ledger(self) -> Path:
        """The file that lists everything made on this machine."""
        return self.state / "ledger.json"

    @property
    def lock(self) -> Path:
        """Held while anything shared is made or removed."""
        return self.host_lock("")

    def host_lock(self, name: str) -> Path:
        """Held while a host is made or removed; it outlives the host's folder."""
        mark = str(self.state).strip("/").replace("/", "-")
        return LOCKS / mark / f"{name}.lock"

    @property
    def ssh(self) -> Path:
        """Key, known hosts and client configuration."""
        return self.state / "ssh"

    @property
    def repository(self) -> Path:
        """What the local package server serves."""
        return self.state / "repository"

    @property
    def programs(self) -> Path:
        """Copies of the programs that outlive a module run."""
        return self.state / "bin"

    def host(self, name: str) -> HostPaths:
        """The folders of one host."""
        return HostPaths(self.state / "hosts" / name)


@dataclass(frozen=True)
class HostPaths:
    """The files of one host."""

    folder: Path

    @property
    def root(self) -> Path:
        """Where its root file system is mounted."""
        return self.folder / "root"

    @property
    def upper(self) -> Path:
        """What the host changed over its base."""
        return self.folder / "upper"

    @property
    def work(self) -> Path:
        """The overlay's own working folder."""
        return self.folder / "work"

    @property
    def prepared(self) -> Path:
        """The configuration the root was prepared for; absent while that is not finished."""
        return self.folder / "prepared.json"

    @property
    def guest(self) -> Path:
        """How the supervisor starts the guest."""
        return self.folder / "guest.json"

    @property
    def faults(self) -> Path:
        """The faults switched on for this host."""
        return self.folder / "faults.json"

    @property
    def supervisor_pid(self) -> Path:
        """The supervisor's process id; the supervisor holds a lock on this file while it lives."""
        return self.folder / "supervisor.pid"

    @property
    def stopping(self) -> Path:
        """There while the supervisor is ending its guest."""
        return self.folder / "stopping"

    @property
    def console(self) -> Path:
        """What the guest wrote to its console."""
        return self.folder / "console.log"
