# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The compatibility data is whole: every key leads somewhere, every row has a source."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import compat as compat_
from ansible_collections.llmetal.inference.plugins.plugin_utils import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible_collections.llmetal.inference.plugins.plugin_utils.compat import Compat

PLUGINS = Path(compat_.__file__).parents[1]
FILES = sorted(str(path.relative_to(compat_.DATA)) for path in compat_.DATA.rglob("*.yml"))


def test_counts(compat: Compat) -> None:
    """No GPU and no PCI id got lost."""
    assert len(compat.gpus) == 47
    assert len(compat.devices) == 431


def _sources(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key in {"source", "facts"} and isinstance(value, list):
                yield from value
            else:
                yield from _sources(value)
    elif isinstance(data, list):
        for value in data:
            yield from _sources(value)


@pytest.mark.parametrize("name", FILES)
def test_every_source_is_known(compat: Compat, name: str) -> None:
    """A source is a key of sources.yml."""
    assert set(_sources(compat_.load_data(name))) <= set(compat.sources)


@pytest.mark.parametrize("table", ["gpus", "branches", "systems", "keys", "rules", "switches"])
def test_every_row_has_a_source(compat: Compat, table: str) -> None:
    """Nothing stands in the data that nobody can look up."""
    rows: dict[str, Any] = getattr(compat, table)
    assert [key for key, row in rows.items() if not row.get("source")] == []


def test_gpus_and_devices_agree(compat: Compat) -> None:
    """A GPU's PCI ids are devices that lead back to it."""
    for key, gpu in compat.gpus.items():
        for device in gpu["pci_ids"]:
            assert compat.devices[device]["gpu"] == key


def test_every_rule_of_the_code_is_in_the_data(compat: Compat) -> None:
    """A finding names a rule that exists, and no rule is there for nothing."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PLUGINS.rglob("*.py"))
    used = set(re.findall(r"findings\.add\(\s*\"([a-z0-9-]+)\"", text))
    used |= set(re.findall(r"\"(engine-option[a-z-]*|platform-\w+|jetson-spark)\"", text))
    used |= set(re.findall(r"\"(gpu-min-driver[a-z-]*)\"", text))
    assert used == set(compat.rules)


def test_an_unverified_rule_only_warns(compat: Compat) -> None:
    """Whatever a rule says of itself, without a source that was read it refuses nothing."""
    unread = {"severity": "refuse", "says": "x", "source": ["know"]}
    changed = dataclasses.replace(compat, rules={"unread": unread})
    assert not changed.rule("unread").refuses
    read = {**unread, "source": ["know", "openrm"]}
    assert dataclasses.replace(compat, rules={"read": read}).rule("read").refuses


def test_unknown_things_are_none(compat: Compat) -> None:
    """What the data does not know is said to be unknown, not guessed."""
    assert compat.gpu("ffff") is None
    assert compat.branch("111") is None
    assert compat.system("plan9") is None
    assert compat.package_set("ppa", "debian", "580") is None
    assert compat.release("vllm", "gpu", "0.0.1") is None
    assert compat.releases("other") == ()


def test_package_names_follow_the_branch(compat: Compat) -> None:
    """Ubuntu's names carry the branch up to 580 in NVIDIA's repository, and none later."""
    old = compat.package_set("cuda_repo", "ubuntu", "580")
    new = compat.package_set("cuda_repo", "ubuntu", "595")
    assert old is not None
    assert new is not None
    assert old.modules["open"] == ("nvidia-dkms-580-open",)
    assert new.modules["open"] == ("nvidia-dkms-open",)


def test_every_engine_release_can_be_installed(compat: Compat) -> None:
    """Its requirements and its option table are there, and the package is among the former."""
    for engine in compat.engines:
        for release in compat.releases(engine):
            needs = requirements.for_python(release.requirements, "3.11.2", "x86_64")
            assert requirements.version_of(needs, release.package) == release.version
            table = compat_.load_option_table(release.options)
            assert table["release"] == release.options_of


def test_default_release_is_unique(compat: Compat) -> None:
    """An instance without engine_version gets one release."""
    for engine in compat.engines:
        defaults = [(r.device) for r in compat.releases(engine) if r.default]
        assert len(defaults) == len(set(defaults))
