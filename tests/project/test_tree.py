# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for the checkout as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

import llmetal

ROOT = Path(__file__).resolve().parents[2]
LINKS = ROOT / "collections" / "ansible_collections" / "llmetal" / "inference"
OWN = "ansible_collections.llmetal.inference.plugins.module_utils"
ENGINE_LOCKS = ROOT / "plugins" / "plugin_utils" / "data" / "requirements"
REQUIREMENTS = sorted([*(ROOT / "requirements").glob("*.txt"), *ENGINE_LOCKS.glob("*.txt")])
INDEX_HOSTS = ("pypi" + ".org", "pythonhosted" + ".org", "deb.debian" + ".org")
"""In two parts each, so that this file does not name them."""


def imports(path: Path) -> set[str]:
    """The modules that a Python file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module))
    return found


def test_only_the_runner_knows_ansible_runner(sources: list[Path]) -> None:
    """One file alone imports ansible_runner."""
    knowing = [p for p in sources if any(n.split(".")[0] == "ansible_runner" for n in imports(p))]
    assert knowing == [ROOT / "src" / "llmetal" / "runner.py"]


def test_links_resolve() -> None:
    """The collection's folder holds relative links that lead to the top of the checkout."""
    names = {"galaxy.yml", "README.md", "CHANGELOG.md", "meta", "playbooks", "plugins", "roles"}
    assert {path.name for path in LINKS.iterdir()} == names
    for path in LINKS.iterdir():
        assert path.is_symlink()
        assert not path.readlink().is_absolute()
        assert path.resolve() == ROOT / path.name


def test_versions_agree() -> None:
    """The collection, the package and its module have one version."""
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert galaxy["version"] == project["project"]["version"] == llmetal.__version__


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_requirements_are_locked(path: Path) -> None:
    """Every requirement has one version and its hashes, and no index is named."""
    if path.name == "apt.txt":
        pytest.skip("names of Debian packages, not a lock")
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        assert re.match(r"^[a-zA-Z0-9][\w.\-\[\]]*==[^\s;]+ ", line), line
        assert "--hash=sha256:" in line, line
    assert "index-url" not in text
    assert "find-links" not in text
    assert "://" not in text


def test_no_machine_is_named(tracked: list[Path]) -> None:
    """No file names an index host, or a path of the machine that it was written on."""
    forbidden = [*INDEX_HOSTS, f"{ROOT}/"]
    if Path.home() not in {Path("/root"), Path("/")}:
        forbidden.append(f"{Path.home()}/")
    bad = []
    for path in tracked:
        if path.is_relative_to(ROOT / "tests" / "fixtures") or path.name == "LICENSE":
            continue
        text = path.read_bytes().decode(errors="replace")
        bad += [f"{path.relative_to(ROOT)}: {word}" for word in forbidden if word in text]
    assert bad == []


def test_host_code_is_plain(sources: list[Path]) -> None:
    """What runs on a host parses on Python 3.9 and imports only the library, Ansible and ours."""
    for path in sources:
        top = path.relative_to(ROOT).parts[:2]
        if top not in {("plugins", "modules"), ("plugins", "module_utils")}:
            continue
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        for name in imports(path):
            first = name.split(".")[0]
            allowed = first in sys.stdlib_module_names or name.startswith(OWN)
            allowed = allowed or name.startswith("ansible.module_utils.")
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_copyright(sources: list[Path]) -> None:
    """Every Python file says whose it is and under which licence."""
    for path in sources:
        head = path.read_text(encoding="utf-8")[:500]
        assert "Copyright: the llmetal developers" in head, path
        assert "SPDX-License-Identifier: GPL-3.0-or-later" in head, path


def test_collection_builds(tmp_path: Path) -> None:
    """The collection builds, holds what a user of it needs, and nothing of the site."""
    subprocess.run(
        ["ansible-galaxy", "collection", "build", "--output-path", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
    )
    (archive,) = tmp_path.glob("llmetal-inference-*.tar.gz")
    with tarfile.open(archive) as content:
        names = set(content.getnames())
    for folder in ("plugins/modules", "plugins/module_utils", "roles", "playbooks", "meta"):
        assert folder in names
    assert any(name.startswith("plugins/modules/") for name in names)
    assert not any(name.split("/")[0] in {"tests", "src", "inventory", ".venv"} for name in names)


def test_links_of_the_pages_lead_somewhere(tracked: list[Path]) -> None:
    """Every relative link of a Markdown page names a file, and the index names every page."""
    linked = set()
    for page in {path.resolve() for path in tracked if path.suffix == ".md"}:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
                linked.add((page.parent / target).resolve())
    pages = set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "index.md"}
    assert sorted(pages - linked) == []


def test_pages_are_current() -> None:
    """The pages made from the code are those that the code makes now."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "render_docs.py"), "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
