# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The product's data says what the gathered facts say, where somebody has the folder of facts.

`LLMETAL_FACTS` names the folder (nvidia_matrix.yml, engines.json); without it all is skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import compat as compat_

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FACTS = os.environ.get("LLMETAL_FACTS")
pytestmark = pytest.mark.skipif(not FACTS, reason="LLMETAL_FACTS names no folder of facts")

VLLM_CORRECTED = {
    # The parser itself has no `passthrough`: add_cli_args takes it out of the choices.
    "--all2all-backend",
    # Its type was written down as the source of a lambda.
    "--device-ids",
    # The default is that of the class, False.
    "--enable-log-requests",
    # The class is a dict, so the value is JSON.
    "--limit-mm-per-prompt",
    # The default is argparse.SUPPRESS, set after the field's own was read.
    "--logging-config",
    # Types that the parser takes as text.
    "--logits-processors",
    "--lora-modules",
    # `action="append"` without nargs: given once for each value.
    "--middleware",
}
SGLANG_CORRECTED = {
    # Parsed by json.loads or json_list_type, whatever the annotation says.
    "--decoupled-spec-connect-endpoints",
    "--forward-hooks",
    "--preferred-sampling-params",
    "--remote-instance-weight-loader-send-weights-group-ports",
    "--sidecar-args",
    # Not parsed, whatever the annotation says.
    "--modelopt-quant",
    # Its type was written down as that of its first choice, None.
    "--elastic-ep-backend",
    # action_kwargs say `*`.
    "--lora-paths",
    # Choices that follow from other lists of the same wheel.
    "--lora-target-modules",
    "--sampling-backend",
}


def _facts(name: str) -> Any:  # noqa: ANN401 - any value
    return compat_.load_yaml((Path(str(FACTS)) / name).read_bytes())


@pytest.fixture(scope="module")
def compat() -> compat_.Compat:
    """The compatibility data."""
    return compat_.load_compat()


@pytest.fixture(scope="module")
def matrix() -> Mapping[str, Any]:
    """The facts about NVIDIA's drivers, toolkits and GPUs."""
    found: dict[str, Any] = _facts("nvidia_matrix.yml")
    return found


@pytest.fixture(scope="module")
def engines() -> Mapping[str, Any]:
    """The facts about the engines."""
    found: dict[str, Any] = json.loads((Path(str(FACTS)) / "engines.json").read_bytes())
    return found


def _different(fact: object, ours: object, path: str) -> Iterator[str]:
    """Where our data lacks or changes a fact; what it says besides is its own business."""
    if isinstance(fact, dict):
        if not isinstance(ours, dict):
            yield f"{path}: {ours!r} is no mapping"
            return
        by_text = {str(key): value for key, value in ours.items()}
        for key, value in fact.items():
            if str(key) not in by_text:
                yield f"{path}.{key}: missing"
            else:
                yield from _different(value, by_text[str(key)], f"{path}.{key}")
    elif isinstance(fact, int) and not isinstance(fact, bool):
        # A branch or a device id is a number in the facts and a name in our data.
        if str(fact) != str(ours):
            yield f"{path}: {ours!r}, the facts say {fact!r}"
    elif fact != ours:
        yield f"{path}: {ours!r}, the facts say {fact!r}"


def test_cuda_releases(matrix: Mapping[str, Any]) -> None:
    """All releases, with every driver, file and sum; what of the wheels was read is our own."""
    ours = {name: dict(row) for name, row in compat_.load_cuda()["releases"].items()}
    for row in ours.values():
        if row.pop("wheels", None):
            row["source"] = [source for source in row["source"] if source != "toolkit_wheels"]
    expected = {}
    for name, row in matrix["cuda_releases"].items():
        files = {
            machine: {
                key: row[spelled]
                for key, spelled in (
                    ("file", f"runfile_{machine}"),
                    ("sha256", f"sha256_{machine}"),
                    ("md5", f"md5_{machine}"),
                    ("bytes", f"bytes_{machine}"),
                )
                if row.get(spelled) is not None
            }
            for machine in ("x86_64", "sbsa")
        }
        expected[name] = {
            "full_min_driver": row["full_min_driver"],
            "minor_min_driver": row["minor_compat_min_driver"],
            "bundled_driver": row["bundled_driver"],
            "source": row["source"],
        }
        kept = ("paired_driver", "label", "note", "confidence")
        expected[name] |= {key: row[key] for key in kept if key in row}
        if found := {machine: row for machine, row in files.items() if row}:
            expected[name]["runfile"] = found
    assert len(ours) == 63
    assert ours == expected


def test_cuda_majors(matrix: Mapping[str, Any]) -> None:
    """What each major needs, and what its compilers know."""
    for name, row in matrix["cuda_majors"].items():
        ours = compat_.load_cuda()["majors"][name]
        assert ours["minor_min_driver"] == row["minor_compat_min_driver"]
        assert ours["libcudart"] == row["libcudart_soname"]
        assert ours["wheel_dir"] == row["wheel_dir"]
        assert ours["source"] == row["source"]
        assert "min_cc" not in row or ours["min_cc"] == row["min_cc"]
        compilers = {
            key.split("_")[1]: [str(one) for one in value if str(one)[0].isdigit()]
            for key, value in row.items()
            if key.startswith("ptxas_")
        }
        assert compilers == {
            one["release"]: one.get("knows") or one["adds"] for one in ours["ptxas"]
        }


def test_architectures(matrix: Mapping[str, Any]) -> None:
    """The GPU generations, of which the facts put two groups under one name each."""
    ours = compat_.load_cuda()["architectures"]
    for name, row in matrix["architectures"].items():
        members = [one for one in name.split("_") if one.isalpha()]
        for member in members:
            assert list(_different(row, ours[member], member)) == []


def test_forward_compatibility(matrix: Mapping[str, Any]) -> None:
    """The whole table."""
    ours, facts = compat_.load_cuda()["forward_compat"], matrix["forward_compat"]
    table = {
        ".".join(name.split("-")[2:]): {str(branch): value for branch, value in row.items()}
        for name, row in facts["table"].items()
    }
    assert ours["table"] == table
    assert ours["source"] == facts["source"]
    assert ours["errors"] == {str(key): value for key, value in facts["errors"].items()}


def test_runfile_claims(matrix: Mapping[str, Any]) -> None:
    """The names that do not exist, with all that was found out."""
    assert compat_.load_cuda()["runfile_claims"] == matrix["runfile_claims"]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("gpus", "gpus"), ("pci_devices", "devices"), ("fabric_pci_devices", "switches")],
)
def test_hardware(compat: compat_.Compat, matrix: Mapping[str, Any], name: str, ours: str) -> None:
    """GPUs, PCI ids and switches: none missing, none changed, none added."""
    rows = getattr(compat, ours)
    assert set(rows) == {str(key) for key in matrix[name]}
    assert list(_different(_renamed(matrix[name]), rows, name)) == []


def _renamed(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The facts' rows by our names, without what a GPU repeats of its PCI ids."""
    repeated = {"ids_not_in_open_readme"}
    renamed = {}
    for name, row in rows.items():
        kept = {key: value for key, value in row.items() if key not in repeated}
        listed = kept.pop("open_listed", None)
        renamed[name] = kept | ({} if listed is None or "pci_ids" in row else {"open": listed})
    return renamed


def test_open_modules(compat: compat_.Compat, matrix: Mapping[str, Any]) -> None:
    """From which release on the open modules list each PCI id of each GPU, per branch."""
    for row in matrix["gpus"].values():
        for device, listed in row.get("open_listed", {}).items():
            ours = compat.devices[str(device)]["open"]
            assert list(_different(listed, ours, str(device))) == []
        for device in row.get("ids_not_in_open_readme", ()):
            assert "open" not in compat.devices[str(device)]


def test_systems(compat: compat_.Compat, matrix: Mapping[str, Any]) -> None:
    """Operating systems: toolkits, drivers, Docker; the sources of ours may be more."""
    for name, row in matrix["os"].items():
        ours = compat.systems[name]
        plain = {key: value for key, value in row.items() if key != "source"}
        assert list(_different(plain, ours, name)) == []
        assert set(row["source"]) <= set(ours["source"])


def test_keys(compat: compat_.Compat, matrix: Mapping[str, Any]) -> None:
    """The fingerprints of all keys that ours names."""
    for name, row in compat.keys.items():
        assert row.get("fingerprint") == matrix["keys"][name].get("fingerprint")


def test_branches(compat: compat_.Compat, matrix: Mapping[str, Any]) -> None:
    """Driver branches."""
    assert set(compat.branches) == {str(key) for key in matrix["driver_branches"]}
    assert list(_different(matrix["driver_branches"], compat.branches, "branches")) == []


def test_interpreters(matrix: Mapping[str, Any]) -> None:
    """Every installer's sum, and the one that belongs to another file."""
    ours, facts = compat_.load_interpreters(), matrix["conda"]
    assert {row["file"]: row["sha256"] for row in ours["all"]} == facts["sha256"]
    (claim,) = ours["claims"]
    assert claim["file"] == facts["claim"]["file"]
    assert claim["sha256"] == facts["claim"]["claimed"]
    assert claim["published"] == facts["claim"]["published"]
    assert claim["belongs_to"] == facts["claim"]["claimed_value_really_belongs_to"]


def test_containers(matrix: Mapping[str, Any]) -> None:
    """Docker and NVIDIA's toolkit."""
    ours, facts = compat_.load_data("containers.yml"), matrix["containers"]
    assert ours["docker"]["packages"] == facts["docker"]["install"]
    assert ours["docker"]["remove_first"] == facts["docker"]["remove_first"]
    assert ours["docker"]["not_for"] == facts["docker"]["not_for"]
    toolkit = facts["nvidia_container_toolkit"]
    assert ours["nvidia_container_toolkit"]["packages"] == toolkit["packages"]
    assert ours["nvidia_container_toolkit"]["version_seen"] == toolkit["version_seen"]
    for name, cdi in (("automatic_since", "auto_since"), ("units", "units"), ("writes", "writes")):
        assert ours["cdi"][name] == facts["cdi"][cdi]


@pytest.mark.parametrize(
    ("engine", "table", "corrected"),
    [
        ("vllm", "vllm-0.33.0.json", VLLM_CORRECTED),
        ("sglang", "sglang-0.5.23.json", SGLANG_CORRECTED),
    ],
)
def test_options(engines: Mapping[str, Any], engine: str, table: str, corrected: set[str]) -> None:
    """Names, types, defaults and choices; what the wheel says otherwise is listed above."""
    ours, facts = compat_.load_option_table(table)["options"], engines["options"][engine]
    assert set(ours) == set(facts)
    assert {name for name in facts if facts[name] != ours[name]} == corrected


@pytest.mark.parametrize(
    ("engine", "table"), [("vllm", "vllm-0.33.0.json"), ("sglang", "sglang-0.5.23.json")]
)
def test_asked_options(engines: Mapping[str, Any], engine: str, table: str) -> None:
    """Every option that does not exist has its row, and the row the same words."""
    replaced = compat_.load_option_table(table)["replaced"]
    for text, row in engines["asked"][engine].items():
        if text.startswith("--") and not row["exists"]:
            ours = replaced.get(text) or replaced[text.partition(" ")[0]]
            assert ours == row
