#!/usr/bin/python3 -I
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch packages of the simulated repositories past apt, for faults that break what apt has done.

    fetch-deb.py FOLDER NAME=VERSION ...     VERSION: of the driver, or `other` for the newest that
                                             is not installed; prints the paths of the files

A name that no repository has, or whose package is not installed where `other` is asked for, is left
out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

KERNEL = Path("/etc/apt/sources.list.d/kernel.sources")


def repositories() -> list[str]:
    """Where this host's packages are: NVIDIA's repository for its system, and its archive."""
    match = re.search(r"^URIs: (\S+)/kernel/$", KERNEL.read_text(encoding="utf-8"), re.MULTILINE)
    base = match[1] if match else ""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if not re.search(r"^ID=ubuntu$", release, re.MULTILINE):
        return [f"{base}/cuda/debian/x86_64"]
    version = re.search(r'^VERSION_ID="(\d+)\.(\d+)"$', release, re.MULTILINE)
    name = f"ubuntu{version[1]}{version[2]}" if version else ""
    return [f"{base}/cuda/{name}/x86_64", f"{base}/ubuntu/{name}"]


def index() -> list[tuple[str, str, str]]:
    """Name, version and address of every package."""
    found = []
    for base in repositories():
        with urllib.request.urlopen(f"{base}/Packages", timeout=30) as answer:  # noqa: S310 - http
            text = answer.read().decode()
        for paragraph in text.split("\n\n"):
            fields = dict(
                re.findall(r"^(Package|Version|Filename): (.*)$", paragraph, re.MULTILINE)
            )
            if fields:
                path = fields["Filename"].removeprefix("./")
                found.append((fields["Package"], fields["Version"], f"{base}/{path}"))
    return found


def installed(name: str) -> str:
    """The installed version of a package, or nothing."""
    argv = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)  # noqa: S603 - fixed
    status, _, version = done.stdout.partition(" ")
    return version if status not in {"", "not-installed", "config-files"} else ""


def choose(name: str, wanted: str, packages: list[tuple[str, str, str]]) -> str:
    """The address of a package, or nothing."""
    now = installed(name)
    if wanted == "other" and not now:
        return ""
    suffix = re.sub(r"^[\d.]+", "", now)
    found = [row for row in packages if row[0] == name and row[1] != now]
    if wanted == "other":
        found = [row for row in found if row[1].endswith(suffix) and branch(row[1]) == branch(now)]
    else:
        found = [row for row in found if row[1].startswith(f"{wanted}-")]
    return found[-1][2] if found else ""


def branch(version: str) -> str:
    """The branch of a version."""
    return version.split(".", 1)[0]


def main() -> int:
    """Fetch and print."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    packages = index()
    for word in sys.argv[2:]:
        name, _, wanted = word.partition("=")
        if address := choose(name, wanted, packages):
            target = folder / address.rpartition("/")[2]
            urllib.request.urlretrieve(address, target)  # noqa: S310 - http
            sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
