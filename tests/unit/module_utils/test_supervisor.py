# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Supervised processes: their configuration, and a supervisord that is a stand-in."""

from __future__ import annotations

import configparser
import json
import os
import socketserver
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xmlrpc.server import SimpleXMLRPCDispatcher, SimpleXMLRPCRequestHandler

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils import supervisor as subject
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.supervisor import (
    ProcessSpec,
    ProcessState,
    Supervisor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class StandIn:
    """What supervisord does with the configuration files that it is pointed to."""

    def __init__(self, programs: Path) -> None:
        """Know nothing yet."""
        self.programs = programs
        self.loaded: dict[str, str] = {}
        self.running: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []

    def getState(self) -> dict[str, Any]:  # noqa: N802 - the protocol's name
        """Alive."""
        return {"statecode": 1}

    def reloadConfig(self) -> list[list[list[str]]]:  # noqa: N802 - the protocol's name
        """What the files say, against what is loaded."""
        found = {path.stem: path.read_text() for path in self.programs.glob("*.conf")}
        added = sorted(found.keys() - self.loaded.keys())
        removed = sorted(self.loaded.keys() - found.keys())
        changed = sorted(
            name for name in found.keys() & self.loaded.keys() if found[name] != self.loaded[name]
        )
        self.found = found
        return [[added, changed, removed]]

    def addProcessGroup(self, name: str) -> bool:  # noqa: N802 - the protocol's name
        """Load one, and start it if it says so."""
        self.loaded[name] = self.found[name]
        if "autostart=true" in self.found[name]:
            self._start(name)
        return True

    def removeProcessGroup(self, name: str) -> bool:  # noqa: N802 - the protocol's name
        """Forget one."""
        self.calls.append(f"remove {name}")
        del self.loaded[name]
        return True

    def stopProcessGroup(self, name: str) -> bool:  # noqa: N802 - the protocol's name
        """Stop one."""
        return self.stopProcess(name)

    def stopProcess(self, name: str) -> bool:  # noqa: N802 - the protocol's name
        """Stop one."""
        self.calls.append(f"stop {name}")
        self.running.pop(name, None)
        return True

    def startProcess(self, name: str, wait: object) -> bool:  # noqa: N802 - the protocol's name
        """Start one without waiting."""
        assert wait is False
        self._start(name)
        return True

    def _start(self, name: str) -> None:
        self.calls.append(f"start {name}")
        self.running[name] = {"statename": "STARTING", "pid": 7, "start": int(time.time())}

    def getProcessInfo(self, name: str) -> dict[str, Any]:  # noqa: N802 - the protocol's name
        """What one does."""
        if name not in self.loaded:
            message = f"BAD_NAME: {name}"
            raise ValueError(message)
        return self.running.get(name, {"statename": "STOPPED", "pid": 0, "start": 0})

    def shutdown(self) -> bool:
        """End."""
        self.calls.append("shutdown")
        return True


class UnixServer(socketserver.UnixStreamServer, SimpleXMLRPCDispatcher):
    """XML-RPC over a unix socket."""

    def __init__(self, path: Path, instance: StandIn) -> None:
        """Serve an instance under the name `supervisor`."""
        SimpleXMLRPCDispatcher.__init__(self, allow_none=False, encoding=None)
        for name in dir(instance):
            if name[0] != "_" and callable(getattr(instance, name)):
                self.register_function(getattr(instance, name), f"supervisor.{name}")
        socketserver.UnixStreamServer.__init__(self, str(path), Handler)


class Handler(SimpleXMLRPCRequestHandler):
    """One call."""

    rpc_paths = ("/RPC2", "/")
    disable_nagle_algorithm = False

    def address_string(self) -> str:
        """A socket has no address."""
        return "local"

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    """The folders of a supervisord."""
    return Supervisor(
        program="/no/such/supervisord",
        config=str(tmp_path / "config"),
        run_dir=str(tmp_path / "run"),
        log_dir=str(tmp_path / "log"),
        timeout=2,
    )


@pytest.fixture
def daemon(supervisor: Supervisor) -> Iterator[StandIn]:
    """A supervisord that answers."""
    stand_in = StandIn(supervisor.programs)
    supervisor.socket.parent.mkdir()
    with UnixServer(supervisor.socket, stand_in) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield stand_in
        server.shutdown()
        thread.join()


def converge(spec: ProcessSpec, supervisor: Supervisor) -> bool:
    """Bring a process to what is wanted; whether something had to be done."""
    before = subject.compare(spec, supervisor)
    if before == subject.wanted(spec, supervisor):
        return False
    subject.apply(spec, supervisor, before)
    return True


SPEC = ProcessSpec("chat", ("/bin/engine", "serve"), {"HOME": "/srv"})


def test_the_launcher_passes_every_word_and_variable(tmp_path: Path) -> None:
    """Quotes, spaces, dollars and percent signs arrive as they are, and nothing else does."""
    words = ("two words", "it's", '"quoted"', "$HOME", "100%", "a\nb", "")
    dump = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    spec = ProcessSpec(
        "x", ("/usr/bin/env", "python3", "-c", dump, *words), {"K": "v 'w' $HOME %s", "LC_ALL": "C"}
    )
    script = tmp_path / "x.sh"
    script.write_text(spec.launcher)
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=True)
    argv, environ = json.loads(done.stdout)
    assert tuple(argv) == words
    assert environ.keys() == {"K", "PATH", "LC_ALL"}
    assert environ["K"] == "v 'w' $HOME %s"


def test_the_configuration_can_be_read(tmp_path: Path) -> None:
    """Percent signs in paths are no variables."""
    odd = Supervisor("s", str(tmp_path / "100%"), str(tmp_path / "run"), str(tmp_path / "l%g"))
    parser = configparser.RawConfigParser()
    parser.read_string(odd.program_text(SPEC))
    section = parser["program:chat"]
    assert "100%%" in section["command"]
    assert section["stopasgroup"] == "true"
    parser.read_string(odd.main_text())
    assert parser["include"]["files"].endswith("100%%/programs/*.conf")


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ("/bin/engine", "other")},
        {"env": {"HOME": "/other"}},
        {"restart_on": ("a",)},
    ],
)
def test_what_a_process_depends_on_is_in_its_configuration(
    supervisor: Supervisor, changes: dict[str, Any]
) -> None:
    """So that supervisord sees the change."""
    other = ProcessSpec(**{"name": "chat", "argv": SPEC.argv, "env": SPEC.env, **changes})
    assert supervisor.program_text(other) != supervisor.program_text(SPEC)


def test_a_process_is_started_once(supervisor: Supervisor, daemon: StandIn) -> None:
    """The second run asks and does nothing."""
    assert converge(SPEC, supervisor)
    assert supervisor.info("chat") == ProcessState(
        "STARTING", 7, daemon.running["chat"]["start"], 0, ""
    )
    assert not converge(SPEC, supervisor)
    assert daemon.calls == ["start chat"]


def test_a_changed_process_is_restarted(supervisor: Supervisor, daemon: StandIn) -> None:
    """Once."""
    converge(SPEC, supervisor)
    changed = ProcessSpec("chat", SPEC.argv, SPEC.env, restart_on=("a",))
    assert converge(changed, supervisor)
    assert daemon.calls == ["start chat", "stop chat", "remove chat", "start chat"]
    assert not converge(changed, supervisor)


def test_a_process_older_than_its_configuration_is_restarted(
    supervisor: Supervisor, daemon: StandIn
) -> None:
    """A run that died before it could tell supervisord is finished by the next."""
    converge(SPEC, supervisor)
    later = time.time() + 10
    os.utime(supervisor.program_file("chat"), (later, later))
    assert converge(SPEC, supervisor)
    assert daemon.calls[-1] == "start chat"
    assert daemon.calls.count("start chat") == 2


def test_a_process_that_fell_over_is_started(supervisor: Supervisor, daemon: StandIn) -> None:
    """Without a change of its configuration."""
    converge(SPEC, supervisor)
    daemon.running["chat"] = {"statename": "FATAL", "pid": 0, "start": 0, "spawnerr": "too often"}
    assert supervisor.info("chat").is_failed
    assert converge(SPEC, supervisor)
    assert supervisor.info("chat").is_running


def test_a_process_is_stopped(supervisor: Supervisor, daemon: StandIn) -> None:
    """And stays configured."""
    converge(SPEC, supervisor)
    assert converge(ProcessSpec("chat", SPEC.argv, SPEC.env, state="stopped"), supervisor)
    assert not supervisor.info("chat").is_running
    assert "chat" in daemon.loaded


def test_with_the_last_process_supervisord_ends(supervisor: Supervisor, daemon: StandIn) -> None:
    """Not before."""
    other = ProcessSpec("embed", SPEC.argv)
    converge(SPEC, supervisor)
    converge(other, supervisor)
    converge(ProcessSpec("chat", state="absent"), supervisor)
    assert "shutdown" not in daemon.calls
    converge(ProcessSpec("embed", state="absent"), supervisor)
    assert daemon.calls[-1] == "shutdown"
    assert not list(supervisor.programs.iterdir())
    assert not supervisor.main.exists()


def test_removing_what_never_was(supervisor: Supervisor) -> None:
    """Does nothing, without a supervisord too."""
    gone = ProcessSpec("chat", state="absent")
    assert not converge(gone, supervisor)
    subject.apply(gone, supervisor, subject.compare(gone, supervisor))


def test_a_supervisord_that_does_not_start(supervisor: Supervisor) -> None:
    """Its words are in the message."""
    with pytest.raises(LlmetalError, match=r"supervisord does not start.*not found"):
        converge(SPEC, supervisor)


def test_a_socket_that_cannot_be(tmp_path: Path) -> None:
    """The kernel's limit is said before anything is started."""
    deep = Supervisor("s", str(tmp_path), str(tmp_path / ("x" * 100)), str(tmp_path))
    with pytest.raises(LlmetalError, match="too long"):
        deep.ensure_daemon()


def test_the_last_lines_of_a_log(supervisor: Supervisor) -> None:
    """And none where there is no log."""
    assert supervisor.log_tail("chat") == []
    Path(supervisor.log_dir).mkdir()
    supervisor.log_file("chat").write_text("1\n2\n3\n")
    assert supervisor.log_tail("chat", 2) == ["2", "3"]


@pytest.mark.parametrize("name", ["../chat", "a b", "", "-x"])
def test_names_that_are_no_names(name: str) -> None:
    """A path or two words."""
    with pytest.raises(LlmetalError, match="not a plain name"):
        ProcessSpec(name, ("x",)).check()


def test_a_process_without_a_command() -> None:
    """Cannot be started."""
    with pytest.raises(LlmetalError, match="no command"):
        ProcessSpec("chat").check()
