# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""`llmetal demo`: the whole way on this machine, from bare hosts to an answer of a real model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError

from llmetal import paths, system
from llmetal.cli import EXIT_FAILED, EXIT_INTERRUPTED, common_options, complain
from llmetal.progress import EXIT_DONE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from llmetal.display import Display
    from llmetal.progress import Proof, Stage
    from llmetal.stages import Run

QUESTION = "Name the capital of France."


@dataclass(frozen=True)
class Place:
    """Where the demo runs: its inventory, how its hosts come and go, what of it is real."""

    name: str
    inventory: Path
    up: str | None
    """The playbook that makes the hosts, where they have to be made."""
    down: str
    down_variables: dict[str, Any]
    claim: str
    keep_hint: str


SANDBOX = Place(
    name="sandbox",
    inventory=paths.INVENTORY / "sandbox",
    up="sandbox",
    down="sandbox",
    down_variables={"sandbox_state": "absent"},
    claim=(
        "Real here: the hosts (systemd machines reached over ssh), apt, reboots, vLLM on the CPU, "
        "the model (SmolLM2-135M-Instruct), its answer. Simulated: the GPUs and NVIDIA's packages."
    ),
    keep_hint="./llmetal sandbox list shows the hosts; ./llmetal sandbox down takes them away",
)
LOCAL = Place(
    name="local",
    inventory=paths.INVENTORY / "local",
    up=None,
    down="stop",
    down_variables={"stop_and_remove": True},
    claim=(
        "Real here: vLLM on the CPU, the model (SmolLM2-135M-Instruct), its answer. Left out, for "
        "they need root: packages, the driver, the reboot, system services. No GPU is used."
    ),
    keep_hint="ansible-playbook playbooks/stop.yml -i inventory/local stops the model",
)


@dataclass
class Step:
    """A part of the demo, with its time."""

    name: str
    seconds: float = 0.0
    ok: bool = False


@dataclass
class Demo:
    """One demo, so far."""

    place: Place
    display: Display
    as_json: bool
    steps: list[Step] = field(default_factory=list)
    locks: str = ""
    """A folder for the locks: a demo begins without any, and leaves none in the inventory."""
    exit_code: int = EXIT_DONE
    report: Path | None = None
    stages: list[Stage] = field(default_factory=list)
    """The stages of the site run."""
    answers: list[Proof] = field(default_factory=list)
    error: LlmetalError | None = None

    def say(self, text: str) -> None:
        """Tell a person; a machine gets the document at the end."""
        if not self.as_json:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Do a part and keep its time, however it ends."""
        step = Step(name)
        self.steps.append(step)
        self.say(f"\n== {name}")
        started = time.monotonic()
        try:
            yield step
            step.ok = True
        finally:
            step.seconds = round(time.monotonic() - started, 1)


class _StepFailedError(Exception):
    """A part of the demo failed and has said why."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__()


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> None:
    """Add the command."""
    parser = commands.add_parser(
        name,
        help=text,
        parents=[common_options()],
        description=(
            "Make sandbox hosts on this machine, run site.yml on them, ask the served model a "
            "question. Without root the same site.yml runs over inventory/local instead."
        ),
    )
    parser.add_argument("--keep", action="store_true", help="leave it up at the end")
    parser.add_argument("--local", action="store_true", help="no sandbox, even where there can be")
    parser.add_argument("--question", default=QUESTION, help=f"by default: {QUESTION}")
    parser.set_defaults(handler=demo)


def demo(arguments: argparse.Namespace) -> int:
    """Run the demo; the exit status."""
    from llmetal.display import make  # noqa: PLC0415 - not needed to print help

    obstacle = "--local asks for it" if arguments.local else system.sandbox_obstacle()
    place = LOCAL if obstacle else SANDBOX
    display = make(as_json=arguments.json, verbosity=arguments.verbose)
    one = Demo(place, display, arguments.json)
    if obstacle:
        one.say(
            f"No sandbox, because {obstacle}: the same site.yml runs over inventory/local, "
            "on this machine, without root, in one folder."
        )
    one.say(place.claim)
    with tempfile.TemporaryDirectory(prefix="llmetal-demo-") as one.locks:
        try:
            _go(one, arguments.question)
        except _StepFailedError as failed:
            one.exit_code = failed.exit_code
        except LlmetalError as error:
            one.error, one.exit_code = error, EXIT_FAILED
        except KeyboardInterrupt:
            one.exit_code = EXIT_INTERRUPTED
        finally:
            if not arguments.keep:
                _take_down(one)
    _finish(one, arguments.question, keep=arguments.keep)
    return one.exit_code


def _go(one: Demo, question: str) -> None:
    """Everything up to the answer.

    Raises:
        _StepFailedError: a run failed; it has said why.
        LlmetalError: something before or after the runs failed.
    """
    with one.step("Model"):
        _make_model(one)
    if one.place.up is not None:
        with one.step("Hosts"):
            _play(one, one.place.up)
    with one.step("Site"):
        one.report = _play(one, "site").report
    with one.step("Question"):
        asked = _play(one, "ask", {"ask_question": question})
        one.answers = asked.state.proofs


def _make_model(one: Demo) -> None:
    """Make the model's files in the cache, unless they are there.

    Raises:
        LlmetalError: they cannot be made.
    """
    from llmetal.demo_model import (  # noqa: PLC0415 - as above
        DemoModelError,
        ensure_demo_model,
        ensure_uv,
    )

    try:
        folder = ensure_demo_model(paths.cache(), ensure_uv(), one.say)
    except DemoModelError as error:
        raise LlmetalError(what=str(error), where="the demo's model") from error
    one.say(f"{folder}")


def _play(one: Demo, name: str, variables: dict[str, Any] | None = None) -> Run:
    """Run a playbook over the demo's inventory and show it.

    Raises:
        _StepFailedError: it failed, and has said why.
    """
    from llmetal import stages  # noqa: PLC0415 - as above
    from llmetal.runner import Request  # noqa: PLC0415 - as above

    request = Request(
        playbooks=(paths.playbook(name),),
        inventories=(one.place.inventory,),
        extra_vars=(json.dumps({"llmetal_lock_dir": one.locks, **(variables or {})}),),
        report=name == "site",
    )
    title = f"playbook {request.playbooks[0].name} over inventory/{one.place.name}"
    done = stages.run(request, one.display, title, brief=name != "site")
    if name == "site":
        one.stages = done.state.stages
    if done.exit_code != EXIT_DONE:
        raise _StepFailedError(done.exit_code)
    return done


def _take_down(one: Demo) -> None:
    """Take away what the demo made; a failure is said, and does not hide an earlier one."""
    if one.place.up is not None and not any(step.name == "Hosts" for step in one.steps):
        return
    if one.place.up is None and not any(step.name == "Site" for step in one.steps):
        return
    try:
        with one.step("Clean up"):
            _play(one, one.place.down, one.place.down_variables)
    except (_StepFailedError, KeyboardInterrupt) as failed:
        status = getattr(failed, "exit_code", EXIT_INTERRUPTED)
        one.exit_code = one.exit_code or status
        one.say(f"not everything was taken away; {one.place.keep_hint}")


def _finish(one: Demo, question: str, *, keep: bool) -> None:
    """Say what came of it: the times, the report, the answer."""
    if one.error is not None:
        complain(one.error)
    if one.as_json:
        document = {
            "exit_code": one.exit_code,
            "place": one.place.name,
            "steps": [dataclasses.asdict(step) for step in one.steps],
            "stages": [dataclasses.asdict(stage) for stage in one.stages],
            "report": str(one.report) if one.report else None,
            "question": question,
            "answers": [proof.as_json() for proof in one.answers],
        }
        sys.stdout.write(json.dumps({"event": "demo_end", **document}) + "\n")
        return
    from llmetal.display import make_console, new_table  # noqa: PLC0415 - rich is slow to import

    table = new_table("part", "seconds", "result", right=(1,))
    for step in one.steps:
        table.add_row(step.name, f"{step.seconds:.1f}", "ok" if step.ok else "failed")
        for stage in one.stages if step.name == "Site" else ():
            word = "ok" if stage.ok else "failed"
            table.add_row(f"  {stage.name}", f"{stage.seconds:.1f}", word)
    make_console().print(table)
    if one.report is not None:
        one.say(f"report: {one.report}")
    if keep:
        one.say(f"It is still up. {one.place.keep_hint}.")
    for proof in one.answers:
        one.say(f"\nquestion: {question}")
        one.say(f"{proof.detail.get('model', proof.name)} on {proof.host}: {_answer(proof)}")
    if one.exit_code != EXIT_DONE:
        one.say("the demo failed; the messages above say where and what to do")


def _answer(proof: Proof) -> str:
    """The answer of a model, with how fast it came."""
    text = str(proof.detail.get("answer", "")).strip()
    tokens, seconds = proof.detail.get("completion_tokens"), proof.detail.get("seconds")
    if tokens is None or seconds is None:
        return text
    return f"{text}\n({tokens} tokens in {float(seconds):.1f} s)"
