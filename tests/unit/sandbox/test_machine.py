# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network, mounts, locks and ledger: the decisions, without touching the machine."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox import (
    ledger,
    locks,
    mounts,
    network,
    requests,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import (
    Settings,
    default_cache,
)

SUBNET = IPv4Network("10.213.0.0/24")


@pytest.mark.parametrize(
    ("route", "found"),
    [
        ({"dst": "default", "dev": "eth0"}, []),
        ({"dst": "10.213.0.0/24", "dev": "llmetal0"}, []),
        ({"dst": "10.213.0.0/24", "dev": "docker0"}, ["10.213.0.0/24 on docker0"]),
        ({"dst": "10.0.0.0/8", "dev": "tun0"}, ["10.0.0.0/8 on tun0"]),
        ({"dst": "10.213.0.7", "dev": "eth0"}, ["10.213.0.7 on eth0"]),
        ({"dst": "192.0.2.0/24", "dev": "eth0"}, []),
    ],
)
def test_collisions(route: dict[str, str], found: list[str]) -> None:
    """A subnet that somebody else has is not taken."""
    assert network.collisions([route], SUBNET, "llmetal0") == found


def test_mtu_is_that_of_the_way_out() -> None:
    """The bridge never promises more than the uplink carries."""
    links = [{"ifname": "eth0", "mtu": 1400}, {"ifname": "lo", "mtu": 65536}]
    assert network.outgoing_mtu([{"dst": "default", "dev": "eth0"}], links) == 1400
    assert network.outgoing_mtu([], links) == 1500


def test_rules_name_the_bridge() -> None:
    """Each rule carries a comment by which it is known as ours."""
    for rule in network.firewall_rules(Settings(files=Path("/f"))):
        assert "llmetal-sandbox-llmetal0" in rule


def test_mounts_are_read() -> None:
    """Blanks in paths are escaped by the kernel."""
    text = "tmpfs /run tmpfs rw 0 0\noverlay /a\\040b overlay rw,lowerdir=/x,upperdir=/y 0 0\n"
    assert mounts.parse_mounts(text) == [
        ("/run", "tmpfs", "rw"),
        ("/a b", "overlay", "rw,lowerdir=/x,upperdir=/y"),
    ]


def test_lock_is_held_and_released(tmp_path: Path) -> None:
    """One holder at a time; a removed file is no lock."""
    path = tmp_path / "x.lock"
    with locks.held(path, timeout=1):
        assert locks.is_held(path)
        with pytest.raises(LlmetalError, match="another run"), locks.held(path, timeout=0):
            pass
    assert not locks.is_held(path)
    assert not locks.is_held(tmp_path / "none")


def test_ledger_round_trip(tmp_path: Path) -> None:
    """Keys of another time are ignored, another schema is refused, a broken file is not lost."""
    path = tmp_path / "ledger.json"
    book = ledger.Ledger(bridge="llmetal0", hosts={"a": {"address": "10.213.0.5"}})
    ledger.save(path, book)
    assert ledger.load(path) == book
    assert book.address_taken_by("10.213.0.5", other_than="b") == "a"
    assert book.address_taken_by("10.213.0.5", other_than="a") is None
    path.write_text('{"schema": 1, "gone": true}', encoding="utf-8")
    assert ledger.load(path) == ledger.Ledger()
    path.write_text('{"schema": 2}', encoding="utf-8")
    with pytest.raises(LlmetalError, match="another version"):
        ledger.load(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(LlmetalError, match="cannot be read"):
        ledger.load(path)


def test_a_killed_first_write_is_ours(tmp_path: Path) -> None:
    """What a killed run leaves before its first entry is not taken for somebody else's."""
    path = tmp_path / "state/ledger.json"
    assert ledger.is_unwritten(path)
    path.parent.mkdir()
    (path.parent / ".ledger.json.abc").touch()
    assert ledger.is_unwritten(path)
    (path.parent / "photos").mkdir()
    assert not ledger.is_unwritten(path)


@pytest.mark.parametrize("name", ["", "Gpu", "a_b", "-a", "a-", "x" * 41, "a/b"])
def test_names_that_cannot_be(name: str) -> None:
    """A name is refused before anything is looked at."""
    with pytest.raises(LlmetalError, match="cannot be the name"):
        requests.fulfil({"name": name}, check=True)


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same order as the command line has."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("LLMETAL_CACHE", raising=False)
    assert default_cache() == Path("/x/llmetal/sandbox")
    monkeypatch.setenv("LLMETAL_CACHE", "/y")
    assert default_cache() == Path("/y/sandbox")
