# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wrong inventory is refused with file, line, key, what was found and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llmetal.inference.plugins.plugin_utils import argument_spec, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Problems = Callable[..., list[validate.Problem]]

HOSTS = """\
---
all:
  children:
    gpu:
      hosts:
        gpu-1: {}
        gpu-2: {}
    gateway:
      hosts:
        services-1: {}
"""
GPU = """\
---
llmetal_models:
  - name: smollm2
    source: {type: folder, path: /srv/models/smollm2}
llmetal_instances:
  - name: chat
    engine: vllm
    model: smollm2
    device: cpu
    port: 8000
"""


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problems:
    """Check an inventory made of some files."""
    monkeypatch.chdir(tmp_path)

    def check(files: Mapping[str, str], **extra: object) -> list[validate.Problem]:
        for name, text in {"hosts.yml": HOSTS, **files}.items():
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return validate.validate_inventory(["site/hosts.yml"], extra)

    return check


def places(found: list[validate.Problem]) -> list[tuple[str, int, str]]:
    """File, line and key of each problem."""
    return [(one.file.removeprefix("site/"), one.line, one.key) for one in found]


def test_good(problems: Problems) -> None:
    """Nothing is wrong with a right inventory; own variables are free."""
    more = "site_motd: hello\nansible_user: admin\nllmetal_root: '{{ site_disk }}/llmetal'\n"
    assert problems({"group_vars/gpu.yml": GPU, "group_vars/all.yml": more}, site_disk="/d") == []


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "why"),
    [
        ("llmetal_models:", "llmetal_model:", 2, "llmetal_model", "is not known"),
        ("    port: 8000", "    port: many", 10, "llmetal_instances[0].port", "not of type int"),
        ("    port: 8000", "    port: 0", 10, "llmetal_instances[0].port", "is too small"),
        ("engine: vllm", "engine: vlm", 7, "llmetal_instances[0].engine", "did you mean vllm?"),
        ("    model: s", "    modle: s", 8, "llmetal_instances[0].modle", "is not known here"),
        ("model: smollm2", "model: smollm", 8, "llmetal_instances[0].model", "names no model"),
        ("- name: chat", "- name: Chat!", 6, "llmetal_instances[0].name", "is not of the form"),
        ("device: cpu", "gpus: [0, 0]", 9, "llmetal_instances[0].gpus", "names a GPU twice"),
        ("port: 8000", "gpus: [0]", 10, "llmetal_instances[0].gpus", "on the CPU"),
        ("port: 8000", "engine_version: 0.32", 10, "llmetal_instances[0].engine_version", "a num"),
        ("/srv", "srv", 4, "llmetal_models[0].source.path", "is not of the form"),
        ("port: 8000", "port: true", 10, "llmetal_instances[0].port", "not of type int"),
        ("port: 8000", "port: .inf", 10, "llmetal_instances[0].port", "not of type int"),
        ("port: 8000", "context: .nan", 10, "llmetal_instances[0].context", "not of type int"),
        ("port: 8000", "host: a b", 10, "llmetal_instances[0].host", "is not of the form"),
        ("port: 8000", 'host: "::1\\nx"', 10, "llmetal_instances[0].host", "is not of the form"),
        ("port: 8000", "5: x", 10, "llmetal_instances[0].5", "is not known here"),
        ("port: 8000", "options: {5: 1, a: 2}", 10, "llmetal_instances[0].options.5", "not a text"),
        ("port: 8000", "model: m", 10, "model", "stands there twice: line 8 has it too"),
        ("type: folder", "type: hub", 4, "llmetal_models[0].source.type", "is not one of"),
    ],
)
def test_problem(  # noqa: PLR0913, PLR0917 - a row of a table
    problems: Problems, old: str, new: str, line: int, key: str, why: str
) -> None:
    """One mistake is found where it stands."""
    assert old in GPU
    found = problems({"group_vars/gpu.yml": GPU.replace(old, new)})
    mine = [one for one in found if one.key == key and why in one.why]
    assert places(mine) == [("group_vars/gpu.yml", line, key)]
    assert all(one.found for one in mine)


def test_all_at_once(problems: Problems) -> None:
    """Every problem of every file, in their order."""
    found = problems(
        {
            "group_vars/all.yml": "llmetal_scop: system\n",
            "group_vars/gpu.yml": GPU.replace("8000", "0"),
            "host_vars/gpu-2.yml": "llmetal_reboot: perhaps\n",
        },
        llmetal_lok_dir="x",
    )
    assert places(found) == [
        ("group_vars/all.yml", 1, "llmetal_scop"),
        ("group_vars/gpu.yml", 10, "llmetal_instances[0].port"),
        ("host_vars/gpu-2.yml", 1, "llmetal_reboot"),
        (validate.COMMAND_LINE, 0, "llmetal_lok_dir"),
    ]
    assert [one.host for one in found] == ["", "", "gpu-2", ""]
    text = validate.as_text(found)
    assert text.startswith("4 problems in the inventory; no host was connected to.")
    assert "site/group_vars/all.yml:1: llmetal_scop is not known" in text
    assert "did you mean llmetal_scope?" in text


def test_name_and_port_used_twice(problems: Problems) -> None:
    """Two instances of a host need names and ports of their own."""
    two = GPU + GPU[GPU.index("  - name: chat") :]
    found = problems({"group_vars/gpu.yml": two})
    assert places(found) == [
        ("group_vars/gpu.yml", 11, "llmetal_instances[1].name"),
        ("group_vars/gpu.yml", 15, "llmetal_instances[1].port"),
    ]
    assert "llmetal_instances[0] has it too" in found[0].why


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("hosts.yml", "---\nall:\n  children:\n    gpus:\n      hosts:\n        gpu-1: {}\n", 6),
        ("hosts.yml", "---\nall:\n  hosts:\n    gpu-1: {}\n", 4),
    ],
)
def test_host_in_no_group(problems: Problems, name: str, text: str, line: int) -> None:
    """A host that is in no group of a site would silently get nothing."""
    (one,) = problems({name: text})
    assert (one.line, one.host, one.why) == (line, "gpu-1", "is in no group of a site")
    assert "gpu, gateway, monitoring" in one.allowed


def test_variables_in_the_inventory_itself(problems: Problems) -> None:
    """A variable beside a host, or of a group in the same file, has a line too."""
    text = HOSTS.replace("gpu-1: {}", "gpu-1: {llmetal_rot: /opt}").replace(
        "    gateway:", "      vars:\n        llmetal_root: relative\n    gateway:"
    )
    assert places(problems({"hosts.yml": text})) == [
        ("hosts.yml", 6, "llmetal_rot"),
        ("hosts.yml", 9, "llmetal_root"),
    ]


def test_ini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INI inventories have lines as well."""
    monkeypatch.chdir(tmp_path)
    text = "[gpu]\ng1 llmetal_rot=/x\n\n[gpu:vars]\nllmetal_root=relative\n"
    Path("hosts.ini").write_text(text, encoding="utf-8")
    found = validate.validate_inventory(["hosts.ini"])
    assert places(found) == [("hosts.ini", 2, "llmetal_rot"), ("hosts.ini", 5, "llmetal_root")]


def test_broken_yaml(problems: Problems) -> None:
    """A file that is no YAML is named with its line, before anything else is looked at."""
    (one,) = problems({"group_vars/all.yml": "---\na: 1\nb: [1,\n"})
    assert (one.file, one.why) == ("site/group_vars/all.yml", "cannot be read")
    assert one.line >= 3


def test_missing_and_empty(tmp_path: Path) -> None:
    """No inventory, and one without hosts."""
    (one,) = validate.validate_inventory([str(tmp_path / "none")])
    assert one.why == "does not exist"
    (tmp_path / "hosts.yml").write_text("---\nall: {}\n")
    (one,) = validate.validate_inventory([str(tmp_path / "hosts.yml")])
    assert one.why == "has no host"
    (one,) = validate.validate_inventory([])
    assert "-i inventory/lab" in one.fix


def test_locks_are_no_inventory(problems: Problems, tmp_path: Path) -> None:
    """The locks beside an inventory are not read as one."""
    problems({"locks/gpu-1.yml": "schema: 1\n"})
    assert validate.validate_inventory([str(tmp_path / "site" / "hosts.yml")]) == []


def test_secrets_are_not_shown(problems: Problems) -> None:
    """What is wrong with a secret is said without it."""
    text = "llmetal_driver: {mirror: {uri: 'http://h', key_file: [hush], fingerprint: AB}}\n"
    found = problems({"group_vars/gpu.yml": text})
    assert found
    assert "hush" not in validate.as_text(found)


@pytest.mark.parametrize(
    "text",
    [
        "llmetal_index_url: 'ftp://me:hush@h/simple'\n",
        "llmetal_driver: 'mirror=hush'\n",
        "llmetal_instances: {api-key: hush}\n",
        "llmetal_root: [hush]\n",
    ],
)
def test_values_that_may_hold_secrets(problems: Problems, text: str) -> None:
    """Credentials of a URL and values of a wrong shape are not shown either."""
    found = problems({"group_vars/gpu.yml": text})
    assert found
    assert "hush" not in validate.as_text(found)


@pytest.mark.parametrize("name", ["../../evil", "a b", "{{ 1/0 }}", "-x", "x/y"])
def test_names_of_hosts(problems: Problems, name: str) -> None:
    """A name of a host becomes the name of files: only some letters are allowed."""
    (one,) = problems({"hosts.yml": HOSTS.replace("gpu-1: {}", f'"{name}": {{}}')})
    assert (one.line, one.key, one.why) == (6, name, "is no name of a host")
    assert "digit in front" in one.allowed


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [("1: x\n", 1, "1"), ("site_a: 1\ntrue: y\n", 2, "true"), ("?\n: 1\n", 1, "")],
)
def test_keys_that_are_no_texts(problems: Problems, text: str, line: int, key: str) -> None:
    """A number, a truth value or nothing is no name of a variable."""
    (one,) = problems({"group_vars/all.yml": text})
    assert (one.line, one.key, one.why) == (line, key, "is a key that is not a text")
    assert one.found


def test_key_that_is_a_list(problems: Problems) -> None:
    """What Ansible cannot read has a line nevertheless."""
    found = problems({"group_vars/all.yml": "---\n? [a, b]\n: 1\n"})
    assert ("group_vars/all.yml", 2, "") in places(found)


def test_merged_mappings(problems: Problems) -> None:
    """What a mapping takes from another one has the line of the other."""
    text = "site_a: &a {llmetal_scop: user}\nsite_b: &b {site_c: 1}\n<<: [*a, *b]\n"
    (one,) = problems({"group_vars/all.yml": text})
    assert (one.line, one.key) == (1, "llmetal_scop")


def test_twice(problems: Problems) -> None:
    """Of a key that stands there twice YAML would take the last one only."""
    (one,) = problems({"group_vars/all.yml": "llmetal_scope: user\nllmetal_scope: system\n"})
    assert (one.line, one.why) == (2, "stands there twice: line 1 has it too")


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 40))
        + "llmetal_instances: *a39\n",
        "llmetal_instances: &a [*a]\n",
    ],
)
def test_aliases(problems: Problems, text: str) -> None:
    """Aliases that would fill the memory are found before anything is filled in."""
    (one,) = problems({"group_vars/all.yml": text})
    assert one.why == "cannot be read"
    assert "100000" in one.found
    assert one.fix


@pytest.mark.parametrize("what", ["dangling", "loop", "fifo", "fifo of variables"])
def test_odd_files(tmp_path: Path, what: str) -> None:
    """Links to nothing or in circles and pipes are named, and not waited for."""
    (tmp_path / "hosts.yml").write_text(HOSTS)
    odd = tmp_path / "odd.yml"
    if what == "dangling":
        odd.symlink_to(tmp_path / "nothing")
    elif what == "loop":
        odd.symlink_to(tmp_path)
    else:
        odd = tmp_path / "group_vars" / "all.yml" if "variables" in what else odd
        odd.parent.mkdir(exist_ok=True)
        os.mkfifo(odd)
    (one,) = validate.validate_inventory([str(tmp_path)])
    assert (one.file, one.why) == (str(odd), "cannot be read")
    assert one.fix


def test_files_of_nobody(problems: Problems) -> None:
    """Variables of a group or a host that there is none of would silently do nothing."""
    files = {"group_vars/gpuu.yml": "site_a: 1\n", "host_vars/gpu-9/a.yml": "site_a: 1\n"}
    found = problems({**files, "group_vars/monitoring.yml": "site_a: 1\n"})
    assert [(one.file, one.why) for one in found] == [
        ("site/group_vars/gpuu.yml", "is no group of the inventory"),
        ("site/host_vars/gpu-9/a.yml", "is no host of the inventory"),
    ]
    assert found[0].fix == "did you mean gpu?"


@pytest.mark.parametrize("root", ["/", "~", "~/", "//", "/opt/../etc", "/..", "x", "/a b", "/./"])
def test_root(problems: Problems, root: str) -> None:
    """The folder of what llmetal installs is one of its own."""
    (one,) = problems({"group_vars/all.yml": f"llmetal_root: '{root}'\n"})
    assert (one.key, one.why) == ("llmetal_root", "is not of the form that is allowed")


@pytest.mark.parametrize("root", ["/opt/llmetal", "~/llmetal/", "/a/..b", "~/.local/x"])
def test_good_root(problems: Problems, root: str) -> None:
    """Absolute, or below the home."""
    assert problems({"group_vars/all.yml": f"llmetal_root: '{root}'\n"}) == []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("key_file: k", 'key_file: k, suite: "/\\nTrusted: yes"', "suite"),
        ("key_file: k", "key_file: k, components: [a b]", "components[0]"),
        ("AB" * 20, " " * 40, "fingerprint"),
        ("AB" * 20, "AB" * 19, "fingerprint"),
    ],
)
def test_mirror(problems: Problems, old: str, new: str, key: str) -> None:
    """What goes into a package source has no blanks, and a fingerprint all its digits."""
    mirror = f"{{uri: 'http://h/', key_file: k, fingerprint: '{'AB' * 20}'}}"
    text = f"llmetal_driver: {{mirror: {mirror}}}\n"
    assert problems({"group_vars/gpu.yml": text}) == []
    (one,) = problems({"group_vars/gpu.yml": text.replace(old, new)})
    assert (one.key, one.why) == (
        f"llmetal_driver.mirror.{key}",
        "is not of the form that is allowed",
    )


def test_source_without_a_mirror(problems: Problems) -> None:
    """A source outside the distribution needs its address; only a host that serves has a driver."""
    text = "llmetal_driver: {source: cuda_repo}\n"
    (one,) = problems({"group_vars/gpu.yml": text})
    assert (one.line, one.key) == (1, "llmetal_driver.mirror")
    assert problems({"group_vars/gpu.yml": "", "group_vars/gateway.yml": text}) == []


def test_unknown_scenario(problems: Problems) -> None:
    """A sandbox host can simulate what there is a file for."""
    assert problems({"group_vars/all.yml": "sandbox_scenario: ''\n"}) == []
    (one,) = problems({"group_vars/all.yml": "sandbox_scenario: 8xa10\n"})
    assert one.allowed.startswith('one of "", ')
    assert ", 8xa100_sxm4_80, " in one.allowed


def test_control_characters(problems: Problems) -> None:
    """What stands in a file cannot colour or move what is printed."""
    found = problems({"group_vars/all.yml": '"llmetal_\\e[31m": 1\nllmetal_scope: "\\e[1m"\n'})
    assert len(found) == 2
    assert "\x1b" not in validate.as_text(found)


def test_no_traceback(problems: Problems, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong, what was found before is said, and that it was not all."""

    def fail(*_: object) -> None:
        what = "no such luck"
        raise RuntimeError(what)

    monkeypatch.setattr(argument_spec, "check", fail)
    last, first = problems({"group_vars/all.yml": "llmetal_scop: user\n"})
    if first.key != "llmetal_scop":
        first, last = last, first
    assert "cannot be checked: RuntimeError: no such luck" in last.why
    assert last.fix


def test_slices_are_no_variables(problems: Problems) -> None:
    """A role's slice of the lock cannot be set from outside."""
    (one,) = problems({"group_vars/all.yml": "python_env_lock: {}\n"})
    assert one.fix == "leave it out: the plan makes it"


def test_undefined_template(problems: Problems) -> None:
    """A template that cannot be filled in is a problem of its line."""
    (one,) = problems({"group_vars/all.yml": "llmetal_root: '{{ site_nowhere }}/x'\n"})
    assert (one.line, one.why) == (1, "cannot be templated")
    assert "site_nowhere" in one.found


def test_no_problem_follows_from_another(problems: Problems) -> None:
    """Where the models cannot be told, nothing is said about their names."""
    text = GPU.replace("/srv/models/smollm2", "'{{ site_nowhere }}'")
    (one,) = problems({"group_vars/gpu.yml": text})
    assert (one.key, one.why) == ("llmetal_models", "cannot be templated")


def test_types_of_role_variables(problems: Problems) -> None:
    """A documented variable of a role is checked like one of the site."""
    (one,) = problems({"group_vars/all.yml": "python_env_install_timeout: soon\n"})
    assert (one.key, one.why) == ("python_env_install_timeout", "is not of type int")


def test_driver_without_root(problems: Problems) -> None:
    """A driver cannot be installed without root."""
    text = "llmetal_scope: user\nllmetal_driver: {source: debian}\n"
    (one,) = problems({"group_vars/gpu.yml": text})
    assert (one.line, one.why) == (2, "needs root, and llmetal_scope is user")


def test_branch_and_version(problems: Problems) -> None:
    """A branch that does not exist, and a release of another one."""
    text = "llmetal_driver: {branch: '581'}\n"
    (one,) = problems({"group_vars/gpu.yml": text})
    assert one.why == "is no driver branch"
    text = "llmetal_driver: {branch: '580', version: 595.91.07}\n"
    (one,) = problems({"group_vars/gpu.yml": text})
    assert one.why == "is not of the branch that is asked for"
