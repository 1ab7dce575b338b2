# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""An inventory as Ansible reads it, with the variables of its hosts; each is read once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ansible.inventory.manager import InventoryManager
from ansible.vars.manager import VariableManager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible.parsing.dataloader import DataLoader

_MARKS = ("{{", "{%", "{#")


class Inventory:
    """The inventories of a run as one."""

    def __init__(self, loader: DataLoader, paths: Sequence[str], extra: Mapping[str, Any]) -> None:
        """Read nothing yet.

        Args:
            loader: Ansible's loader, which knows the vault's secrets.
            paths: what `-i` names; absolute paths, or lists of hosts.
            extra: the variables of the command line.
        """
        self.loader = loader
        self._paths = list(paths)
        self._extra = dict(extra)
        self._raw: dict[str, dict[str, Any]] = {}

    @functools.cached_property
    def manager(self) -> InventoryManager:
        """Ansible's inventory.

        Raises:
            AnsibleError: a source cannot be read.
        """
        return InventoryManager(loader=self.loader, sources=self._paths)

    @functools.cached_property
    def _variables(self) -> VariableManager:
        return VariableManager(loader=self.loader, inventory=self.manager)

    def raw(self, host: str) -> Mapping[str, Any]:
        """The variables of a host as they stand in the files, those of the command line on top.

        Raises:
            AnsibleError: a file of variables cannot be read.
        """
        found = self._raw.get(host)
        if found is None:
            merged = {**self._variables.get_vars(host=self.manager.get_host(host)), **self._extra}
            found = {name: value for name, value in merged.items() if isinstance(name, str)}
            self._raw[host] = found
        return found


def has_template(value: Any) -> bool:  # noqa: ANN401 - any value
    """Whether anything in a value is for Ansible to fill in."""
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if isinstance(value, dict):
        return any(map(has_template, value)) or any(map(has_template, value.values()))
    return isinstance(value, list) and any(map(has_template, value))
