# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the action plugins share: a host's request and lock, found from Ansible's variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import request as request_
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_KEY_MARK = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


def host_request(host: str, variables: Mapping[str, Any]) -> HostRequest:
    """What the inventory asks of a host.

    Args:
        host: its name.
        variables: its templated variables, that is, `hostvars` of the host.

    Raises:
        LlmetalError: a variable is wrong, or the key of a package source cannot be read.
    """
    folder = _folder(variables)
    asked = {name: plain(variables[name]) for name in request_.site_options() if name in variables}
    groups = plain(variables.get("group_names") or ())
    return request_.from_variables(host, groups, asked, lambda name: _key(folder, name))


def lock_path(request: HostRequest, variables: Mapping[str, Any]) -> Path:
    """Where the lock of a host lies on the controller."""
    folder = Path(request.lock_dir or "locks").expanduser()
    return _folder(variables) / folder / f"{request.name}.yml"


def existing_lock(request: HostRequest, variables: Mapping[str, Any]) -> lock_.Lock | None:
    """The lock of a host, where there is one and it is to be used.

    Raises:
        LlmetalError: it cannot be read, or is no lock.
    """
    if request.plan_lock == "ignore":
        return None
    return lock_.load(lock_path(request, variables))


def cache_folder() -> Path:
    """The user's cache folder for llmetal: LLMETAL_CACHE, else below XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("LLMETAL_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "llmetal"


def _folder(variables: Mapping[str, Any]) -> Path:
    """The folder of the inventory that a host is from."""
    return Path(str(variables.get("inventory_dir") or "."))


def _key(folder: Path, name: str) -> str:
    path = folder / Path(name).expanduser()
    fix = "put the armored public key there, or set llmetal_driver.mirror.key_file"
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        what = "the key of the package source cannot be read"
        raise LlmetalError(what=what, where=str(path), why=str(error), fix=fix) from error
    if _KEY_MARK not in text:
        what = "the key of the package source is not an armored public key"
        raise LlmetalError(what=what, where=str(path), why=f"it has no {_KEY_MARK}", fix=fix)
    return text
