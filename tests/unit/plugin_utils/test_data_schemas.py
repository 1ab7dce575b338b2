# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every data file has a schema and keeps it, so that a misspelt key or a number too few is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import compat as compat_

SCHEMAS: dict[str, Any] = compat_.load_yaml(
    (Path(__file__).parents[2] / "schemas" / "data.yml").read_bytes()
)
FILES = sorted(
    str(path.relative_to(compat_.DATA))
    for path in compat_.DATA.rglob("*")
    if path.suffix in {".yml", ".json"} and path.name != "lock.schema.json"
)


def _schema_of(name: str) -> str:
    """The name of a file's schema: its folder's, else its own."""
    path = Path(name)
    return path.parent.name or path.stem


def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = {**SCHEMAS["schemas"][name], "$defs": SCHEMAS["$defs"]}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _as_json(name: str) -> Any:  # noqa: ANN401 - any JSON value
    """A file as JSON has it: every key is a text."""
    return json.loads(json.dumps(compat_.load_data(name)))


@pytest.mark.parametrize("name", FILES)
def test_file_keeps_its_schema(name: str) -> None:
    """No file without a schema, no row outside of it."""
    errors = _validator(_schema_of(name)).iter_errors(_as_json(name))
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


def test_every_schema_has_a_file() -> None:
    """A schema that nothing uses would check nothing."""
    assert {_schema_of(name) for name in FILES} == set(SCHEMAS["schemas"])


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("cuda.yml", ["releases", "13.0.1", "full_min_driver"], 580),
        ("cuda.yml", ["releases", "13.0.1", "runfile", "x86_64", "sha256"], "4c7a"),
        ("cuda.yml", ["releases", "13.0.1", "full_min_drivr"], "580"),
        ("cuda.yml", ["releases", "13.0.1", "source"], []),
        ("engines.yml", ["engines", "vllm", 0, "device_code"], ["sm_90"]),
        ("gpus.yml", ["gpus", "t4", "cc"], "75"),
        ("interpreters.yml", ["installers", 0, "sha256"], "x"),
        ("os.yml", ["os", "debian13", "archive_cudaa"], "12.4"),
    ],
)
def test_a_wrong_value_is_seen(name: str, path: list[Any], value: object) -> None:
    """The schemas refuse what they are there to refuse."""
    data = _as_json(name)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert not _validator(_schema_of(name)).is_valid(data)
