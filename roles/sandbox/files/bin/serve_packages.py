#!/usr/bin/env python3
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the sandbox's package repositories on the bridge, as each host is to see them.

    serve_packages.py STATE ADDRESS PORT

A host with a fault that concerns the server (`not_found`, `hide_headers`, ...) gets another answer
than its neighbours; faults are read anew for each request. STATE/repository.pid is locked for as
long as this process lives.
"""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io
    from typing import BinaryIO


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files below STATE/repository/public, seen by the host that asks."""

    state: Path
    protocol_version = "HTTP/1.1"
    timeout = 30

    def translate_path(self, path: str) -> str:
        """Where the answer lies; a path that does not exist for a host that is to see none."""
        effects = server_effects(self.state, self.client_address[0])
        clean = path.lstrip("/")
        is_driver = clean.startswith(("cuda/", "ubuntu/"))
        if "not_found" in effects and clean.startswith("cuda/"):
            clean = "not-found"
        if "unknown_key" in effects and is_driver:
            clean = f"unknown-key/{clean.rpartition('/')[2]}"
        if "index_hash" in effects and is_driver and clean.endswith(("/Packages", "/Packages.gz")):
            clean += ".other"
        if "hide_headers" in effects and clean.startswith("kernel/"):
            clean = clean.replace("kernel/", "kernel-empty/", 1)
        self.directory = str(self.state / "repository" / "public")
        return super().translate_path(f"/{clean}")

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Always the content: a fault may have changed it since the host saw it last."""
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def list_directory(self, path: str) -> None:  # type: ignore[override]
        """No listings: apt needs none."""
        del path
        self.send_error(404)


def server_effects(state: Path, address: str) -> set[str]:
    """What the faults of the host with an address ask of this server."""
    try:
        ledger = json.loads((state / "ledger.json").read_text(encoding="utf-8"))
        names = [name for name, host in ledger["hosts"].items() if host["address"] == address]
        text = (state / "hosts" / names[0] / "faults.json").read_text(encoding="utf-8")
        return {fault["server"] for fault in json.loads(text).values() if fault.get("server")}
    except (OSError, ValueError, KeyError, IndexError):
        return set()


def main() -> int:
    """Hold the lock and serve."""
    state, address, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    Handler.state = state
    with (
        (state / "repository.pid").open("a+", encoding="ascii") as lock,
        http.server.ThreadingHTTPServer((address, port), Handler) as server,
    ):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 1
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
