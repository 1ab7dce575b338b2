# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet of a thousand hosts, planned from recorded facts: how long, and how much memory.

Not part of the daily tests: a shared machine's seconds prove nothing. It prints what it measured,
with `ansible-inventory --list` over the same inventory beside it, and asserts the memory alone.

    pytest tests/scale -s
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 1000
BUDGET_SECONDS = 5.0
BUDGET_BYTES = 300 << 20

GIB = 1 << 30
KERNEL = "5.15.0-130-generic"
HOSTS_YML = """\
---
all:
  children:
    gpu:
      children:
"""
GROUP_VARS = {
    "all": {"ansible_user": "admin", "llmetal_reboot": False},
    "gpu": {
        "llmetal_models": [
            {"name": name, "source": {"type": "folder", "path": f"/srv/models/{name}"}}
            for name in ("chat-model", "small-model")
        ],
        "llmetal_instances": [
            {"name": "chat", "engine": "vllm", "model": "chat-model", "context": 8192}
        ],
    },
    "a100": {"llmetal_driver": {"source": "auto"}},
    "rtx": {
        "llmetal_instances": [
            {
                "name": "chat",
                "engine": "vllm",
                "model": "small-model",
                "context": 4096,
                "options": {"gpu-memory-utilization": 0.9},
            }
        ]
    },
    "cpu": {
        "llmetal_instances": [
            {"name": "chat", "engine": "vllm", "model": "chat-model", "device": "cpu"}
        ]
    },
    "broken": {},
}
"""Three kinds of GPU nodes, nodes without a GPU, and nodes that are asked for what they lack."""

GPUS = {"a100": ("20b2", 8), "rtx": ("2684", 1), "h200": ("2335", 8), "cpu": ("", 0)}
SHARES = {"a100": 0.4, "rtx": 0.3, "h200": 0.2, "cpu": 0.09, "broken": 0.01}


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    seconds: float
    peak_bytes: int
    returncode: int
    output: bytes


def make_facts(kind: str, number: int) -> dict[str, Any]:
    """What a survey of a host would say: an Ubuntu 22.04 with a few hundred packages."""
    device, count = GPUS.get(kind, ("", 0))
    gpus = [
        {"index": n, "pci_address": f"0000:{n + 1:02x}:00.0", "device_id": device, "name": kind}
        for n in range(count)
    ]
    packages = {f"library-{n}": f"1.{n}.{number % 7}-1ubuntu0.1" for n in range(700)}
    return {
        "schema": 1,
        "os": {"id": "ubuntu", "key": "ubuntu2204", "pretty": "Ubuntu 22.04.5 LTS"},
        "arch": "x86_64",
        "kernel": {
            "running": KERNEL,
            "headers": {"package": f"linux-headers-{KERNEL}", "installed": True, "version": "1"},
            "compiler": "/usr/bin/gcc",
            "secure_boot": "disabled",
        },
        "memory_bytes": 1024 * GIB,
        "cpu_flags": ["avx2", "avx512f"],
        "disks": [{"path": "/", "size_bytes": 2000 * GIB, "free_bytes": 1500 * GIB}],
        "packages": packages,
        "broken": [],
        "apt": {"sources": []},
        "gpu": {
            "gpus": gpus,
            "switches": [],
            "driver": {"loaded": "580.95.05" if count and kind != "a100" else None},
        },
        "python": [{"path": "/usr/bin/python3.11", "version": "3.11.2"}],
        "receipts": {},
        "services": {},
        "platform": {"virtualization": None, "systemd": True, "systemd_user": True},
        "user": {"name": "admin", "uid": 1000, "home": "/home/admin"},
    }


def make_fleet(folder: Path, hosts: int = HOSTS) -> None:
    """Write an inventory of so many hosts, and the facts of each."""
    site, recorded = folder / "site", folder / "facts"
    config = json.loads((ROOT / "tests/fixtures/models/qwen3-14b/config.json").read_text("utf-8"))
    for name, layers in (("chat-model", 40), ("small-model", 16)):
        model = recorded / "models" / name
        model.mkdir(parents=True)
        text = json.dumps({**config, "num_hidden_layers": layers})
        (model / "config.json").write_text(text, encoding="utf-8")
    (site / "group_vars").mkdir(parents=True)
    for name, variables in GROUP_VARS.items():
        (site / "group_vars" / f"{name}.yml").write_text(json.dumps(variables), encoding="utf-8")
    lines = [HOSTS_YML]
    for kind, share in SHARES.items():
        lines.append(f"        {kind}:\n          hosts:\n")
        for number in range(round(hosts * share)):
            host = f"{kind}-{number:04}"
            lines.append(f"            {host}: {{ansible_host: 192.0.2.{number % 250 + 1}}}\n")
            text = json.dumps({"facts": make_facts(kind, number)})
            (recorded / f"{host}.json").write_text(text, encoding="utf-8")
    (site / "hosts.yml").write_text("".join(lines), encoding="utf-8")


def measure(*argv: str) -> Measured:
    """Run a command to its end."""
    env = {**os.environ, "NO_COLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    began = time.monotonic()
    with subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    return Measured(seconds, usage.ru_maxrss * 1024, process.returncode, output)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The arguments of `llmetal plan` for the fleet."""
    folder = tmp_path_factory.mktemp("fleet")
    make_fleet(folder)
    return "plan", "-i", str(folder / "site"), "--facts", str(folder / "facts")


@pytest.fixture(scope="module")
def peer(fleet: tuple[str, ...]) -> float:
    """The seconds that Ansible takes to read the same inventory."""
    program = Path(sys.executable).parent / "ansible-inventory"
    done = measure(str(program), "-i", fleet[2], "--list")
    assert done.returncode == 0
    return done.seconds


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_thousand_hosts(form: str, fleet: tuple[str, ...], peer: float) -> None:
    """All are planned, those that lack a GPU are refused, and memory stays within its budget."""
    done = measure(sys.executable, "-m", "llmetal", *fleet, "--format", form)
    sys.stdout.write(
        f"\n{form}: {HOSTS} hosts in {done.seconds:.1f} s (budget {BUDGET_SECONDS:.0f} s), "
        f"{done.seconds / peer:.1f} times `ansible-inventory --list` ({peer:.1f} s); "
        f"{done.peak_bytes >> 20} MiB of memory in the largest process "
        f"(budget {BUDGET_BYTES >> 20} MiB); {len(done.output) >> 20} MiB printed\n"
    )
    refused = round(HOSTS * SHARES["broken"])
    assert done.returncode == 3
    if form == "json":
        document = json.loads(done.output)
        assert document["failures"] == []
        statuses = [plan["status"] for plan in document["hosts"].values()]
        assert (len(statuses), statuses.count("refused")) == (HOSTS, refused)
        assert document["hosts"]["broken-0000"]["refusals"][0]["rule"] == "gpu-missing"
    else:
        assert f"{HOSTS - refused} planned, {refused} refused\n" in done.output.decode()
    assert done.peak_bytes < BUDGET_BYTES
