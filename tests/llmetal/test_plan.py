# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal plan`: its arguments, planned hardware, and what a run's results become."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llmetal.inference.plugins import plugin_utils
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.plugin_utils.findings import Finding

from llmetal import cli, paths, stages
from llmetal.progress import Failure, Progress
from llmetal.stages import Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOCK: dict[str, Any] = {
    "host": {"os": "ubuntu2204", "gpus": [{"name": "A100-SXM4-80GB"}] * 8},
    "driver": {"version": "580.95.05", "why": ["580 is the LTS branch"]},
    "toolkit": {"version": "13.0.3", "why": ["what the engine was built with"]},
    "python": {
        "environments": [{"name": "vllm", "python": {"version": "3.12", "why": ["system"]}}]
    },
    "engines": [{"name": "vllm", "version": "0.33.0", "torch": "2.14.0", "why": ["the default"]}],
    "models": [{"name": "model"}],
    "instances": [
        {
            "name": "chat",
            "model": "model",
            "gpus": [0, 1, 2, 3, 4, 5, 6, 7],
            "context": 32_768,
            "layout": {"tensor": 8, "pipeline": 1, "data": 1, "expert": False},
            "memory": {
                "weights_bytes": 65_500_000_000,
                "kv_tokens": 1_234_567,
                "longest_context": 40_960,
                "concurrency": 30,
            },
            "fp8": {"path": "weight_only", "kernel": "marlin"},
            "why": ["eight GPUs share each layer"],
        }
    ],
    "unresolved": [{"field": "models.model.files", "why": "nobody was asked"}],
}
REFUSAL = Finding(
    "planned",
    "model-memory",
    "weights of 140.0 GB, and 24.0 GB of memory",
    "the weights do not fit",
    "take 8 GPUs of 24 GB",
    "measured (the memory model)",
)
WARNING = Finding("planned", "secure-boot", "unknown", "may need a key", "look", "a source")


@dataclass(frozen=True)
class Planned:
    """A plan as the planner gives it."""

    host: str = "planned"
    lock: dict[str, Any] | None = None
    refusals: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    changes: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The contract of `--format json`."""

        def bare(found: tuple[Finding, ...]) -> list[dict[str, str]]:
            rows = [one.as_dict() for one in found]
            return [{k: v for k, v in row.items() if k != "host"} for row in rows]

        return {
            "status": "ok" if self.lock is not None else "refused",
            "lock": self.lock,
            "refusals": bare(self.refusals),
            "warnings": bare(self.warnings),
            "changes": [],
        }


@dataclass
class Planner:
    """Stands for the planner of hardware that is not there: keeps what it was asked."""

    answer: Planned = field(default_factory=lambda: Planned(lock=LOCK, warnings=(WARNING,)))
    question: Any = None
    model: Any = None
    model_error: Any = None

    @staticmethod
    def Hardware(**question: Any) -> SimpleNamespace:  # noqa: ANN401, N802 - a class in the real one
        """A question."""
        return SimpleNamespace(**question)

    def plan(self, question: Any, model: Any, compat: Any, model_error: Any = None) -> Planned:  # noqa: ANN401 - as it comes
        """Give the answer."""
        assert compat.gpus
        self.question, self.model, self.model_error = question, model, model_error
        return self.answer


@dataclass
class Hub:
    """Stands for the reader of model metadata."""

    asked: list[Any] = field(default_factory=list)

    def fetch(self, repo: str, revision: str | None, *, cache: Path) -> str:
        """A repository; one of them is closed."""
        assert cache.name == "hub"
        self.asked.append((repo, revision))
        if repo == "closed/model":
            raise LlmetalError(what="it is closed", where=repo, fix="ask for access")
        return f"metadata of {repo}"

    def read_folder(self, path: Path) -> str:
        """A folder."""
        self.asked.append(path)
        return f"metadata in {path.name}"


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """The planner and the hub, replaced."""
    found = Planner()
    monkeypatch.setattr(plugin_utils, "hypothetical", found, raising=False)
    monkeypatch.setattr(plugin_utils, "hub", Hub(), raising=False)
    return found


HARDWARE = ("plan", "--gpus", "8xa100_sxm4_80", "--os", "ubuntu2204")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to plan is named"),
        (("--gpus", "l4", "--list-gpus"), "--gpus and --list-gpus exclude each other"),
        (("-i", "x", "--gpus", "l4"), "-i and --gpus exclude each other"),
        (("--gpus", "l4"), "--gpus needs the operating system"),
        (("--gpus", "l4", "--os", "ubunut2204"), "did you mean ubuntu2204?"),
        (("--gpus", "a100_sxm_80", "--os", "debian12"), "did you mean a100_sxm4_80?"),
        (("--gpus", "A100_SXM4", "--os", "debian12"), "did you mean a100_sxm4_40 or"),
        (("--gpus", "h200", "--os", "debian12"), "did you mean h200_sxm or h200_nvl?"),
        (("--gpus", "zzz", "--os", "debian12"), "--list-gpus"),
        (("--gpus", "0xl4", "--os", "debian12"), "a host has no 0 GPUs"),
        (("--gpus=-1xl4", "--os", "debian12"), "a host has no -1 GPUs"),
        (("--gpus", "65xl4", "--os", "debian12"), "a host has no 65 GPUs"),
        (("--gpus", "33xl4,32xt4", "--os", "debian12"), "a host has no 65 GPUs"),
        (("--gpus", "999999999xl4", "--os", "debian12"), "a count from 1 to 64"),
        (("--gpus", "9" * 5000 + "xl4", "--os", "debian12"), "is no GPU"),
        (("--gpus", "1000000000xl4", "--os", "debian12"), "a count from 1 to 64"),
        (("--gpus", "1_0xl4", "--os", "debian12"), "is no GPU"),
        (("--gpus", "\u0668xl4", "--os", "debian12"), "is no GPU"),
        (("--gpus", "8xl4\n", "--os", "debian12"), "is no GPU"),
        (("--gpus", "", "--os", "debian12"), "'' is no GPU"),
        (("--gpus", "l4,", "--os", "debian12"), "'' is no GPU"),
        (("--gpus", "8 l4", "--os", "debian12"), "'8 l4' is no GPU"),
        ((*HARDWARE[1:], "--write"), "--write does not go with --gpus"),
        ((*HARDWARE[1:], "--upgrade"), "--upgrade does not go with --gpus"),
        ((*HARDWARE[1:], "-l", "x"), "--limit does not go with --gpus"),
        ((*HARDWARE[1:], "--facts", "x"), "--facts does not go with --gpus"),
        ((*HARDWARE[1:], "-e", "a=1"), "-e does not go with --gpus"),
        ((*HARDWARE[1:], "-l", ""), "--limit does not go with --gpus"),
        ((*HARDWARE[1:], "--", "-vv"), "-- does not go with --gpus"),
        ((*HARDWARE[1:], "stray"), "a word that belongs to no option: stray"),
        (("stray",), "did you mean -i stray or --gpus stray?"),
        (("-i", "inventory/lab", "stray"), "did you mean -l stray?"),
        (("-i", "inventory/lab", "-l", ""), "--limit is empty"),
        (("-i", "inventory/lab", "--explain", ""), "--explain is empty"),
        (("-i", "inventory/lab", "--model", ""), "--model does not go with -i"),
        ((*HARDWARE[1:], "--explain", ""), "--explain is empty"),
        ((*HARDWARE[1:], "--model", ""), "--model is empty"),
        ((*HARDWARE[1:], "--context", "8"), "--context needs --model"),
        ((*HARDWARE[1:], "--concurrency", "8"), "--concurrency needs --model"),
        ((*HARDWARE[1:], "--tensor-parallel", "8"), "--tensor-parallel needs --model"),
        ((*HARDWARE[1:], "--pipeline-parallel", "8"), "--pipeline-parallel needs --model"),
        ((*HARDWARE[1:], "--data-parallel", "8"), "--data-parallel needs --model"),
        ((*HARDWARE[1:], "--expert-parallel"), "--expert-parallel needs --model"),
        ((*HARDWARE[1:], "--engine=vllm", "--context=8"), "--context needs --model"),
        ((*HARDWARE[1:], "--engine-option", "a=1"), "needs --model or --engine"),
        ((*HARDWARE[1:], "--explain", "gpu-1"), "name one of planned"),
        (("--list-gpus", "--explain", "x"), "--explain does not go with --list-gpus"),
        (("--list-gpus", "--os", "debian12"), "--os does not go with --list-gpus"),
        (("-i", "x", "--os", "debian12"), "--os does not go with -i"),
        (("-i", "x", "--engine", "sglang"), "--engine does not go with -i"),
        (("-i", "x", "--model", "a/b"), "set it in the inventory"),
        (("-i", "x", "--facts", "y", "--write"), "--write does not go with --facts"),
        (("-i", "inventory/none"), "there is no such inventory"),
        (("-i", "inventory/lab", "--facts", "none"), "there is no such folder"),
    ],
)
def test_wrong_usage(
    words: tuple[str, ...], said: str, planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with status 2, says what is wrong and what to write instead; in JSON too."""
    assert cli.main(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert planner.question is None
    assert cli.main(["plan", "--format", "json", *words]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 2
    assert said in " ".join(str(part) for part in document["failures"][0].values())


@pytest.mark.parametrize("option", ["-i", "--facts"])
def test_empty_paths(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty path is not the folder one is in."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", option, ""])
    assert ended.value.code == 2
    assert "the path is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    ["0", "-1", "nan", "inf", "-inf", "1e99", "x", "", "1.5.2", "1_000", "\u0661\u0662", "8\n",
     " 8", "9" * 24, "9" * 5000],
)  # fmt: skip
@pytest.mark.parametrize(
    "option",
    ["--ram-gb", "--disk-gb", "--context", "--concurrency", "--tensor-parallel",
     "--pipeline-parallel", "--data-parallel"],
)  # fmt: skip
def test_numbers_are_positive(
    option: str, value: str, planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing, less than nothing and no number at all are named with their option."""
    assert cli.main([*HARDWARE, f"{option}={value}"]) == 2
    error = capsys.readouterr().err
    assert (f"{value!r} is not a" if len(value) < 60 else "9...' is not a") in error
    assert "1000000000" in error
    assert option in error
    assert planner.question is None


@pytest.mark.parametrize("value", ["1.5", "1e3", "\u0661"])
def test_counts_are_whole(value: str, planner: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of a token is none."""
    assert cli.main([*HARDWARE, "--context", value]) == 2
    assert "is not a whole number from 1 to 1000000000" in capsys.readouterr().err
    assert planner.question is None


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--driver", "58", "write it as 580 or 580.95.05"),
        ("--driver", "580.", "is no version"),
        ("--driver", "latest", "is no version"),
        ("--cuda", "latest", "write it as 13.0, 12.9.1 or a runfile's name"),
        ("--cuda", "13.", "is no version"),
        ("--engine", "tgi", "name one of vllm, sglang"),
        ("--engine", "vllm=0.33.0", "NAME==VERSION"),
        ("--engine", "vllm==", "NAME==VERSION"),
        ("--engine", "vllm==latest", "NAME==VERSION"),
        ("--model", "gpt2", "neither a folder nor a repository"),
        ("--model", "a/b/c", "neither a folder nor a repository"),
        ("--model", "./none", "there is no such folder"),
        ("--model", "~nobody-of-that-name/x", "there is no such folder"),
        ("--model", "/" + "x" * 5000, "there is no such folder"),
        ("--model", "x" * 5000, "neither a folder nor a repository"),
        ("--model", "https://u:secret@example.com/a", "https://(hidden)@example.com/a"),
        ("--model", "README.md", "this is a file, and the folder of a model is wanted"),
        ("--model", "docs/commands.md", "name the folder that it is in: docs"),
        ("--model", "https://example.com/a/b", "neither a folder nor a repository"),
        ("--engine-option", "--x=1", "without dashes in front"),
        ("--os", "windows11", "'windows11' is not known"),
    ],
)
def test_wrong_values(  # noqa: PLR0913, PLR0917 - the table, and what it needs
    option: str,
    value: str,
    said: str,
    planner: Planner,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value that is not of its form is refused before anything is planned."""
    monkeypatch.chdir(paths.ROOT)
    assert cli.main([*HARDWARE, f"{option}={value}"]) == 2
    assert said in capsys.readouterr().err
    assert planner.question is None


def test_question(planner: Planner, tmp_path: Path) -> None:
    """All that the arguments say reaches the planner."""
    assert cli.main([*HARDWARE]) == 0
    assert planner.question.gpus == ("a100_sxm4_80",) * 8
    assert planner.question.options == {}
    assert planner.question.expert_parallel is None
    assert (planner.question.engine, planner.question.engine_only) == ("vllm", False)
    assert (planner.model, planner.model_error) == (None, None)
    words = """
        plan --gpus 2xl4,t4 --os debian13 --driver 580.95.05 --cuda 13.0 --ram-gb 64.5
        --disk-gb 100 --engine sglang==0.5.23 --tensor-parallel 2 --pipeline-parallel 3
        --data-parallel 4 --expert-parallel --context 8192 --concurrency 16
        --engine-option kv-cache-dtype=fp8 --engine-option enforce-eager
        --engine-option gpu-memory-utilization=0.9 --engine-option max-num-seqs=8
    """
    assert cli.main([*shlex.split(words), "--model", str(tmp_path)]) == 0
    assert vars(planner.question) == {
        "gpus": ("l4", "l4", "t4"),
        "os": "debian13",
        "driver": "580.95.05",
        "cuda": "13.0",
        "ram_gb": 64.5,
        "disk_gb": 100.0,
        "engine": "sglang",
        "engine_version": "0.5.23",
        "model": str(tmp_path),
        "tensor_parallel": 2,
        "pipeline_parallel": 3,
        "data_parallel": 4,
        "expert_parallel": True,
        "context": 8192,
        "concurrency": 16,
        "options": {
            "kv-cache-dtype": "fp8",
            "enforce-eager": True,
            "gpu-memory-utilization": 0.9,
            "max-num-seqs": 8,
        },
        "engine_only": False,
    }
    assert planner.model == f"metadata in {tmp_path.name}"


def test_capitals(planner: Planner) -> None:
    """Keys may be written in capitals, as the names of the boards are."""
    words = "plan --gpus 2XT4,A100_SXM4_80 --os Ubuntu2404 --engine vLLM==0.33.0"
    assert cli.main(words.split()) == 0
    assert planner.question.gpus == ("t4", "t4", "a100_sxm4_80")
    assert (planner.question.os, planner.question.engine) == ("ubuntu2404", "vllm")


def test_engine_without_a_model(planner: Planner) -> None:
    """An engine that is named is planned by itself, with its options."""
    assert cli.main([*HARDWARE, "--engine", "vllm==0.33.0", "--engine-option", "a=1_000"]) == 0
    assert planner.question.engine_only is True
    assert planner.question.engine_version == "0.33.0"
    assert planner.question.options == {"a": "1_000"}


def test_sources_of_a_question(planner: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a run would name its host or inventory, a question names itself; in JSON too."""
    survey = "the survey of the host in this run (the host itself)"
    inventory = "the inventory of this run (the files given with -i)"
    both = replace(WARNING, source=f"{survey}; {inventory}; a source")
    planner.answer = Planned(refusals=(replace(REFUSAL, source=survey),), warnings=(both,))
    assert cli.main([*HARDWARE]) == 3
    out = capsys.readouterr().out
    assert "  source:     the question asked\n" in out
    assert "  source:     the question asked; a source\n" in out
    assert cli.main([*HARDWARE, "--json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)["hosts"]["planned"]["refusals"]
    assert row["source"] == "the question asked"


def test_models_of_repositories(planner: Planner) -> None:
    """A repository may have a revision; one that cannot be read is part of the answer."""
    assert cli.main([*HARDWARE, "--model", "Qwen/Qwen3-32B@9216db5"]) == 0
    assert planner.model == "metadata of Qwen/Qwen3-32B"
    hub: Hub = plugin_utils.hub  # type: ignore[attr-defined]
    assert hub.asked == [("Qwen/Qwen3-32B", "9216db5")]
    assert cli.main([*HARDWARE, "--model", "closed/model"]) == 0
    assert planner.model is None
    assert planner.model_error.what == "it is closed"


@pytest.mark.parametrize("words", [("--format", "json"), ("--json",)])
def test_document(
    words: tuple[str, ...], planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document has the host's status, lock, refusals and warnings; nothing else is printed."""
    assert cli.main([*HARDWARE, *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 0
    assert document["failures"] == []
    planned = document["hosts"]["planned"]
    assert planned["status"] == "ok"
    assert planned["lock"] == LOCK
    assert planned["refusals"] == []
    assert set(planned["warnings"][0]) == {"rule", "fact", "reason", "fix", "source"}
    planner.answer = Planned(refusals=(REFUSAL,))
    assert cli.main([*HARDWARE, *words]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 3
    planned = document["hosts"]["planned"]
    assert (planned["status"], planned["lock"]) == ("refused", None)
    assert planned["refusals"][0]["rule"] == "model-memory"


def test_table(planner: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """The host, the instance, the warning with all its parts, and what is not resolved."""
    assert cli.main([*HARDWARE]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "planned ✓ ubuntu2204 8 x A100-SXM4-80GB 580.95.05 13.0.3 vllm 0.33.0 2.14.0" in lines
    assert "planned chat model TP8 65.5 GB 1 234 567 32 768 40 960 30 weight_only" in lines
    assert "! planned: may need a key [secure-boot]" in lines
    assert "not resolved for planned: models.model.files" in lines
    assert lines[-1] == "1 planned"
    assert max(map(len, out.splitlines())) <= 120
    assert "\x1b" not in out
    planner.answer = Planned(refusals=(REFUSAL,))
    assert cli.main([*HARDWARE]) == 3
    out = capsys.readouterr().out
    assert (
        "✗ planned: the weights do not fit [model-memory]\n"
        "  found:      weights of 140.0 GB, and 24.0 GB of memory\n"
        "  what to do: take 8 GPUs of 24 GB\n"
        "  source:     measured (the memory model)\n"
    ) in out
    assert out.endswith("0 planned, 1 refused\n")


def test_explain(planner: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    """The reasons of each section, instead of the tables; in JSON beside the plan."""
    assert cli.main([*HARDWARE, "--explain", "planned"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Why planned gets what it gets\n"
        "  driver 580.95.05\n"
        "    - 580 is the LTS branch\n"
        "  toolkit 13.0.3\n"
        "    - what the engine was built with\n"
        "  environment vllm\n"
        "    - system\n"
        "  engine vllm 0.33.0\n"
        "    - the default\n"
        "  instance chat\n"
        "    - eight GPUs share each layer\n"
    )
    assert "A100-SXM4-80GB" not in out
    assert cli.main([*HARDWARE, "--explain", "planned", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["explain"]["planned"]["driver 580.95.05"] == ["580 is the LTS branch"]
    planner.answer = Planned(refusals=(REFUSAL,))
    assert cli.main([*HARDWARE, "--explain", "planned"]) == 3
    out = capsys.readouterr().out
    assert "there is no lock that could say so" in out
    assert "[model-memory]" in out


def test_list_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Every key that --gpus and --os take, with what tells GPUs apart."""
    assert cli.main(["plan", "--list-gpus"]) == 0
    out = capsys.readouterr().out
    assert [*out.splitlines()[0].split()] == [
        "key", "model", "memory", "compute", "FP8", "architecture", "host"
    ]  # fmt: skip
    (row,) = (line.split() for line in out.splitlines() if line.startswith("a100_sxm4_80 "))
    assert row[1:] == [
        "A100-SXM4-80GB", "80", "GB", "8.0", "weight_only_w8a16_marlin", "ampere", "x86_64"
    ]  # fmt: skip
    (row,) = (line.split() for line in out.splitlines() if line.startswith("gb200 "))
    assert row[-2:] == ["aarch64", "*"]
    assert "* this release installs on hosts of x86_64 only" in out
    assert "ubuntu2204" in out.splitlines()[-1]
    assert cli.main(["plan", "--list-gpus", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"gpus", "os"}
    assert "h200_sxm" in [row["key"] for row in document["gpus"]]
    assert {row["key"] for row in document["gpus"] if not row["installable"]} == {
        "gh200", "gb200", "gb300", "gb10", "jetson_thor"
    }  # fmt: skip
    assert "debian12" in [row["key"] for row in document["os"]]


def test_start_is_cheap() -> None:
    """Neither the list nor wrong usage loads what only a run or a lock needs."""
    code = (
        "import sys, llmetal.cli\n"
        f"llmetal.cli.main({['plan', '--gpus', 'l4', '--os', 'x']!r})\n"
        "llmetal.cli.main(['plan', '--list-gpus'])\n"
        "slow = {'ansible_runner', 'rich', 'jsonschema', 'huggingface_hub', 'jinja2'}\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & slow))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=paths.ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"


def options(*words: str) -> Any:  # noqa: ANN401 - argparse's namespace
    """The parsed arguments of `plan`."""
    return cli.make_parser("plan").parse_args(["plan", *words])


@pytest.mark.parametrize(
    ("words", "mode", "check"),
    [
        ((), "compare", True),
        (("--write",), "compare", False),
        (("--upgrade",), "upgrade", True),
        (("--write", "--upgrade"), "upgrade", False),
    ],
)
def test_runs(words: tuple[str, ...], mode: str, check: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a column of the table
    """Only --write writes; a lock is compared, or with --upgrade made anew."""
    request = stages.make_request(options("-i", str(tmp_path), "-e", "site_x=1", *words))
    assert [path.stem for path in request.playbooks] == ["validate", "survey", "resolve", "plan"]
    assert request.check is check
    assert request.extra_vars == (json.dumps({"llmetal_plan_lock": mode}), "site_x=1")
    assert not request.report


CHANGE = {"path": "driver.version", "before": "580.95.05", "after": "580.178.04"}
PLANS: dict[str, Any] = {
    "b": {**Planned(refusals=(REFUSAL,)).as_dict(), "kept": False},
    "a": {**Planned(lock=LOCK, warnings=(WARNING,)).as_dict(), "kept": True, "changes": [CHANGE]},
}


def run_of(plans: Mapping[str, Any], code: int, *failures: Failure, **taken: Any) -> Run:  # noqa: ANN401 - what the roles get
    """A run that has planned."""
    result = {"plans": plans, "hosts": taken}
    state = Progress(
        results={"llmetal.inference.plan": {"localhost": result}} if plans else {},
        failures=list(failures),
    )
    return Run(code, state, None, 1.0)


def failure(host: str, status: str) -> Failure:
    """A task that failed."""
    return Failure(
        1.0, "Survey", "", "Look", host, status, "the host does not answer", host, "", "wake it"
    )


def test_run_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A refused host is no failure, and hides no plan; what could not be surveyed is one."""
    done = run_of(PLANS, 3, failure("a", "refused"), failure("c", "unreachable"))
    monkeypatch.setattr(stages, "run", lambda *_arguments, **_options: done)
    assert cli.main(["plan", "-i", str(tmp_path), "--format", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 3
    assert {host: one["status"] for host, one in document["hosts"].items()} == {
        "a": "ok",
        "b": "refused",
    }
    assert document["hosts"]["a"]["lock"] == LOCK
    assert document["hosts"]["a"]["changes"] == [CHANGE]
    assert document["hosts"]["a"]["warnings"][0]["rule"] == "secure-boot"
    assert [row["host"] for row in document["failures"]] == ["c"]


def test_run_in_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Both hosts, what a new lock would change, the refusal once."""
    done = run_of(PLANS, 3, failure("a", "refused"))
    monkeypatch.setattr(stages, "run", lambda *_arguments, **_options: done)
    assert cli.main(["plan", "-i", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert "a: a lock made anew would change\n" in out
    assert "  driver.version: 580.95.05 -> 580.178.04\n" in out
    assert out.count("[model-memory]") == 1
    assert out.endswith("1 planned, 1 refused\n")
    assert cli.main(["plan", "-i", str(tmp_path), "--explain", "z"]) == 2
    assert "name one of a, b" in capsys.readouterr().err


def test_written_locks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Where a lock was written is said; and why none was, where it was asked for."""
    plans = {"a": {**PLANS["a"], "kept": False, "changes": []}}
    taken = {"lock_written": True, "lock_file": "/site/locks/a.yml"}
    monkeypatch.setattr(stages, "run", lambda *_arguments, **_options: run_of(plans, 0, a=taken))
    assert cli.main(["plan", "-i", str(tmp_path), "--write"]) == 0
    captured = capsys.readouterr()
    assert "written: /site/locks/a.yml\n" in captured.out
    monkeypatch.setattr(stages, "run", lambda *_arguments, **_options: run_of(plans, 0))
    assert cli.main(["plan", "-i", str(tmp_path), "--write"]) == 0
    assert "a: no lock was written: not all of it is resolved" in capsys.readouterr().err
    monkeypatch.setattr(stages, "run", lambda *_arguments, **_options: run_of(PLANS, 3))
    assert cli.main(["plan", "-i", str(tmp_path), "--write"]) == 3
    assert "no lock was written: a host is refused" in capsys.readouterr().err


def test_run_without_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Where no host answers there are failures alone."""
    done = run_of({}, 4, failure("a", "unreachable"))
    monkeypatch.setattr(stages, "run", lambda *_arguments, **_options: done)
    assert cli.main(["plan", "-i", str(tmp_path), "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["hosts"] == {}
    assert document["failures"][0]["what"] == "the host does not answer"
    assert cli.main(["plan", "-i", str(tmp_path)]) == 4
