# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the survey reads from a file system, over made ones, and the whole on this machine."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_state,
    containers,
    gpu_health,
    host_facts,
    kernel_modules,
    limits,
    listeners,
    machine,
    toolkits,
)
from ansible_collections.llmetal.inference.plugins.module_utils.apt_sources import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = Path(__file__).parents[2] / "fixtures"
KERNEL = "6.1.0-40-amd64"
ADDRESS = "0000:1b:00.0"
ACS = 0x160


def put(root: Path, files: dict[str, str]) -> None:
    """Files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_kernel_modules(tmp_path: Path) -> None:
    """Modules by the index of each kernel, and what other ways of installing left."""
    root = str(tmp_path)
    nothing = kernel_modules.collect(KERNEL, root)
    assert nothing["nouveau"] is None
    assert nothing["kernels"] == nothing["dkms"] == []
    assert nothing["nvlink_disabled"] is None
    put(
        tmp_path,
        {
            f"lib/modules/{KERNEL}/modules.dep": "kernel/drivers/gpu/drm/nouveau/nouveau.ko: "
            "x.ko\n",
            "lib/modules/6.1.0-39-amd64/modules.dep": "updates/dkms/nvidia-current.ko.xz:\n",
            "lib/modules/6.1.0-38-amd64/modules.dep": "kernel/drivers/net/forcedeth-nvidia.ko:\n",
            "var/lib/dkms/nvidia-current/580.159.04/source/dkms.conf": "",
            "etc/modprobe.d/a.conf": "blacklist nouveau\n",
            "proc/driver/nvidia/params": "EnableMSI: 1\nNvLinkDisable: 1\n",
            "usr/bin/nvidia-uninstall": "",
        },
    )
    found = kernel_modules.collect(KERNEL, root)
    assert found == {
        "nouveau": True,
        "kept_out": {"nouveau": ["/etc/modprobe.d/a.conf"], "nova_core": []},
        "kernels": ["6.1.0-39-amd64"],
        "dkms": ["nvidia-current/580.159.04"],
        "nvlink_disabled": True,
        "installer": "/usr/bin/nvidia-uninstall",
    }


def test_headers(tmp_path: Path) -> None:
    """A link that leads nowhere, a folder of an unconfigured kernel, a good one."""
    root = str(tmp_path)
    build = tmp_path / f"lib/modules/{KERNEL}/build"
    build.parent.mkdir(parents=True)
    build.symlink_to(tmp_path / "usr/src/headers")
    assert kernel_modules.headers(KERNEL, root) == {"build": False, "complete": False}
    put(tmp_path, {"usr/src/headers/Makefile": ""})
    assert kernel_modules.headers(KERNEL, root) == {"build": True, "complete": False}
    put(tmp_path, {"usr/src/headers/include/generated/autoconf.h": ""})
    assert kernel_modules.headers(KERNEL, root) == {"build": True, "complete": True}


def config_space(control: int) -> bytes:
    """A configuration space with two extended capabilities, the second of them ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (ACS << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    space[ACS : ACS + 4] = (1 << 16 | 0x000D).to_bytes(4, "little")
    space[ACS + 6 : ACS + 8] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("config", "acs"),
    [
        (config_space(0x1D), True),
        (config_space(0x01), False),
        (bytes(4096), False),
        (bytes(64), None),
        (None, None),
    ],
)
def test_health_from_the_bus(config: bytes | None, acs: bool | None, tmp_path: Path) -> None:  # noqa: FBT001 - a column
    """The link, its errors, and whether a bridge above redirects; null for what needs root."""
    bridge = "sys/devices/pci0000:00/0000:1a:00.0"
    put(
        tmp_path,
        {
            f"{bridge}/class": "0x060400\n",
            f"{bridge}/max_link_width": "8\n",
            f"{bridge}/{ADDRESS}/current_link_width": "4\n",
            f"{bridge}/{ADDRESS}/max_link_width": "16\n",
            f"{bridge}/{ADDRESS}/current_link_speed": "2.5 GT/s PCIe\n",
            f"{bridge}/{ADDRESS}/max_link_speed": "Unknown\n",
            f"{bridge}/{ADDRESS}/aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 7\n",
        },
    )
    if config is not None:
        (tmp_path / bridge / "config").write_bytes(config)
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / ADDRESS).symlink_to(tmp_path / bridge / ADDRESS)
    gpu = {"pci_address": ADDRESS, "processes": [{"pid": os.getpid()}, {"pid": None}]}
    (row,) = gpu_health.collect([gpu], None, str(tmp_path))
    assert row["link"] == {
        "width": 4, "max_width": 16, "slot_width": 8, "speed": "2.5 GT/s", "max_speed": None,
    }  # fmt: skip
    assert (row["aer_fatal"], row["aer_nonfatal"], row["acs"]) == (None, 7, acs)
    assert row["memory_used_mib"] is row["sick"] is None
    assert [process["pid"] for process in row["processes"]] == [os.getpid()]


def test_iommu(tmp_path: Path) -> None:
    """On where there are groups; unknown where the kernel shows no folder for them."""
    assert gpu_health.iommu(str(tmp_path)) == {"on": None, "types": []}
    put(tmp_path, {"sys/kernel/iommu_groups/0/type": "DMA-FQ\n"})
    assert gpu_health.iommu(str(tmp_path)) == {"on": True, "types": ["DMA-FQ"]}


def test_memory_limit(tmp_path: Path) -> None:
    """The lowest limit on the way up counts."""
    root = str(tmp_path)
    assert limits.memory_limit(root) is None
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": "2147483648\n",
        },
    )
    assert limits.memory_limit(root) == 2 << 30
    put(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/x\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert limits.memory_limit(root) is None


def test_toolkits(tmp_path: Path) -> None:
    """Each toolkit once, under all its names; its version from its own file."""
    put(
        tmp_path,
        {
            "usr/local/cuda-12.4/bin/nvcc": "",
            "usr/local/cuda-12.4/version.json": '{"cuda": {"version": "12.4.1"}}',
            "usr/local/cuda-11.0/bin/ptxas": "",
            "usr/local/cuda-11.0/version.txt": "CUDA Version 11.0.228\n",
            "usr/local/cuda-samples/readme": "",
            "etc/environment": "CUDA_HOME=/usr/local/cuda\n",
            "etc/ld.so.conf.d/cuda.conf": "/usr/local/cuda-12.4/lib64\n/opt/x\n",
        },
    )
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.4")
    found = toolkits.collect("LANG=C LD_LIBRARY_PATH=/usr/local/cuda/lib64", str(tmp_path))
    assert found["found"] == [
        {
            "paths": ["/usr/local/cuda", "/usr/local/cuda-12.4"],
            "version": "12.4.1",
            "nvcc": True,
            "ptxas": False,
        },
        {"paths": ["/usr/local/cuda-11.0"], "version": "11.0.228", "nvcc": False, "ptxas": True},
    ]
    assert [(row["file"], row["name"]) for row in found["settings"]] == [
        ("/etc/environment", "CUDA_HOME"),
        ("systemd", "LD_LIBRARY_PATH"),
    ]
    assert found["loader_folders"] == ["/usr/local/cuda-12.4/lib64"]


def entry(signed_by: str | None) -> Entry:
    """A declared source."""
    return Entry("a.list", ("deb",), ("http://x",), ("/",), (), signed_by)


def test_keys(tmp_path: Path) -> None:
    """The keys of a source's own keyring, and those that all others share."""
    armored = (FIXTURES / "openpgp/sandbox_ed25519/key.asc").read_text()
    expected = json.loads((FIXTURES / "openpgp/sandbox_ed25519/expected.json").read_text())
    put(tmp_path, {"own.asc": armored, "bad.gpg": "x", "trusted.gpg.d/a.asc": armored})
    entries = [entry(str(tmp_path / "own.asc")), entry(str(tmp_path / "bad.gpg")), entry(None)]
    found = apt_state.collect(entries, etc_apt=str(tmp_path))
    keys = [row["fingerprints"] for row in found["sources"]]
    assert keys[1:] == [None, None]
    assert keys[0] == found["trusted"]
    assert keys[0][0] in json.dumps(expected)
    put(tmp_path, {"trusted.gpg": "KBX"})
    assert apt_state.collect([], etc_apt=str(tmp_path))["trusted"] is None


@pytest.mark.parametrize(
    ("names", "state"),
    [
        ([], None),
        (["disabled", "status.json"], None),
        (["status.json"], "running"),
        (["status.json", "result.json"], "done"),
    ],
)
def test_cloud_init(names: list[str], state: str | None, tmp_path: Path) -> None:
    """It has ended when it has written its result."""
    put(tmp_path, {f"run/cloud-init/{name}": "{}" for name in names})
    assert apt_state.cloud_init(str(tmp_path)) == state


@pytest.mark.parametrize(
    ("path", "packages", "kind"),
    [
        (None, {}, "none"),
        ("/snap/bin/docker", {"docker.io": "1"}, "snap"),
        ("/usr/bin/docker", {"docker.io": "1"}, "deb"),
        ("/usr/bin/docker", {}, "other"),
    ],
)
def test_kind_of_docker(path: str | None, packages: dict[str, str], kind: str) -> None:
    """Where the command comes from says whose Docker it is."""
    assert containers.kind_of(path, packages, "/nowhere") == kind


def test_snap_that_is_not_on_the_path(tmp_path: Path) -> None:
    """A snap is there before its folder is on anybody's path."""
    (tmp_path / "snap/docker/current").mkdir(parents=True)
    assert containers.docker({}, str(tmp_path))["kind"] == "snap"


def test_container_toolkit(tmp_path: Path) -> None:
    """Specifications of NVIDIA's devices only; paths that are gone are counted."""
    spec = (FIXTURES / "cdi/nvidia_ctk/spec.txt").read_text()
    put(
        tmp_path,
        {
            "etc/cdi/nvidia.yaml": spec,
            "run/cdi/other.yaml": "kind: vendor.example/nic\n",
            "usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04": "",
            "etc/nvidia-container-runtime/config.toml": '[x]\nmode = "cdi"\n',
        },
    )
    found = containers.toolkit(str(tmp_path))
    assert found["mode"] == "cdi"
    assert not found["device_links"]
    (row,) = found["cdi"]
    assert (row["file"], row["version"], row["paths"], row["missing"]) == (
        "/etc/cdi/nvidia.yaml", "580.159.04", 4, 3,
    )  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """A Docker daemon that answers one question as a recorded one did."""
    path = str(tmp_path / "docker.sock")
    body = (FIXTURES / "docker_info/debian12/info.json").read_bytes()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen()

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + body)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield path
    thread.join(5)
    server.close()


def test_docker_daemon(daemon: str, tmp_path: Path) -> None:
    """It is asked over its socket; where there is none it is unknown."""
    expected = json.loads((FIXTURES / "docker_info/debian12/expected.json").read_text())
    assert containers.ask_daemon(daemon) == expected
    assert containers.ask_daemon(str(tmp_path / "none.sock")) is None
    (tmp_path / "file.sock").touch()
    assert containers.ask_daemon(str(tmp_path / "file.sock")) is None


def test_listeners_of_this_machine() -> None:
    """A socket of this test, with this test as its owner."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rows = listeners.collect() or []
    (row,) = [row for row in rows if row["port"] == port]
    assert row["address"] == "127.0.0.1"
    assert row["uid"] == os.getuid()
    assert row["process"]["pid"] == os.getpid()
    assert listeners.collect("/nowhere") is None


def test_operator(tmp_path: Path) -> None:
    """A node of Kubernetes whose operator brings the driver."""
    assert not machine.kind(str(tmp_path))["operator_driver"]
    put(tmp_path, {"run/nvidia/driver/lib/x": "", "var/lib/kubelet/config.yaml": ""})
    found = machine.kind(str(tmp_path))
    assert found["operator_driver"]
    assert found["kubelet"]


def shape(value: object) -> object:
    """The keys of a result, at every depth but inside lists and open mappings."""
    if not isinstance(value, dict):
        return None
    return {key: shape(inner) for key, inner in value.items()}


OPEN = {"packages", "services", "receipts", "gpu"}


def test_the_recorded_host_has_the_facts_of_this_module(tmp_path: Path) -> None:
    """The host that the planner's tests look at is one that the survey could have seen."""
    recorded: dict[str, Any] = json.loads(
        (FIXTURES / "survey/h200x2_debian12/facts.json").read_text()
    )
    here = host_facts.collect(paths=[], config=str(tmp_path), run_dir=str(tmp_path), scope="system")
    for key in OPEN:
        assert set(map(type, (recorded.pop(key), here.pop(key)))) == {dict}
    for facts in (recorded, here):
        facts["docker"]["daemon"] = facts["kernel_log"] = None
        facts["toolkits"]["nvcc"] = facts["kernel"]["compiler"] = None
    assert shape(here) == shape(recorded)
