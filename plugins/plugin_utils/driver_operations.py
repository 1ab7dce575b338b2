# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What recovery and upgrade of a driver decide on the controller."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import yaml
from ansible_collections.llmetal.inference.plugins.module_utils.driver_leftovers import (
    is_driver_package,
)
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DRIVER_KEYS = ("kernel", "driver", "fabric", "nvlink")
"""The keys of a lock that an upgrade of the driver brings."""
_OF_THE_RUN = frozenset({"why"})


def installed(text: str, where: str) -> lock_.Lock:
    """The lock that a host recorded as installed.

    Raises:
        LlmetalError: it is no lock.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LlmetalError(
            what="the installed lock of the host cannot be read",
            where=where,
            why=str(error).replace("\n", " "),
            fix="run site.yml, which records it anew",
        ) from error
    return lock_.validate(value, where)


def with_driver_of(before: lock_.Lock, new: lock_.Lock) -> lock_.Lock:
    """What is installed once the driver of a new lock is: the rest stays as it was.

    Where only the driver differs, that is the new lock itself.
    """
    rest = [key for key in new if key not in {*_DRIVER_KEYS, "host"}]
    if all(before.get(key) == new[key] for key in rest):
        return new
    return {**before, **{key: new[key] for key in _DRIVER_KEYS if key in new}}


def _acts(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {key: value for key, value in row.items() if key not in _OF_THE_RUN}


def same_driver(before: lock_.Lock, new: lock_.Lock) -> bool:
    """Whether two locks bring the same driver set and fabric."""
    keys = ("driver", "fabric", "nvlink")
    return all(_acts(before.get(key)) == _acts(new.get(key)) for key in keys)


def driver_set(driver_slice: Mapping[str, Any]) -> list[dict[str, str]]:
    """The packages of a driver's slice, those of its fabric among them, each with its version."""
    fabric = driver_slice["fabric"] or {}
    rows = [*driver_slice["driver"]["packages"], *(fabric.get("packages") or ())]
    if fabric.get("package"):
        rows.append({"name": fabric["package"], "version": fabric["version"]})
    found = {str(row["name"]): str(row["version"]) for row in rows}
    return [{"name": name, "version": version} for name, version in found.items()]


def not_offered(
    packages: Sequence[Mapping[str, str]], candidates: Mapping[str, Sequence[Mapping[str, str]]]
) -> list[str]:
    """The packages that no source has in their version, as apt writes them."""
    return [
        f"{row['name']}={row['version']}"
        for row in packages
        if row["version"] not in {one["version"] for one in candidates.get(row["name"]) or ()}
    ]


def without_driver(facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> dict[str, Any]:
    """The survey's facts as they will be once the leftovers are gone.

    A host without a lock is planned from these: what is going to be purged is no reason to refuse.
    """
    after: dict[str, Any] = copy.deepcopy(dict(facts))
    modules = after.get("modules") or {}
    modules.update(installer=None, dkms=[])
    gone = {str(row["name"]).partition(":")[0] for row in leftovers["packages"]}
    if not gone and not leftovers["runfile"]:
        return after
    packages = after.get("packages") or {}
    after["packages"] = {name: version for name, version in packages.items() if name not in gone}
    for key in ("broken", "held"):
        names = after.get(key) or []
        after[key] = [name for name in names if not is_driver_package(name)]
    modules.update(kernels=[])
    after["libraries"] = {"libnvidia-ml": [], "libcuda": []}
    driver = (after.get("gpu") or {}).get("driver") or {}
    driver.update(dict.fromkeys(set(driver) & {"loaded", "flavour", "on_disk", "user_space"}))
    return after
