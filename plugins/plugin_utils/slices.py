# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each role gets of a lock: its slice, and nothing else."""

from __future__ import annotations

from typing import Any

Slice = dict[str, Any]

_FOR_PEOPLE = frozenset({"why", "layout", "memory", "fp8", "build", "runtime", "cuda"})
"""Keys that explain a decision and that no role acts on: a new wording must not redo its work."""


def cut(lock: dict[str, Any], managed: frozenset[str] = frozenset()) -> dict[str, Slice]:
    """Cut a lock into the slices of its roles, by role, in the order in which they run.

    Args:
        lock: the lock.
        managed: the roles that left a receipt on the host. These get a slice even where the lock
            has nothing for them any more, so that they take back what they brought.

    Returns:
        A slice for each role with work on the host.
    """
    host = lock["host"]
    common = {"scope": host["scope"], "user": host["user"], "paths": host["paths"]}
    slices: dict[str, Slice] = {"base": {**common, "packages": host["packages"]}}
    if host["scope"] == "system" and (host["gpus"] or lock["driver"] is not None):
        slices["nvidia_driver"] = {
            "scope": host["scope"],
            "paths": host["paths"],
            "kernel": lock["kernel"],
            "driver": _bare(lock["driver"]),
            "fabric": lock["fabric"],
            "gpus": host["gpus"],
        }
    nvlink = lock.get("nvlink")
    if host["scope"] == "system" and (lock["fabric"] or nvlink or "nvlink" in managed):
        slices["nvlink"] = {
            "scope": host["scope"],
            "paths": host["paths"],
            "fabric": lock["fabric"],
            "nvlink": _bare(nvlink),
            "gpus": host["gpus"],
        }
    toolkits = [row for row in (lock.get("toolkit"), *lock.get("toolkits", ())) if row]
    if toolkits or "cuda_toolkit" in managed:
        slices["cuda_toolkit"] = {
            **common,
            "toolkit": _bare(toolkits[0]) if toolkits else None,
            "toolkits": [_bare(row) for row in toolkits[1:]],
            "gpus": host["gpus"],
        }
    if lock["python"] is not None:
        slices["python_env"] = {**common, "python": _bare(lock["python"])}
    for engine in lock["engines"]:
        slices[engine["name"]] = {
            **common,
            "engine": _bare(engine),
            "environment": {
                "name": engine["environment"],
                "path": environment_path(lock, engine["environment"]),
            },
        }
    if lock["models"]:
        slices["model"] = {**common, "models": lock["models"]}
    if lock["instances"] or "llm_service" in managed:
        slices["llm_service"] = {
            **common,
            "instances": [_instance(lock, row) for row in lock["instances"]],
        }
    return slices


def _bare(row: dict[str, Any] | None) -> Slice | None:
    return row and {key: value for key, value in row.items() if key not in _FOR_PEOPLE}


def environment_path(lock: dict[str, Any], name: str) -> str:
    """Where the environment of a name is used from."""
    return f"{lock['host']['paths']['environments']}/{name}/current"


def model_path(lock: dict[str, Any], name: str) -> str:
    """Where the locked revision of a model lies."""
    revision = next(model["revision"] for model in lock["models"] if model["name"] == name)
    return f"{lock['host']['paths']['store']}/{name}/{revision}"


def _instance(lock: dict[str, Any], row: dict[str, Any]) -> Slice:
    return {
        **(_bare(row) or {}),
        "model_path": model_path(lock, row["model"]),
        "environment_path": environment_path(lock, row["environment"]),
    }


def versions(lock: dict[str, Any]) -> dict[str, str]:
    """What a person wants to know of a lock at first sight, by name."""
    seen: dict[str, str] = {
        "system": lock["host"]["os_pretty"],
        "kernel": lock["kernel"]["running"],
    }
    if lock["driver"] is not None:
        seen["driver"] = f"{lock['driver']['version']} ({lock['driver']['modules']})"
    if lock["fabric"] is not None:
        seen["fabric manager"] = lock["fabric"]["version"]
    toolkits = [row for row in (lock.get("toolkit"), *lock.get("toolkits", ())) if row]
    if toolkits:
        seen["CUDA toolkit"] = ", ".join(row["version"] for row in toolkits)
    for environment in (lock["python"] or {}).get("environments", ()):
        seen.setdefault("python", environment["python"]["version"])
    for engine in lock["engines"]:
        seen[engine["name"]] = f"{engine['version']} on {engine['device']}"
        if engine["torch"]:
            seen["torch"] = engine["torch"]
    for model in lock["models"]:
        seen[f"model {model['name']}"] = model["revision"][:12]
    return seen


def endpoints(lock: dict[str, Any]) -> list[dict[str, str]]:
    """Where the instances of a lock answer."""
    return [
        {
            "name": row["name"],
            "model": row["model"],
            "engine": row["engine"],
            "url": f"http://{_bracketed(row['host'])}:{row['port']}",
        }
        for row in lock["instances"]
    ]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
