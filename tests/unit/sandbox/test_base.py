# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A base is made again when its recipe changes, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.base import Recipe
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.sources import Mirror

RECIPE = Recipe("bookworm", Mirror("http://mirror.example/debian", None))


def test_same_recipe_same_name() -> None:
    """The name is the release and twelve digits."""
    again = Recipe("bookworm", Mirror("http://mirror.example/debian", None))
    assert again.name == RECIPE.name
    assert RECIPE.name.startswith("bookworm-")
    assert len(RECIPE.digest) == 12


@pytest.mark.parametrize(
    "other",
    [
        replace(RECIPE, codename="trixie"),
        replace(RECIPE, mirror=Mirror("http://other.example/debian", None)),
        replace(RECIPE, certificates=(("ca.crt", "0" * 64),)),
        replace(RECIPE, apt_proxy='Acquire::http::Proxy "http://proxy.example";'),
    ],
)
def test_each_part_counts(other: Recipe) -> None:
    """Release, mirror, local authorities and proxy are in the hash."""
    assert other.digest != RECIPE.digest
