# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""survey: the parts that read files, and the whole on this machine."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    host_facts,
    machine,
    ubuntu_drivers,
)

if TYPE_CHECKING:
    from pathlib import Path

EFI = "sys/firmware/efi"
SECURE_BOOT = f"{EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
KEYS = {
    "schema", "os", "arch", "kernel", "memory_bytes", "cpus", "cpu_flags", "disks", "packages",
    "held", "broken", "apt", "gpu", "python", "receipts", "lock_sha256", "services", "platform",
    "user", "run_lock", "gpu_health", "iommu", "kernel_log", "modules", "libraries", "toolkits",
    "docker", "container_toolkit", "limits", "ports", "ubuntu_drivers",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n', "debian12"),
        ('ID=ubuntu\nVERSION_ID="22.04"\nNAME="Ubuntu"\n', "ubuntu2204"),
        ("# nothing\nID='x y\n", ""),
    ],
)
def test_operating_system(text: str, key: str, tmp_path: Path) -> None:
    """The key of the data is the distribution and its version."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    assert machine.operating_system(str(tmp_path))["key"] == key


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b"\x06\0\0\0\x01", "enabled"),
        (b"\x06\0\0\0\x00", "disabled"),
        (b"\x06\0\0\0", "unknown"),
        (None, "unknown"),
    ],
)
def test_secure_boot(content: bytes | None, state: str, tmp_path: Path) -> None:
    """The value stands after four bytes of attributes."""
    assert machine.secure_boot(str(tmp_path)) == "unsupported"
    (tmp_path / EFI / "efivars").mkdir(parents=True)
    if content is not None:
        (tmp_path / SECURE_BOOT).write_bytes(content)
    assert machine.secure_boot(str(tmp_path)) == state


def test_secure_boot_of_old_firmware(tmp_path: Path) -> None:
    """Firmware with variables and without that one knows no Secure Boot."""
    (tmp_path / EFI / "efivars").mkdir(parents=True)
    (tmp_path / EFI / "efivars/Boot0000-x").touch()
    assert machine.secure_boot(str(tmp_path)) == "disabled"


def test_platforms(tmp_path: Path) -> None:
    """Special makes are known by what only they have."""
    for folder in ("etc", "proc", "run/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    plain = machine.kind(str(tmp_path))
    assert not plain["wsl"]
    assert plain["systemd"]
    (tmp_path / "proc/version").write_text("Linux version 5.15.153.1-microsoft-standard-WSL2\n")
    (tmp_path / "etc/dgx-release").touch()
    (tmp_path / "etc/nv_tegra_release").touch()
    (tmp_path / "run/systemd/container").write_text("systemd-nspawn\n")
    special = machine.kind(str(tmp_path))
    assert special["wsl"]
    assert special["dgx"]
    assert special["jetson"]
    assert special["container"] == "systemd-nspawn"


def test_processor(tmp_path: Path) -> None:
    """Memory and instruction sets, or nothing where they cannot be read."""
    assert machine.memory_bytes(str(tmp_path)) == 0
    assert machine.cpu_flags(str(tmp_path)) == []
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nflags : fpu avx2 amx_tile sse\n")
    assert machine.memory_bytes(str(tmp_path)) == 1 << 20
    assert machine.cpu_flags(str(tmp_path)) == ["amx_tile", "avx2"]


def test_disk_that_is_not_there_yet(tmp_path: Path) -> None:
    """It is on the file system of the nearest folder above."""
    found = host_facts.disk(str(tmp_path / "a/b"))
    assert found["path"] == str(tmp_path / "a/b")
    assert found["size_bytes"] == host_facts.disk(str(tmp_path))["size_bytes"]


def test_this_machine(tmp_path: Path) -> None:
    """Everything is there, it can be written as JSON, and it is quick."""
    (tmp_path / "lock.yml").write_text("x")
    start = time.monotonic()
    facts = host_facts.collect(
        paths=["/", str(tmp_path)], config=str(tmp_path), run_dir=str(tmp_path), scope="system"
    )
    assert time.monotonic() - start < 10
    assert set(facts) == KEYS
    json.dumps(facts)
    assert facts["user"]["uid"] == os.getuid()
    assert len(facts["lock_sha256"]) == 64
    assert [disk["path"] for disk in facts["disks"]] == ["/", str(tmp_path)]
    assert facts["kernel"]["running"]
    assert facts["python"]
    paths = [item["path"] for item in facts["python"]]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("chooser", "gpus", "asked"),
    [("data", 1, False), ("ubuntu_drivers", 0, False), ("ubuntu_drivers", 1, True)],
)
def test_ubuntu_drivers(
    chooser: str,
    gpus: int,
    asked: bool,  # noqa: FBT001 - a column of the table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked where the driver's chooser is, and there is something to choose for."""
    seen: dict[str, list[str]] = {"gpus": ["one"] * gpus}
    monkeypatch.setattr(host_facts, "_gpus", lambda _installed: (seen, [], None))
    monkeypatch.setattr(ubuntu_drivers, "collect", lambda: {"path": "here"})
    facts = host_facts.collect(
        paths=[],
        config=str(tmp_path),
        run_dir=str(tmp_path),
        scope="system",
        driver_chooser=chooser,
    )
    assert facts["ubuntu_drivers"] == ({"path": "here"} if asked else None)
