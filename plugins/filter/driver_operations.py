# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the playbooks that recover and upgrade a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import driver_operations as logic
from ansible_collections.llmetal.inference.plugins.plugin_utils import lock as lock_
from ansible_collections.llmetal.inference.plugins.plugin_utils import slices
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def installed_lock(text: str, where: str = "the installed lock") -> dict[str, Any]:
    """The lock in a text; a failure that says what to do where it is none."""
    try:
        return logic.installed(str(text), where)
    except LlmetalError as error:
        raise AnsibleFilterError(str(error)) from error


def lock_slices(lock: Mapping[str, Any], managed: Sequence[str] = ()) -> dict[str, Any]:
    """What each role gets of a lock."""
    return slices.cut(plain(lock), frozenset(map(str, managed)))


def lock_text(lock: Mapping[str, Any]) -> str:
    """A lock as it is written."""
    return lock_.dump(plain(lock))


def with_driver_of(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """An installed lock once the driver of a new one is installed."""
    return logic.with_driver_of(plain(before), plain(new))


def driver_set(driver_slice: Mapping[str, Any]) -> list[dict[str, str]]:
    """The packages of a driver's slice, with their versions."""
    return logic.driver_set(plain(driver_slice))


def not_offered(
    packages: Sequence[Mapping[str, str]], candidates: Mapping[str, Sequence[Mapping[str, str]]]
) -> list[str]:
    """The packages that no source has in their version."""
    return logic.not_offered(plain(packages), plain(candidates))


def same_driver(before: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two locks bring the same driver."""
    return logic.same_driver(plain(before), plain(new))


def without_driver(facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they will be once a driver's leftovers are gone."""
    return logic.without_driver(plain(facts), plain(leftovers))


class FilterModule:
    """Hands the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {
            "driver_set": driver_set,
            "installed_lock": installed_lock,
            "lock_slices": lock_slices,
            "lock_text": lock_text,
            "not_offered": not_offered,
            "same_driver": same_driver,
            "with_driver_of": with_driver_of,
            "without_driver": without_driver,
        }
