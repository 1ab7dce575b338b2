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
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import (
    branch_of,
    is_at_least,
)

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
    used = set(re.findall(r"(?:findings\.add|OptionIssue)\(\s*\"([a-z0-9-]+)\"", text))
    assert used - set(compat.rules) == set()
    assert set(compat.rules) - set(re.findall(r"\"([a-z0-9-]+)\"", text)) == set()


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


def test_every_engine_release_can_be_planned(compat: Compat) -> None:
    """Its requirements, options and models are there, and the package is among the first."""
    for engine in compat.engines:
        for release in compat.releases(engine):
            needs = requirements.for_python(release.requirements, "3.11.2", "x86_64")
            assert requirements.version_of(needs, release.package) == release.version
            table = compat_.load_option_table(release.options)
            assert (table["engine"], table["release"]) == (engine, release.options_of)
            models = compat_.load_architectures(release.architectures)
            assert {"LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"} <= models
            assert (release.device == "gpu") == bool(release.device_code)


def test_requirements_fit_a_lock() -> None:
    """A lock carries the hashes of all packages; those of other systems would make it huge."""
    for path in sorted((compat_.DATA / "requirements").glob("*.txt")):
        assert path.stat().st_size < 100_000, path.name


def test_default_release_is_unique(compat: Compat) -> None:
    """An instance without engine_version gets one release."""
    for engine in compat.engines:
        defaults = [(r.device) for r in compat.releases(engine) if r.default]
        assert len(defaults) == len(set(defaults))


def test_start_reads_only_what_every_plan_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolkits, interpreters and containers are read when they are asked for."""
    read: list[str] = []
    load = compat_.load_data

    def load_data(name: str) -> object:
        read.append(name)
        return load(name)

    monkeypatch.setattr(compat_, "load_data", load_data)
    compat_.load_compat.__wrapped__()
    assert set(read).isdisjoint({"cuda.yml", "interpreters.yml", "containers.yml"})
    assert len(read) == len(set(read))


def test_cuda_releases_agree() -> None:
    """Releases, majors and the table of forward compatibility say the same of one release."""
    cuda = compat_.load_cuda()
    files = [
        one["file"] for row in cuda["releases"].values() for one in row.get("runfile", {}).values()
    ]
    assert len(files) == len(set(files))
    for name, row in cuda["releases"].items():
        major, minor, _ = name.split(".")
        assert is_at_least(row["full_min_driver"], row["minor_min_driver"])
        floor = cuda["majors"][major]["minor_min_driver"]
        assert is_at_least(floor, row["minor_min_driver"])
        native = [
            b
            for b, c in cuda["forward_compat"]["table"].get(f"{major}.{minor}", {}).items()
            if c == "N"
        ]
        assert native in ([], [branch_of(row["full_min_driver"])])
        for one in row.get("runfile", {}).values():
            assert one["file"].startswith(f"cuda_{name}_")
            assert (row["bundled_driver"] or "") in one["file"]
    for row in cuda["runfile_claims"]:
        assert row["claim"] not in files
        assert row["real_name"] in files


def test_gpus_and_cuda_agree(compat: Compat) -> None:
    """Every GPU is of a generation that is known, and a compiler that is known knows it."""
    cuda = compat_.load_cuda()
    known = {
        code
        for major in cuda["majors"].values()
        for row in major["ptxas"]
        for code in row.get("knows") or row["adds"]
    }
    for key, gpu in compat.gpus.items():
        assert gpu["arch"] in cuda["architectures"], key
        assert gpu["cc"].replace(".", "") in known, key


def test_interpreters_are_what_their_names_say() -> None:
    """File names carry Python and processor; a wrong sum names the file that has it."""
    data = compat_.load_interpreters()
    sums = {row["file"]: row["sha256"] for row in data["all"]}
    assert len(set(sums.values())) == len(sums) == len(data["installers"]) + len(data["older"])
    for row in data["all"]:
        assert f"-py{row['python'].replace('.', '')}_" in row["file"]
        assert row["file"].endswith(f"-Linux-{row['arch']}.sh")
        assert is_at_least(row["python"], "3.11") == (row in data["installers"])
    for claim in data["claims"]:
        assert sums[claim["belongs_to"]] == claim["sha256"] != sums[claim["file"]]
        assert sums[claim["file"]] == claim["published"]


def test_containers_name_systems_that_are_known(compat: Compat) -> None:
    """What Docker is not for are systems of ours, and those say so too."""
    for key in compat_.load_data("containers.yml")["docker"]["not_for"]:
        assert compat.systems[key]["docker_ce"] != "supported"


def test_names_of_data_centre_gpus(compat: Compat) -> None:
    """Forward compatibility goes by the name: GeForce and workstation boards say what they are."""
    a100, geforce = compat.gpu("20b0"), compat.gpu("2204")
    assert a100 is not None
    assert geforce is not None
    assert (a100.data_centre, geforce.data_centre) == (True, False)
