# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the survey reads from programs and from /proc, over recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import (
    apt_state,
    containers,
    gpu_health,
    kernel_log,
    kernel_modules,
    limits,
    listeners,
    processes,
    toolkits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = Path(__file__).parents[2] / "fixtures"
PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "apt_config": ("dump.txt", apt_state.parse_config),
    "cdi": ("spec.txt", lambda text: containers.parse_cdi(text, "/nowhere")),
    "dmesg": ("dmesg.txt", kernel_log.parse),
    "docker_info": ("info.json", lambda text: containers.parse_info(json.loads(text))),
    "nvcc_version": ("version.txt", toolkits.parse_release),
    "proc_net_tcp": ("tcp.txt", listeners.parse),
}
CASES = [
    (tool, case.name) for tool in sorted(PARSERS) for case in sorted((FIXTURES / tool).iterdir())
]


@pytest.mark.parametrize(("tool", "case"), CASES)
def test_recordings(tool: str, case: str) -> None:
    """Each recording gives the result that stands beside it."""
    name, parse = PARSERS[tool]
    folder = FIXTURES / tool / case
    expected = json.loads((folder / "expected.json").read_text())
    assert parse((folder / name).read_text()) == expected


def test_a_log_that_lost_its_beginning() -> None:
    """A ring buffer forgets; then its silence proves nothing."""
    texts = {
        case: (FIXTURES / "dmesg" / case / "dmesg.txt").read_text() for case in ("xids", "quiet")
    }
    assert kernel_log.is_whole(texts["xids"])
    assert not kernel_log.is_whole(texts["quiet"])
    assert not kernel_log.is_whole("")


@pytest.mark.parametrize(
    ("case", "links", "expected"),
    [
        (
            "h200_passthrough",
            {"usr/local/nvidia/lib64": "580.159.04", "lib": "580.159.04"},
            {"libnvidia-ml": ["580.159.04"], "libcuda": ["580.159.04"]},
        ),
        ("h200_passthrough", {}, {"libnvidia-ml": ["unknown"], "libcuda": ["unknown"]}),
        (
            "two_drivers",
            {"usr/lib/x86_64-linux-gnu": "580.178.04", "usr/lib": "520.56.06"},
            {"libnvidia-ml": ["520.56.06", "580.178.04"], "libcuda": ["580.178.04"]},
        ),
        ("none", {}, {"libnvidia-ml": [], "libcuda": []}),
    ],
)
def test_libraries(
    case: str, links: dict[str, str], expected: dict[str, list[str]], tmp_path: Path
) -> None:
    """The versions are those of the files that the loader's links lead to."""
    for folder, version in links.items():
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        for name in ("libnvidia-ml.so", "libcuda.so"):
            (place / f"{name}.{version}").touch()
            (place / f"{name}.1").symlink_to(f"{name}.{version}")
    text = (FIXTURES / "ldconfig" / case / "ldconfig_p.txt").read_text()
    assert kernel_modules.parse_cache(text, str(tmp_path)) == expected


@pytest.mark.parametrize("case", ["h200_passthrough", "h200x2_nvswitch_vm", "row_remap_pending"])
def test_health_of_recorded_gpus(case: str) -> None:
    """Real GPUs that nobody uses: no memory in use, nothing to retire, nothing unreadable."""
    found = gpu_health.parse_query((FIXTURES / "gpu_info" / case / "query.txt").read_text())
    assert found
    for row in found.values():
        assert row == {"memory_used_mib": 0, "retirement_pending": None, "sick": []}


def test_health_of_a_sick_gpu() -> None:
    """An error in place of a value is named by the value; other words for unknown are none."""
    text = """<nvidia_smi_log><gpu id="00000000:3B:00.0">
    <fb_memory_usage><used>81000 MiB</used></fb_memory_usage>
    <retired_pages><pending_blacklist>Yes</pending_blacklist></retired_pages>
    <fan_speed>ERR!</fan_speed><power_draw>[GPU is lost]</power_draw><x>N/A</x>
    </gpu></nvidia_smi_log>"""
    assert gpu_health.parse_query(text) == {
        "0000:3b:00.0": {
            "memory_used_mib": 81000,
            "retirement_pending": True,
            "sick": ["fan_speed", "power_draw"],
        }
    }


@pytest.mark.parametrize("text", ["", "<a>", '<!DOCTYPE x [<!ENTITY a "b">]><x/>'])
def test_no_answer_of_nvidia_smi(text: str) -> None:
    """What is not its XML says nothing."""
    assert gpu_health.parse_query(text) == {}


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/llmetal-chat.service\n", "llmetal-chat.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/llmetal-a.service\n",
         "llmetal-a.service"),
        ("12:pids:/system.slice/docker-abc.scope\n1:name=systemd:/\n", "docker-abc.scope"),
        ("0::/\n", None),
        (None, None),
    ],
)  # fmt: skip
def test_unit_of(text: str | None, unit: str | None) -> None:
    """The innermost unit of a control group."""
    assert processes.unit_of(text) == unit


@pytest.mark.parametrize(
    ("cmdline", "program"),
    [
        ("/usr/bin/python3\0/opt/bin/vllm\0serve\0--api-key\0secret\0",
         "/usr/bin/python3 /opt/bin/vllm"),
        ("python3\0-c\0import secret\0", "python3"),
        ("nginx: master process\0", "nginx: master process"),
        ("", None),
        (None, None),
    ],
)  # fmt: skip
def test_program_of(cmdline: str | None, program: str | None) -> None:
    """Arguments are left out: they may be secrets."""
    assert processes.program_of(cmdline) == program


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://someone:secret@cache.example:3142/", "http://cache.example:3142"),
        ("http://cache.example", "http://cache.example"),
        ("someone:secret@cache", "cache"),
        ("http://[bad", "(unreadable)"),
    ],
)
def test_proxies_without_secrets(address: str, shown: str) -> None:
    """Who may use a proxy is nobody's business."""
    assert apt_state.without_user(address) == shown


@pytest.mark.parametrize(
    ("text", "valid", "runtimes", "driver"),
    [
        ('{"runtimes": {"nvidia": {"path": "x"}}}', True, ["nvidia"], None),
        ('{"exec-opts": ["native.cgroupdriver=cgroupfs"]}', True, [], "cgroupfs"),
        ('{"runtimes": {"nvidia": {}},}', False, [], None),
        ("[]", False, [], None),
        ("", True, [], None),
        (None, None, [], None),
    ],
)
def test_daemon_json(
    text: str | None,
    valid: bool | None,  # noqa: FBT001 - a column
    runtimes: list[str],
    driver: str | None,
) -> None:
    """A file that Docker would not start with is no valid one."""
    found = containers.daemon_json(text)
    assert found["valid"] is valid
    assert bool(found["error"]) == (valid is False)
    assert found["runtimes"] == runtimes
    assert found["cgroup_driver"] == driver


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("blacklist nouveau\noptions nouveau modeset=0\n", {"nouveau"}),
        ("# blacklist nouveau\n", set()),
        ("install nova-core /bin/false\n", {"nova_core"}),
        ("install nouveau /sbin/modprobe --ignore-install nouveau\nblacklist\n", set()),
    ],
)
def test_kept_out(text: str, names: set[str]) -> None:
    """A module is kept out by a blacklist or by a command that does nothing."""
    assert kernel_modules.kept_out(text) == names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("infinity", -1),
        ("8388608", 8388608),
        ("18446744073709551615", -1),
        ("max\n", None),
        (None, None),
    ],
)
def test_limits(text: str | None, value: int | None) -> None:
    """Limits as systemd and control groups write them."""
    assert limits.bytes_of(text) == value


MOUNTS = """27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:27 / /tmp rw shared:5 - nfs4 10.0.0.1:/tmp rw
31 27 0:28 / /tmp\\040x rw - tmpfs tmpfs rw
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/tmp", "nfs4"), ("/tmp x/y", "tmpfs"), ("/tmpfiles", "ext4")],  # noqa: S108 - names in a table
)
def test_file_system_of(path: str, kind: str) -> None:
    """The mount that is nearest above the path; the later one where two are equal."""
    assert limits.file_system_of(MOUNTS, path) == kind
    assert limits.file_system_of("", path) is None


def test_settings() -> None:
    """Only the variables that lead to libraries or a toolkit, exported or not."""
    text = """export LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH
SECRET=x
#CUDA_HOME=/a
CUDA_HOME='/b'
"""
    assert toolkits.settings_in(text) == [
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:$LD_LIBRARY_PATH"),
        ("CUDA_HOME", "/b"),
    ]
