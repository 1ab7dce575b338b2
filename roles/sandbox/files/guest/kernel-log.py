#!/usr/bin/python3 -I
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated kernel's log, where `dmesg` and `journalctl -k` are asked for it.

kernel-log.py dmesg ...        all of it, for this boot; the real ring is the machine's
kernel-log.py journalctl ...   with -k, --dmesg or _TRANSPORT=kernel from that log; any other
                               question goes to the real journalctl
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

LOG = Path("/usr/lib/sandbox-hardware/kernel.log")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
WITH_VALUE = {
    **dict.fromkeys(("-n", "--lines"), "lines"),
    **dict.fromkeys(("-g", "--grep"), "grep"),
    **dict.fromkeys(("-o", "--output"), "output"),
    **dict.fromkeys(("-S", "--since"), "since"),
    **dict.fromkeys(("-p", "--priority"), "priority"),
    **dict.fromkeys(("-u", "--unit", "-U", "--until", "-t", "--identifier"), "other"),
}


def rows() -> list[dict[str, Any]]:
    """All lines, of every boot."""
    try:
        return [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []


def dmesg(words: list[str]) -> int:
    """The lines of this boot."""
    if "-C" in words or "--clear" in words:
        return 0
    boot = BOOT_ID.read_text(encoding="ascii").strip()
    for row in rows():
        if row["boot"] == boot:
            sys.stdout.write(f"[{row['uptime']:12.6f}] {row['text']}\n")
    return 0


def journalctl(words: list[str]) -> int:
    """Answer for the kernel, and pass everything else on."""
    options = parse(words)
    if not options.get("kernel"):
        path = next(p for p in ("/usr/bin/journalctl", "/bin/journalctl") if Path(p).exists())
        os.execv(path, [path, *words])  # noqa: S606 - that is the point
    found = of_boot(rows(), str(options.get("boot", "0")))
    if "grep" in options:
        text = str(options["grep"])
        flags = re.IGNORECASE if text.islower() else 0
        found = [row for row in found if re.search(text, row["text"], flags)]
    if "since" in options:
        found = [row for row in found if row["time"] >= moment(str(options["since"]))]
    count = str(options.get("lines", "all")).lstrip("+")
    if count.isdigit():
        found = found[-int(count) :] if int(count) else []
    for row in found[::-1] if options.get("reverse") else found:
        sys.stdout.write(form(row, str(options.get("output", "short"))) + "\n")
    if "grep" in options and not found:
        return 1
    return 0


def parse(words: list[str]) -> dict[str, object]:
    """The options that matter here."""
    options: dict[str, object] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, sign, value = word.partition("=")
        if word in {"-k", "--dmesg"} or word == "_TRANSPORT=kernel":
            options["kernel"] = True
        elif word in {"-r", "--reverse"}:
            options["reverse"] = True
        elif name in {"-b", "--boot"}:
            options["boot"] = value if sign else "0"
            if name == "-b" and rest and re.fullmatch(r"all|[+-]?\d+|[0-9a-f]{32}", rest[0]):
                options["boot"] = rest.pop(0)
        elif name in WITH_VALUE:
            options[WITH_VALUE[name]] = value if sign else (rest.pop(0) if rest else "")
        elif word[:2] in WITH_VALUE and len(word) > len("-n") and word[1] != "-":
            options[WITH_VALUE[word[:2]]] = word[2:]
    return options


def of_boot(found: list[dict[str, Any]], boot: str) -> list[dict[str, Any]]:
    """The lines of one boot, or of all."""
    if boot == "all":
        return found
    current = BOOT_ID.read_text(encoding="ascii").strip()
    boots = list(dict.fromkeys([*(row["boot"] for row in found), current]))
    if re.fullmatch(r"[+-]?\d+", boot):
        at = len(boots) - 1 + int(boot) if int(boot) <= 0 else int(boot) - 1
        wanted = boots[at] if 0 <= at < len(boots) else ""
    else:
        wanted = next((name for name in boots if name.replace("-", "") == boot), "")
    return [row for row in found if row["boot"] == wanted]


def moment(text: str) -> float:
    """A time as `--since` writes it; what is not understood is the beginning."""
    if text.startswith("@"):
        return float(text[1:])
    if match := re.fullmatch(r"-?(\d+)\s*(s|sec|min|m|h|hour|hours|day|days|d)(?: ago)?", text):
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2][0]]
        return time.time() - int(match[1]) * unit
    for pattern in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, pattern))
        except ValueError:
            continue
    return 0.0


def form(row: dict[str, Any], output: str) -> str:
    """One line in one of journalctl's forms."""
    if output == "cat":
        return str(row["text"])
    if output.startswith("json"):
        fields = {
            "__REALTIME_TIMESTAMP": str(int(row["time"] * 1e6)),
            "_BOOT_ID": row["boot"].replace("-", ""),
            "_TRANSPORT": "kernel",
            "SYSLOG_IDENTIFIER": "kernel",
            "PRIORITY": "3",
            "MESSAGE": row["text"],
        }
        return json.dumps(fields)
    stamp = time.localtime(row["time"])
    shown = time.strftime("%b %d %H:%M:%S", stamp)
    if output.startswith("short-iso"):
        shown = time.strftime("%Y-%m-%dT%H:%M:%S%z", stamp)
    elif output == "short-unix":
        shown = f"{row['time']:.6f}"
    return f"{shown} {os.uname().nodename} kernel: {row['text']}"


def main() -> int:
    """Be the program that is asked for."""
    name, *words = sys.argv[1:]
    return dmesg(words) if name == "dmesg" else journalctl(words)


if __name__ == "__main__":
    sys.exit(main())
