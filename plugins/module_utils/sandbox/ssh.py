# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The client side of ssh: one key for the sandbox, and host keys known before the first contact."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ansible_collections.llmetal.inference.plugins.module_utils.command import CommandResult, run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import (
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.ledger import Ledger
    from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
        Settings,
    )


def ensure_key(settings: Settings) -> str:
    """Make the sandbox's own key where there is none.

    Returns:
        Its public half.
    """
    settings.ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = settings.ssh / "id_ed25519"
    make_key(key, comment="llmetal-sandbox")
    return (read_text(key.with_suffix(".pub")) or "").strip()


def make_key(path: Path, *, comment: str) -> None:
    """Make a key pair where there is none.

    Raises:
        LlmetalError: ssh-keygen failed.
    """
    if path.exists() and path.with_name(path.name + ".pub").exists():
        return
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    done = run(argv, timeout=30)
    if not done.ok:
        raise LlmetalError(what="ssh-keygen failed", where=str(path), why=done.tail())


def write_client_files(settings: Settings, ledger: Ledger) -> None:
    """Write known_hosts and ssh_config for all hosts of the ledger."""
    known, stanzas = [], []
    for name, host in sorted(ledger.hosts.items()):
        public = read_text(settings.host(name).folder / "ssh_host_ed25519_key.pub")
        if public:
            known.append(f"{host['address']},{name} {' '.join(public.split()[:2])}")
        stanzas.append(
            f"Host {name}\n    HostName {host['address']}\n    HostKeyAlias {name}\n    User root\n"
        )
    common = (
        "Host *\n"
        f"    IdentityFile {settings.ssh / 'id_ed25519'}\n"
        "    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {settings.ssh / 'known_hosts'}\n"
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n"
        "    BatchMode yes\n"
        "    ConnectTimeout 5\n"
        "    LogLevel ERROR\n"
    )
    write_atomic(settings.ssh / "known_hosts", "".join(f"{line}\n" for line in known))
    write_atomic(settings.ssh / "ssh_config", "\n".join([*stanzas, common]))


def install_host_key(settings: Settings, name: str, root: Path) -> None:
    """Give a host a key of its own, the same one however often it is made anew."""
    key = settings.host(name).folder / "ssh_host_ed25519_key"
    make_key(key, comment=name)
    target = root / "etc/ssh"
    for part, mode in ((key, 0o600), (key.with_name(key.name + ".pub"), 0o644)):
        copy = target / part.name
        shutil.copyfile(part, copy)
        copy.chmod(mode)


def on_host(settings: Settings, name: str, *words: str, timeout: float) -> CommandResult:
    """Run a command line on a host over ssh."""
    argv = ["ssh", "-F", str(settings.ssh / "ssh_config"), name, "--", *words]
    return run(argv, timeout=timeout)
