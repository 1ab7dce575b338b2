# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The loader: its cache as recorded, what stands before a library, and files that lead it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import cuda_info, ld_path, loader
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.elf import shared_library
from ansible_collections.llmetal.inference.plugins.modules import ld_path as module

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ldconfig"
CUDA_12, CUDA_13 = "/usr/local/cuda-12.9/lib64", "/usr/local/cuda-13.0/lib64"
CACHE = {
    "libcudart.so.12": [f"{CUDA_12}/libcudart.so.12"],
    "libcusparse.so.12": [f"{CUDA_12}/libcusparse.so.12", f"{CUDA_13}/libcusparse.so.12"],
}

needs_ldconfig = pytest.mark.skipif(
    not any(Path(one).exists() for one in ("/sbin/ldconfig", "/usr/sbin/ldconfig")),
    reason="there is no ldconfig",
)


def test_recorded() -> None:
    """A cache of a GPU host: the first file of a name is the one that is taken."""
    text = (FIXTURES / "h200_passthrough" / "ldconfig_p.txt").read_text()
    found = loader.parse(text)
    assert found["libnvrtc.so.13"] == [
        "/usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so.13",
    ]
    assert found["libnvidia-ml.so.1"][0] == "/usr/local/nvidia/lib64/libnvidia-ml.so.1"
    assert loader.parse(text, "AArch64") == {}


def test_recorded_host() -> None:
    """A host with NVIDIA's packages of CUDA 13.0: what its files list, and what programs load."""
    case = FIXTURES / "h200_apt_cuda13"
    expected = json.loads((case / "expected.json").read_text())
    cache, conf_dir = loader.parse((case / "ldconfig_p.txt").read_text()), case / "ld.so.conf.d"
    loads = {name: row["path"] for name, row in cuda_info.loads(cache).items()}
    shadows = loader.shadows(cache, ["libcudart.so.13", "libnvrtc.so.13"], ())
    assert sorted(ld_path.listed(conf_dir)) == expected["listed"]
    assert list(ld_path.unlisted(cache, conf_dir)) == expected["unlisted"]
    assert cuda_info.runtimes(cache) == expected["runtimes"]
    assert loads == expected["loads"]
    assert [row.as_dict() for row in shadows] == expected["shadowed_by"]
    for name in expected["missing"]:
        assert name not in cache


def test_missing_major() -> None:
    """CUDA 12 cannot give the library of CUDA 13, and what would is said."""
    why = loader.explain_missing("libcudart.so.13", CACHE, [CUDA_12])
    assert "libcudart.so.13 is of CUDA 13: the toolkit cuda-toolkit-13-x" in why
    assert f"the loader knows libcudart.so.12 ({CUDA_12}/libcudart.so.12)" in why
    assert "neither a link to it nor `ldconfig` of its folder" in why


@pytest.mark.parametrize(
    ("cache", "wanted", "kind"),
    [
        (CACHE, ["libcusparse.so.12"], "other"),
        ({"libcuda.so.1": [f"{CUDA_13}/stubs/libcuda.so.1"]}, [], "stub"),
        ({"libcuda.so.1": ["/usr/local/cuda-13.0/compat/libcuda.so.1"]}, [], "compat"),
        ({"libcuda.so.1": ["/lib/x86_64-linux-gnu/libcuda.so.1"]}, [], None),
        (CACHE, ["libcudart.so.12"], None),
    ],
)
def test_shadows(cache: dict[str, list[str]], wanted: list[str], kind: str | None) -> None:
    """Another toolkit, a stub, a compatibility library; the driver's own is none of them."""
    folders = [CUDA_13] if kind == "other" else []
    found = loader.shadows(cache, wanted, folders)
    assert [row.kind for row in found] == ([kind] if kind else [])


def test_settings_and_preload(tmp_path: Path) -> None:
    """LD_LIBRARY_PATH and the preload file come before the cache."""
    compat = tmp_path / "cuda-13.0/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.1").touch()
    row = {"file": "/etc/environment", "name": "LD_LIBRARY_PATH", "value": f":{compat}"}
    found = loader.shadows({}, [], [], [row], "/opt/libcudart.so.12 /usr/lib/libx.so")
    assert [(one.kind, one.soname) for one in found] == [
        ("compat", "libcuda.so.1"),
        ("preload", "libcudart.so.12"),
    ]
    assert "errors 803 and 804" in found[0].why
    assert found[0].fix == f"take {compat} out of /etc/environment"


@pytest.fixture
def places(tmp_path: Path) -> ld_path.Places:
    """A loader's configuration and cache of our own."""
    folder, conf, cache = tmp_path / "ld.so.conf.d", tmp_path / "ld.so.conf", tmp_path / "cache"
    folder.mkdir()
    conf.write_text(f"include {folder}/*.conf\n")
    own = ("-X", "-f", str(conf), "-C", str(cache))
    made = ld_path.Places(folder, own, ("-p", "-C", str(cache)))
    loader.ldconfig(*own)
    return made


def toolkit(tmp_path: Path, major: int) -> str:
    """A folder with the libraries of a toolkit."""
    folder = tmp_path / f"cuda-{major}/lib64"
    folder.mkdir(parents=True)
    for name in (f"libcudart.so.{major}", "libcurand.so.10"):
        (folder / name).write_bytes(shared_library(name))
    return str(folder)


def params(name: str, folders: list[str], **others: object) -> dict[str, object]:
    """The module's parameters."""
    rest = {"state": "present", "sonames": [], "anywhere": False}
    return {"name": name, "folders": folders, **rest, **others}


@needs_ldconfig
def test_converge(tmp_path: Path, places: ld_path.Places) -> None:
    """File and cache are made, the second run changes nothing, and absent takes both back."""
    folder = toolkit(tmp_path, 13)
    wanted = params("cuda", [folder], sonames=["libcudart.so.13"])
    predicted = module.converge(wanted, check_mode=True, places=places)
    assert predicted["changed"] is True
    assert not list(places.conf_dir.iterdir())
    done = module.converge(wanted, check_mode=False, places=places)
    assert done["resolves"] == {"libcudart.so.13": f"{folder}/libcudart.so.13"}
    assert done["after"] == predicted["after"]
    assert module.converge(wanted, check_mode=False, places=places)["changed"] is False
    loader.ldconfig("-X", "-f", os.devnull, "-C", places.show[-1])
    assert module.converge(wanted, check_mode=True, places=places)["before"]["cache"]
    assert module.converge(wanted, check_mode=False, places=places)["changed"] is True
    gone = module.converge(params("cuda", [], state="absent"), check_mode=False, places=places)
    assert gone["changed"] is True
    assert not list(places.conf_dir.iterdir())
    shutil.rmtree(folder)
    again = module.converge(params("cuda", [], state="absent"), check_mode=False, places=places)
    assert again["changed"] is False


@needs_ldconfig
def test_failures(tmp_path: Path, places: ld_path.Places) -> None:
    """A library of another major, one that another toolkit takes, a path that is none."""
    twelve, thirteen = toolkit(tmp_path, 12), toolkit(tmp_path, 13)
    with pytest.raises(LlmetalError, match=r"the loader does not find libcudart\.so\.13"):
        module.converge(
            params("cuda", [twelve], sonames=["libcudart.so.13"]), check_mode=False, places=places
        )
    module.converge(params("000-other", [twelve]), check_mode=False, places=places)
    wanted = params("cuda", [thirteen], sonames=["libcurand.so.10"])
    with pytest.raises(LlmetalError, match=r"the loader takes another libcurand\.so\.10"):
        module.converge(wanted, check_mode=False, places=places)
    found = module.converge({**wanted, "anywhere": True}, check_mode=False, places=places)
    assert found["resolves"]["libcurand.so.10"].startswith(twelve)
    with pytest.raises(LlmetalError, match="whole paths"):
        module.converge(params("cuda", ["lib64"]), check_mode=True, places=places)
    with pytest.raises(LlmetalError, match="not a plain name"):
        module.converge(params("../x", [twelve]), check_mode=True, places=places)


@needs_ldconfig
def test_lost_at_the_next_ldconfig(tmp_path: Path, places: ld_path.Places) -> None:
    """Folders that are in the cache only because somebody ran `ldconfig FOLDER` are named."""
    folder = toolkit(tmp_path, 12)
    loader.ldconfig(*places.rebuild, folder)
    other = toolkit(tmp_path, 13)
    done = module.converge(params("cuda", [other]), check_mode=True, places=places)
    assert done["unlisted"] == [folder]


@needs_ldconfig
def test_a_folder_that_another_file_lists_under_another_name(
    tmp_path: Path, places: ld_path.Places
) -> None:
    """As on hosts with NVIDIA's packages, where /usr/local/cuda leads to /usr/local/cuda-13.0."""
    folder = toolkit(tmp_path, 13)
    link = tmp_path / "cuda"
    link.symlink_to(Path(folder).parent)
    (places.conf_dir / "000_cuda.conf").write_text(f"{link}/lib64\n")
    loader.ldconfig(*places.rebuild)
    wanted = params("llmetal", [folder], sonames=["libcudart.so.13"])
    done = module.converge(wanted, check_mode=False, places=places)
    assert done["resolves"] == {"libcudart.so.13": f"{link}/lib64/libcudart.so.13"}
    assert done["shadowed_by"] == []
    assert module.converge(wanted, check_mode=False, places=places)["changed"] is False
