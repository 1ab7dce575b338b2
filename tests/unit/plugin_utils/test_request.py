# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's variables become a request, in types and with defaults."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils import request as request_


def test_defaults(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """An empty inventory asks for nothing, on the whole system."""
    assert bench.request() == request_.HostRequest("gpu-1", groups=("gpu",))


def test_types(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Templates give texts; a request has numbers."""
    one = {"name": "a", "engine": "vllm", "model": "m", "port": "8100", "gpus": ["1", 0, 1]}
    (instance,) = bench.request(instances=[one]).instances
    assert instance.port == 8100
    assert instance.gpus == (0, 1)


def test_wrong_value_names_its_path(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A value that slipped through is still told apart."""
    with pytest.raises(LlmetalError, match=r"llmetal_instances\[0\]\.model is required"):
        bench.request(instances=[{"name": "a", "engine": "vllm"}])


def test_hash_is_of_what_is_asked(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """How to go about it changes nothing; what to get does."""
    plain = bench.request().sha256
    assert bench.request(plan_lock="ignore", lock_dir="x", resolve_ttl=0).sha256 == plain
    assert bench.request(index_url="http://192.0.2.1/simple").sha256 != plain
    assert bench.request("gateway").sha256 != plain


def test_only_used_models(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """A model that no instance serves is not looked at."""
    folder = {"type": "folder", "path": "/srv/m"}
    models = [{"name": name, "source": folder} for name in ("a", "b")]
    one = {"name": "x", "engine": "vllm", "model": "b"}
    used = bench.request(models=models, instances=[one]).used_models
    assert [model.name for model in used] == ["b"]
