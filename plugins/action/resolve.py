# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action resolve: find out what exists for a host, asking only what its plan needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    planner,
    planning,
    resolver,
    site,
)
from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import load_compat
from ansible_collections.llmetal.inference.plugins.plugin_utils.plain import plain

if TYPE_CHECKING:
    from ansible_collections.llmetal.inference.plugins.plugin_utils.planner import Question
    from ansible_collections.llmetal.inference.plugins.plugin_utils.request import HostRequest

_COLLECTION = "llmetal.inference"


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible has no types
    """Asks package sources and model folders, through read-only modules on the host."""

    _supports_check_mode = True
    _VALID_ARGS = frozenset({"facts"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return `answers` for the plan, and why nothing was asked where a lock says it all."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _, arguments = self.validate_argument_spec({"facts": {"type": "dict", "required": True}})
        facts = plain(arguments["facts"])
        result["changed"] = False
        name = plain(variables["inventory_hostname"])
        templated = variables["hostvars"][name]
        try:
            request = site.host_request(name, templated)
            existing = planning.existing_lock(request, templated)
        except LlmetalError as error:
            # The plan refuses it, together with all other refusals, before anything is changed.
            return result | {"answers": None, "reason": str(error)}
        try:
            if planner.needs_no_answers(request, existing):
                return result | {"answers": None, "reason": "the host has a lock"}
            question = planner.question(request, facts, load_compat())
            answers = {
                **self._packages(request, question, facts, variables),
                "models": self._models(question, variables),
            }
        except LlmetalError as error:
            return result | {"failed": True, **error.as_result()}
        return result | {"answers": answers}

    def _packages(
        self,
        request: HostRequest,
        question: Question,
        facts: dict[str, Any],
        variables: dict[str, Any],
    ) -> dict[str, Any]:
        """Which versions of the asked packages the host could install."""
        if not question.packages:
            return {"packages": {}, "cached": False}
        sources = resolver.sources_of(request, question)
        cache = resolver.Cache(site.cache_folder() / "resolve", request.resolve_ttl)
        key = resolver.key_of(question, sources, facts)
        kept = cache.get(key)
        if kept is not None:
            return {**kept, "cached": True}
        done = self._module(
            "apt_candidates",
            {
                "sources": sources,
                "packages": list(question.packages),
            },
            variables,
        )
        if done.get("failed"):
            raise _as_error(done, "the package sources cannot be asked")
        answer = {"packages": plain(done["candidates"])}
        cache.put(key, answer)
        return {**answer, "cached": False}

    def _models(self, question: Question, variables: dict[str, Any]) -> dict[str, Any]:
        """What the model folders hold; one that cannot be read is an answer too."""
        found: dict[str, Any] = {}
        for name, path in question.models:
            done = self._module(
                "model_snapshot",
                {"state": "inspected", "source": path, "cache": f"{question.cache}/manifests"},
                variables,
            )
            if done.get("failed"):
                found[name] = {"error": str(done.get("why") or done.get("msg"))}
            else:
                keys = ("revision", "files", "architectures", "config", "format")
                found[name] = {k: plain(done[k]) for k in keys if k in done}
        return found

    def _module(
        self, name: str, arguments: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        done: dict[str, Any] = self._execute_module(
            module_name=f"{_COLLECTION}.{name}", module_args=arguments, task_vars=variables
        )
        return done


def _as_error(done: dict[str, Any], what: str) -> LlmetalError:
    """The failure of a module as one of ours."""
    return LlmetalError(
        what=str(done.get("what") or what),
        where=str(done.get("where") or ""),
        why=str(done.get("why") or ("" if done.get("what") else done.get("msg") or "")),
        fix=str(done.get("fix") or "see the message, then run again"),
    )
