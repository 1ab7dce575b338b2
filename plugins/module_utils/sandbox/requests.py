# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the parameters of module sandbox_host to what is asked of the sandbox."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import hosts
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.guest import Bind, Wish
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
    Settings,
    default_cache,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")


def settings_of(params: Mapping[str, Any]) -> Settings:
    """The sandbox that the parameters speak of.

    Raises:
        LlmetalError: the subnet is not one.
    """
    try:
        subnet = IPv4Network(params["subnet"])
    except ValueError as error:
        raise LlmetalError(
            what=f"{params['subnet']} is not a subnet",
            why=str(error),
            fix="write sandbox_subnet like 10.213.0.0/24",
        ) from error
    return Settings(
        files=Path(params["files"]),
        state=Path(params["state_dir"]),
        cache=Path(params["cache_dir"]) if params["cache_dir"] else default_cache(),
        bridge=params["bridge"],
        subnet=subnet,
        port=params["port"],
        debian_mirror=params["debian_mirror"],
    )


def wish_of(params: Mapping[str, Any]) -> Wish:
    """The host that the parameters wish for."""
    return Wish(
        name=params["name"],
        os=params["os"],
        address=params["address"],
        scenario=params["scenario"],
        binds=tuple(Bind(**bind) for bind in params["binds"]),
        memory_mib=params["memory_mib"],
    )


def fulfil(params: Mapping[str, Any], *, check: bool) -> hosts.Outcome:
    """Do what the parameters ask for.

    Raises:
        LlmetalError: it cannot be done.
    """
    name = params["name"]
    if not _NAME.match(name):
        raise LlmetalError(
            what=f"{name!r} cannot be the name of a sandbox host",
            fix="use lower case letters, digits and hyphens, at most 40, a letter first",
        )
    settings = settings_of(params)
    try:
        return _fulfil(params, settings, name, check=check)
    except OSError as error:
        raise LlmetalError(
            what=f"sandbox host {name} cannot be brought to its state",
            where=str(error.filename or settings.state),
            why=error.strerror or str(error),
            fix="the sandbox needs root, and room on the disk of its folders",
        ) from error


def _fulfil(
    params: Mapping[str, Any], settings: Settings, name: str, *, check: bool
) -> hosts.Outcome:
    if params["state"] == "stopped":
        return hosts.stop(settings, name, check=check)
    if params["state"] == "absent":
        return hosts.remove(settings, name, check=check)
    return hosts.start(
        settings,
        wish_of(params),
        faults=params["faults"],
        reset=params["state"] == "reset",
        check=check,
    )
