# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the links between GPUs must be like: by model, by board, in a virtual machine."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import facts, lock, plan_nvlink

A100, A100_PCIE, A800, RTX_3090, RTX_4090 = "20b2", "20b5", "20f3", "2204", "2684"
H100, H100_NVL, H200, H20, B200 = "2330", "2321", "2335", "2329", "2901"
V100_MESH, V100_SWITCH, GH200, GB10, GB200 = "1db5", "1db8", "2342", "2e12", "2941"
KVM = {"platform__virtualization": "kvm"}
SWITCH_OFF = {"modules": {"nvlink_disabled": True}}
MIRROR = {
    "uri": "http://192.0.2.1/cuda",
    "key_file": "key.asc",
    "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
}


def decide(
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpus: tuple[str, ...],
    switches: int = 0,
    **changes: Any,  # noqa: ANN401 - any fact
) -> dict[str, Any] | None:
    """What is expected of the links of a host."""
    seen = facts.parse(bench.facts(gpus, switches, **changes))
    return plan_nvlink.decide(bench.request(), seen, bench.compat)


@pytest.mark.parametrize(
    ("gpus", "switches", "changes", "links", "gbps", "topology", "fabric_state"),
    [
        ((A100,) * 8, 6, {}, 12, 25, "NV12", False),
        ((A100,) * 4, 0, {}, 12, 25, "NV4", False),
        ((A100,) * 8, 0, {}, 12, 25, "NV12", False),
        ((H100,) * 8, 4, {}, 18, 26.562, "NV18", True),
        ((H100,) * 4, 0, {}, 18, 26.562, "NV6", False),
        ((H200,) * 8, 4, {}, 18, 26.562, "NV18", True),
        ((H200,) * 7, 4, {}, 18, 26.562, "NV18", True),
        ((H200,) * 8, 4, KVM, 18, 26.562, "NV18", True),
        ((H20,) * 8, 4, {}, 18, 26.562, "NV18", True),
        ((A800,) * 8, 6, {}, 8, 25, "NV8", False),
        ((B200,) * 8, 0, {}, 18, 53.125, "NV18", True),
        ((V100_MESH,) * 8, 0, {}, 6, 25.781, None, False),
        ((V100_SWITCH,) * 16, 12, {}, 6, 25.781, "NV6", False),
    ],
)
def test_links_that_must_be_active(  # noqa: PLR0913, PLR0917 - the columns of the table
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpus: tuple[str, ...],
    switches: int,
    changes: dict[str, Any],
    links: int,
    gbps: float,
    topology: str | None,
    fabric_state: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """On metal a board joins its GPUs, and every link of each of them counts."""
    found = decide(bench, gpus, switches, **changes)
    assert found is not None
    assert found["required"] is True
    assert found["fabric_state"] is fabric_state
    assert found["topology"] == topology
    assert [(one["links"], one["gbps"]) for one in found["gpus"]] == [(links, gbps)] * len(gpus)
    assert found["gpus"][0]["pci"] == "0000:01:00.0"
    assert found["why"]


@pytest.mark.parametrize(
    ("gpus", "switches", "changes", "why"),
    [
        ((H200,), 0, KVM, "virtual machine"),
        ((H200,) * 2, 0, KVM, "virtual machine"),
        ((B200,) * 8, 0, KVM, "virtual machine"),
        ((V100_MESH,) * 8, 0, KVM, "virtual machine"),
        ((H200,), 0, {}, "no NVSwitch on the PCI bus, and it is alone"),
        ((H100,) * 2, 0, {}, "how 2 of them are joined is not known"),
        ((A100,) * 8, 6, SWITCH_OFF, "NvLinkDisable"),
        ((RTX_3090,) * 2, 0, {}, "where bridges join the cards"),
        ((A100_PCIE,) * 2, 0, {}, "where bridges join the cards"),
        ((H100_NVL,) * 4, 0, {}, "where bridges join the cards"),
        ((A800,) * 8, 0, {}, "where bridges join the cards"),
    ],
)
def test_links_that_may_be_missing(
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpus: tuple[str, ...],
    switches: int,
    changes: dict[str, Any],
    why: str,
) -> None:
    """In a virtual machine, and on cards with bridges, zero links are as good as all of them."""
    found = decide(bench, gpus, switches, **changes)
    assert found is not None
    assert (found["required"], found["fabric_state"], found["topology"]) == (False, False, None)
    assert len(found["gpus"]) == len(gpus)
    assert why in " ".join(found["why"])


@pytest.mark.parametrize(
    "gpus", [(), (RTX_4090,) * 2, (RTX_3090,), (GH200,), (GB10,), (GB200,) * 4, ("ffff",)]
)
def test_no_links_at_all(
    bench: Any,  # noqa: ANN401 - see conftest.py
    gpus: tuple[str, ...],
) -> None:
    """GPUs without links, a card alone, and links that lead out of the host, ask for nothing."""
    assert decide(bench, gpus) is None


def test_modules_and_cards_in_one_host(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """Cards beside a board do not make its links a matter of taste."""
    found = decide(bench, (*(H200,) * 8, RTX_3090, RTX_3090, RTX_4090), 4)
    assert found is not None
    assert found["required"] is True
    assert len(found["gpus"]) == 8


def test_the_lock_has_it(bench: Any) -> None:  # noqa: ANN401 - see conftest.py
    """It is planned with the driver, or where one is loaded that is kept; else nobody can say."""
    driver = {"driver": {"source": "cuda_repo", "mirror": MIRROR}}
    planned = bench.plan(driver, gpus=(H200,) * 8, switches=4).lock
    assert lock.validate(planned, "here")["nvlink"]["bandwidth_fraction"] == 0.65
    kept = bench.plan(
        {},
        gpus=(H200,) * 8,
        switches=4,
        gpu__driver={"loaded": "580.159.04"},
        services={"nvidia-fabricmanager.service": {"active": "active", "enabled": "enabled"}},
    ).lock
    assert kept["driver"] is None
    assert kept["nvlink"]["required"] is True
    assert bench.plan({}, gpus=(H200,) * 8, switches=4).lock["nvlink"] is None
