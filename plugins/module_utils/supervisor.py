# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Supervised processes, for hosts without a systemd manager: one supervisord behind a socket."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shlex
import shutil
import socket
import time
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.module_utils.command import run
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.files import read_text, write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SOCKET_LIMIT = 107
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFUSALS = (OSError, http.client.HTTPException, xmlrpc.client.Error)
_UP = {"STARTING", "RUNNING", "BACKOFF"}


@dataclass(frozen=True)
class ProcessSpec:
    """A process as it should be."""

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    directory: str = "/"
    user: str = ""
    state: str = "started"
    restart_on: tuple[str, ...] = ()
    settle_seconds: int = 60

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            LlmetalError: the name is no plain name, or there is no command.
        """
        if not _NAME.match(self.name):
            raise LlmetalError(
                what="the process's name is not a plain name",
                where=repr(self.name),
                fix="use letters, digits, dot, dash and underscore",
            )
        if self.state != "absent" and not self.argv:
            raise LlmetalError(what="the process has no command", where=self.name)

    @property
    def launcher(self) -> str:
        """A script that starts the command with exactly its own environment."""
        variables = {"PATH": _PATH, **(self.env or {})}
        assignments = " ".join(
            shlex.quote(f"{name}={value}") for name, value in sorted(variables.items())
        )
        command = " ".join(shlex.quote(one) for one in self.argv)
        return f"#!/bin/sh\n# Written by llmetal.\nexec env -i {assignments} {command}\n"


@dataclass(frozen=True)
class Supervisor:
    """The supervisord of one root folder."""

    program: str
    config: str
    run_dir: str
    log_dir: str
    timeout: float = 60

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return Path(self.run_dir) / "supervisor.sock"

    @property
    def pidfile(self) -> Path:
        """Where it leaves its process id."""
        return Path(self.run_dir) / "supervisord.pid"

    @property
    def main(self) -> Path:
        """Its own configuration."""
        return Path(self.config) / "supervisord.conf"

    @property
    def programs(self) -> Path:
        """The folder of the processes' configurations."""
        return Path(self.config) / "programs"

    def program_file(self, name: str) -> Path:
        """The configuration of one process."""
        return self.programs / f"{name}.conf"

    def launcher_file(self, name: str) -> Path:
        """The script that starts one process."""
        return self.programs / f"{name}.sh"

    def log_file(self, name: str) -> Path:
        """What one process prints."""
        return Path(self.log_dir) / f"{name}.log"

    def main_text(self) -> str:
        """Its own configuration."""
        return (
            "; Written by llmetal.\n"
            f"[unix_http_server]\nfile={_plain(self.socket)}\nchmod=0700\n\n"
            f"[supervisord]\npidfile={_plain(self.pidfile)}\n"
            f"logfile={_plain(Path(self.log_dir) / 'supervisord.log')}\n"
            "logfile_maxbytes=5MB\nlogfile_backups=1\nnodaemon=false\n\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory="
            "supervisor.rpcinterface:make_main_rpcinterface\n\n"
            f"[supervisorctl]\nserverurl=unix://{_plain(self.socket)}\n\n"
            f"[include]\nfiles={_plain(self.programs)}/*.conf\n"
        )

    def program_text(self, spec: ProcessSpec) -> str:
        """The configuration of one process; it changes whenever the process must start again."""
        identity = hashlib.sha256("\n".join([spec.launcher, *spec.restart_on]).encode()).hexdigest()
        user = f"user={spec.user}\n" if spec.user and os.getuid() == 0 else ""
        return (
            f"; Written by llmetal.\n[program:{spec.name}]\n"
            f"command=/bin/sh {_plain(shlex.quote(str(self.launcher_file(spec.name))))}\n"
            f'environment=LLMETAL_IDENTITY="{identity}"\n'
            f"directory={_plain(Path(spec.directory))}\n{user}"
            f"autostart={'true' if spec.state == 'started' else 'false'}\n"
            f"autorestart=unexpected\nstartsecs={spec.settle_seconds}\nstartretries=2\n"
            "stopasgroup=true\nkillasgroup=true\nstopwaitsecs=30\nredirect_stderr=true\n"
            f"stdout_logfile={_plain(self.log_file(spec.name))}\n"
            "stdout_logfile_maxbytes=20MB\nstdout_logfile_backups=2\n"
        )

    def info(self, name: str) -> ProcessState:
        """What a process does; also where no supervisord answers."""
        try:
            with self._proxy() as proxy:
                return ProcessState.of(proxy.supervisor.getProcessInfo(name))
        except _REFUSALS:
            return ProcessState()

    def log_tail(self, name: str, lines: int = 20) -> list[str]:
        """The last lines that a process printed."""
        return (read_text(self.log_file(name)) or "").splitlines()[-lines:]

    def _proxy(self) -> xmlrpc.client.ServerProxy:
        return xmlrpc.client.ServerProxy(
            "http://localhost", transport=_UnixTransport(str(self.socket), self.timeout)
        )

    def is_answering(self) -> bool:
        """Whether a supervisord answers on the socket."""
        try:
            with self._proxy() as proxy:
                proxy.supervisor.getState()
        except _REFUSALS:
            return False
        return True

    def ensure_daemon(self) -> None:
        """Start supervisord where none answers.

        Raises:
            LlmetalError: it does not start, or its socket's path is too long.
        """
        if len(os.fsencode(self.socket)) > _SOCKET_LIMIT:
            raise LlmetalError(
                what="the path of supervisord's socket is too long",
                where=str(self.socket),
                fix=f"set `llmetal_root` so that it has at most {_SOCKET_LIMIT} bytes",
            )
        for folder in (self.config, self.run_dir, self.log_dir, str(self.programs)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        if read_text(self.main) != self.main_text():
            write_atomic(self.main, self.main_text())
        if self.is_answering():
            return
        started = run([self.program, "-c", str(self.main)], timeout=self.timeout, cwd="/")
        limit = time.monotonic() + self.timeout
        while started.ok and time.monotonic() < limit:
            if self.is_answering():
                return
            time.sleep(0.1)
        raise LlmetalError(
            what="supervisord does not start",
            where=str(self.main),
            why=started.tail(3) or "it does not answer on its socket",
            fix=f"read {self.log_dir}/supervisord.log",
        )

    def update(self) -> None:
        """Have supervisord take over what the configuration files say.

        Raises:
            LlmetalError: it refuses.
        """
        try:
            with self._proxy() as proxy:
                answer: Any = proxy.supervisor.reloadConfig()
                added, changed, removed = answer[0]
                for group in [*changed, *removed]:
                    proxy.supervisor.stopProcessGroup(group)
                    proxy.supervisor.removeProcessGroup(group)
                for group in [*added, *changed]:
                    proxy.supervisor.addProcessGroup(group)
        except _REFUSALS as error:
            raise self._refusal(error, doing="take over its configuration") from error

    def start(self, name: str) -> None:
        """Start a process; does not wait until it has settled.

        Raises:
            LlmetalError: supervisord refuses.
        """
        try:
            with self._proxy() as proxy:
                proxy.supervisor.startProcess(name, False)  # noqa: FBT003 - positional by protocol
        except _REFUSALS as error:
            raise self._refusal(error, doing=f"start {name}") from error

    def stop(self, name: str) -> None:
        """Stop a process and all that it has started.

        Raises:
            LlmetalError: supervisord refuses.
        """
        try:
            with self._proxy() as proxy:
                proxy.supervisor.stopProcess(name)
        except _REFUSALS as error:
            raise self._refusal(error, doing=f"stop {name}") from error

    def shut_down(self) -> None:
        """End supervisord and see it gone.

        Raises:
            LlmetalError: it is still there at the end of the timeout.
        """
        pid = (read_text(self.pidfile) or "").strip()
        with contextlib.suppress(*_REFUSALS), self._proxy() as proxy:
            proxy.supervisor.shutdown()
        limit = time.monotonic() + self.timeout
        while pid.isdigit() and Path("/proc", pid).exists() and time.monotonic() < limit:
            time.sleep(0.1)
        if pid.isdigit() and Path("/proc", pid).exists() and self.is_answering():
            raise LlmetalError(what="supervisord does not end", where=f"process {pid}")
        for rest in (self.socket, self.pidfile, self.main):
            with contextlib.suppress(FileNotFoundError):
                rest.unlink()

    def _refusal(self, error: Exception, *, doing: str) -> LlmetalError:
        why = error.faultString if isinstance(error, xmlrpc.client.Fault) else str(error)
        return LlmetalError(
            what=f"supervisord could not {doing}",
            where=str(self.socket),
            why=why,
            fix=f"read {self.log_dir}/supervisord.log",
        )


@dataclass(frozen=True)
class ProcessState:
    """A process as supervisord sees it."""

    state: str = "ABSENT"
    pid: int = 0
    started_at: float = 0.0
    exit_status: int = 0
    message: str = ""

    @classmethod
    def of(cls, info: Any) -> ProcessState:  # noqa: ANN401 - what the protocol brings
        """Read a process's entry."""
        return cls(
            state=str(info.get("statename", "ABSENT")),
            pid=int(info.get("pid", 0)),
            started_at=float(info.get("start", 0)),
            exit_status=int(info.get("exitstatus", 0)),
            message=str(info.get("spawnerr") or info.get("description") or ""),
        )

    @property
    def is_running(self) -> bool:
        """Whether it is up or on its way up."""
        return self.state in _UP

    @property
    def is_failed(self) -> bool:
        """Whether supervisord has given it up."""
        return self.state in {"FATAL", "EXITED", "UNKNOWN"}


@dataclass(frozen=True)
class ProcessComparison:
    """The part of a process's state that is compared before and after."""

    sha256: str | None
    running: bool
    up_to_date: bool


def _plain(path: Path | str) -> str:
    """A value in supervisor's configuration, where a percent sign begins a variable."""
    return str(path).replace("%", "%%")


def compare(spec: ProcessSpec, supervisor: Supervisor) -> ProcessComparison:
    """What is, in the terms that are compared."""
    path = supervisor.program_file(spec.name)
    text = read_text(path)
    launcher = read_text(supervisor.launcher_file(spec.name))
    state = supervisor.info(spec.name)
    digest = None
    if text is not None:
        digest = hashlib.sha256(f"{text}\0{launcher}".encode()).hexdigest()
    # Supervisord counts in whole seconds.
    fresh = text is None or not state.is_running or state.started_at + 1 >= path.stat().st_mtime
    return ProcessComparison(digest, state.is_running, fresh)


def wanted(spec: ProcessSpec, supervisor: Supervisor) -> ProcessComparison:
    """What should be, in the terms that are compared."""
    if spec.state == "absent":
        return ProcessComparison(None, running=False, up_to_date=True)
    text = f"{supervisor.program_text(spec)}\0{spec.launcher}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return ProcessComparison(digest, running=spec.state == "started", up_to_date=True)


def apply(spec: ProcessSpec, supervisor: Supervisor, before: ProcessComparison) -> None:
    """Bring a process to what is wanted.

    Raises:
        LlmetalError: supervisord refuses, or a file cannot be written.
    """
    try:
        if spec.state == "absent":
            _remove(spec, supervisor)
            return
        supervisor.ensure_daemon()
        if not before.up_to_date:
            supervisor.program_file(spec.name).unlink(missing_ok=True)
            supervisor.update()
        write_atomic(supervisor.launcher_file(spec.name), spec.launcher, mode=0o700)
        if spec.user and os.getuid() == 0:
            shutil.chown(supervisor.launcher_file(spec.name), user=spec.user)
        write_atomic(supervisor.program_file(spec.name), supervisor.program_text(spec))
    except OSError as error:
        raise LlmetalError(
            what="the process's configuration cannot be written",
            where=str(error.filename or supervisor.config),
            why=error.strerror or str(error),
            fix="check the free room and the owner of the folder",
        ) from error
    supervisor.update()
    state = supervisor.info(spec.name)
    if spec.state == "started" and not state.is_running:
        supervisor.start(spec.name)
    elif spec.state == "stopped" and state.is_running:
        supervisor.stop(spec.name)


def _remove(spec: ProcessSpec, supervisor: Supervisor) -> None:
    """Stop a process and forget it; with the last one supervisord ends too."""
    for path in (supervisor.program_file(spec.name), supervisor.launcher_file(spec.name)):
        path.unlink(missing_ok=True)
    if not supervisor.is_answering():
        return
    supervisor.update()
    if not any(supervisor.programs.glob("*.conf")):
        supervisor.shut_down()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class _UnixTransport(xmlrpc.client.Transport):
    """Calls over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        self._path = path
        self._timeout = timeout

    def make_connection(self, host: Any) -> http.client.HTTPConnection:  # noqa: ANN401, ARG002 - the base class's signature
        """A new connection."""
        return _UnixConnection(self._path, self._timeout)
