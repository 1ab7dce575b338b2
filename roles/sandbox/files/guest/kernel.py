#!/usr/bin/python3 -I
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's side of the simulated hardware: modules, and what /proc and /sys show of them.

    kernel.py boot                     once, before sysinit.target: show everything
    kernel.py modprobe|rmmod|lsmod ... what /usr/local/sbin/modprobe and the others run; whatever is
                                       not of a GPU driver is passed on to the real program
    kernel.py dkms VERSION KERNEL      build (copy) the modules of a package for a kernel; of the
                                       `installed` version, for `all` kernels
    kernel.py dkms-tool ...            what /usr/local/sbin/dkms runs
    kernel.py undkms VERSION           take it away again
    kernel.py log TEXT                 a line in the kernel's log
    kernel.py log-xid GPU XID TEXT     the driver's line about an error of a GPU
    kernel.py newer                    the name of the newer kernel that the package source has
    kernel.py refresh                  count the users of the modules anew

A made tree is bound over /sys/bus/pci/devices, /sys/module, /sys/firmware and /proc/driver, and a
made list over /proc/modules where the machine has one. At boot the driver is loaded when a package
installed its module for the running kernel and nothing forbids it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HARDWARE = Path("/usr/lib/sandbox-hardware")
FAULTS = HARDWARE / "faults"
RUN = Path("/run/sandbox-hardware")
MODULES = Path("/lib/modules")
LOG = HARDWARE / "kernel.log"
ENROLLED = HARDWARE / "mok/enrolled"
SWITCH_MANAGEMENT = ("15b3", "1021")
"""The ConnectX-7 through which a host sees NVLink 5 switches; their vital product data say so."""
NVIDIA_MAJOR = 195
NULL = (1, 3)
"""The device files open what /dev/null opens, so that a process can hold them."""
GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

NEEDS = {
    "nvidia": (),
    "nvidia_modeset": ("nvidia",),
    "nvidia_drm": ("nvidia_modeset",),
    "nvidia_uvm": ("nvidia",),
    "nvidia_peermem": ("nvidia",),
    "nouveau": (),
}
AT_BOOT = ("nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm")
FILES = ("nvidia.ko", "nvidia-modeset.ko", "nvidia-drm.ko", "nvidia-uvm.ko", "nvidia-peermem.ko")
SIZES = {
    "nvidia": 14376960,
    "nvidia_modeset": 1843200,
    "nvidia_drm": 139264,
    "nvidia_uvm": 1814528,
    "nvidia_peermem": 16384,
    "nouveau": 2437120,
}
HELD_BY = {
    "nvidia": re.compile(r"/dev/nvidia(?:\d+|ctl|-nvswitch\w*)$"),
    "nvidia_uvm": re.compile(r"/dev/nvidia-uvm(?:-tools)?$"),
    "nvidia_modeset": re.compile(r"/dev/nvidia-modeset$"),
}
NEWER = "6.99.0-1-sandbox-amd64"
SIGNATURE = re.compile(rb"~Module signature appended~ ([0-9a-f]+)\n$")

Loaded = dict[str, dict[str, str]]


# --- what there is


def hardware() -> dict[str, Any]:
    """The devices of this machine."""
    found: dict[str, Any] = json.loads((HARDWARE / "devices.json").read_text(encoding="utf-8"))
    return found


def loaded() -> Loaded:
    """The simulated modules that are loaded, in the order of their loading."""
    try:
        found: Loaded = json.loads((RUN / "loaded.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def is_on(fault: str) -> bool:
    """Whether a fault is on."""
    return (FAULTS / fault).exists()


def modinfo(path: Path) -> dict[str, str]:
    """The fields of a kernel module, and `signed_by` where it has a signature."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    pairs = re.findall(rb"(\w+)=([^\0]*)\0", data)
    info = {key.decode(): value.decode() for key, value in pairs}
    if signature := SIGNATURE.search(data):
        info["signed_by"] = signature[1].decode()
    return info


def module_file(name: str) -> Path:
    """Where the running kernel has a module."""
    folder = MODULES / os.uname().release / "updates/dkms"
    return folder / f"{name.replace('_', '-')}.ko"


def configuration() -> list[list[str]]:
    """The lines of modprobe's configuration, in words; a file of /etc hides its namesake."""
    files: dict[str, Path] = {}
    for folder in ("/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d", "/etc/modprobe.d"):
        for path in Path(folder).glob("*.conf"):
            files[path.name] = path
    lines = []
    for name in sorted(files):
        with contextlib.suppress(OSError):
            text = files[name].read_text(encoding="utf-8", errors="replace")
            lines += [line.partition("#")[0].split() for line in text.splitlines()]
    return [words for words in lines if len(words) > 1]


def is_blacklisted(name: str) -> bool:
    """Whether a module is not loaded for a device by itself."""
    return any(
        words[0] in {"blacklist", "install"} and words[1].replace("-", "_") == name
        for words in configuration()
        if words[0] == "blacklist" or words[2:3] in (["/bin/false"], ["/bin/true"])
    )


def users_of(name: str, now: Loaded) -> tuple[list[str], int]:
    """The loaded modules that need a module, and how many processes hold its devices."""
    pattern = HELD_BY.get(name)
    count = 0
    if pattern:
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                count += bool(pattern.match(str(link.readlink())))
    return [other for other in now if name in NEEDS[other]], count


# --- load and unload


class RefusalError(Exception):
    """Why the kernel does not load a module: words for the program and for the log."""

    def __init__(self, words: str, log_line: str = "") -> None:
        """Say both."""
        super().__init__(words)
        self.log_line = log_line


def insert(name: str, now: Loaded) -> None:
    """Load a module and what it needs.

    Raises:
        RefusalError: the kernel would not.
    """
    if name in now:
        return
    for other in NEEDS[name]:
        insert(other, now)
    machine = hardware()
    gpus = machine["gpus"]
    if name == "nouveau":
        now[name] = {}
        return
    info = modinfo(module_file(name))
    if "version" not in info:
        words = f"Module {name} not found in directory {MODULES / os.uname().release}"
        raise RefusalError(words)
    if name == "nvidia":
        refuse_driver(info, machine, now)
        if not gpus:
            message = "No such device"
            raise RefusalError(message, "NVRM: No NVIDIA GPU found.")
    is_open = "GPL" in info.get("license", "")
    now[name] = {
        "version": info["version"],
        "flavour": "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module",
    }
    if name == "nvidia":
        shape = "Open Kernel Module" if is_open else "Kernel Module"
        say(f"NVRM: loading NVIDIA UNIX {shape} for x86_64  {info['version']}  (simulated)")


def refuse_driver(info: dict[str, str], machine: dict[str, Any], now: Loaded) -> None:
    """Refuse a driver that these GPUs, or this boot, cannot take."""
    if "nouveau" in now:
        words = "No such device"
        raise RefusalError(
            words,
            "NVRM: GPU 0000:00:00.0 is already bound to nouveau.",
        )
    if machine["open_only"] and "GPL" not in info.get("license", ""):
        words = "No such device"
        raise RefusalError(
            words,
            "NVRM: The NVIDIA GPU installed in this system requires use of the NVIDIA open kernel"
            " modules.",
        )
    if is_on("secure_boot") and not (ENROLLED / info.get("signed_by", "none")).exists():
        words = "Key was rejected by service"
        raise RefusalError(words, "Loading of module with unavailable key is rejected")


def modprobe(words: list[str]) -> int:
    """`modprobe`, for the modules of GPU drivers."""
    names = [word.replace("-", "_") for word in words if not word.startswith("-")]
    options = {word for word in words if word.startswith("-")}
    asks_other = {"-c", "--showconfig", "-V", "--version", "-h", "--help", "-R", "-D"} & options
    if not names or asks_other or not set(names) <= set(NEEDS):
        return real("modprobe", words)
    if {"-n", "--dry-run", "--show"} & options:
        return 0 if all(module_file(name).exists() for name in names) else 1
    now = loaded()
    if {"-r", "--remove"} & options:
        return remove(names, now)
    if not ({"-a", "--all"} & options):
        names = names[:1]
    if {"-b", "--use-blacklist"} & options:
        names = [name for name in names if not is_blacklisted(name)]
    problems = [problem for name in names if name not in now and (problem := add(name, now))]
    for problem in problems:
        complain(f"modprobe: {problem}")
    show(now)
    return 1 if problems else 0


def add(name: str, now: Loaded) -> str:
    """Load a module; what stands against it, or nothing."""
    stubs = [w for w in configuration() if w[0] == "install" and w[1].replace("-", "_") == name]
    if stubs:
        status = subprocess.run(stubs[0][2:], check=False).returncode  # noqa: S603 - its own line
        return f"ERROR: could not insert '{name}': Invalid argument" if status else ""
    if not module_file(name).exists():
        return f"FATAL: Module {name} not found in directory {MODULES / os.uname().release}"
    try:
        insert(name, now)
    except RefusalError as refusal:
        say(refusal.log_line)
        return f"ERROR: could not insert '{name}': {refusal}"
    return ""


def remove(names: list[str], now: Loaded) -> int:
    """`modprobe -r`: modules, and those that only they needed."""
    for name in names:
        if name not in now:
            continue
        needed, held = users_of(name, now)
        if needed or held:
            by = f" by: {' '.join(needed)}" if needed else ""
            complain(f"modprobe: FATAL: Module {name} is in use{by}.")
            return 1
        unload(name, now)
        for other in NEEDS[name]:
            if other in now and not any(users_of(other, now)):
                unload(other, now)
    show(now)
    return 0


def unload(name: str, now: Loaded) -> None:
    """Take a module out."""
    del now[name]
    if name == "nvidia":
        say("nvidia-nvlink: Unregistered Nvlink Core (simulated)")


def rmmod(words: list[str]) -> int:
    """`rmmod`, for the modules of GPU drivers."""
    names = [word.replace("-", "_") for word in words if not word.startswith("-")]
    if not names or not set(names) <= set(NEEDS):
        return real("rmmod", words)
    now = loaded()
    status = 0
    for name in names:
        if name not in now:
            complain(f"rmmod: ERROR: Module {name} is not currently loaded")
            status = 1
            continue
        needed, held = users_of(name, now)
        if needed or held:
            by = f" by: {' '.join(needed)}" if needed else ""
            complain(f"rmmod: ERROR: Module {name} is in use{by}")
            status = 1
            continue
        unload(name, now)
    show(now)
    return status


def lsmod(words: list[str]) -> int:
    """`lsmod`, also where the machine's kernel has no modules to list."""
    del words
    sys.stdout.write("Module                  Size  Used by\n")
    for line in modules_text(loaded()).splitlines():
        name, size, count, by = line.split()[:4]
        by = "" if by == "-" else by.rstrip(",")
        sys.stdout.write(f"{name:<20} {size:>8}  {count} {by}\n".replace(" \n", "\n"))
    return 0


def real(program: str, words: list[str]) -> int:
    """Run the program that the stand-in hides."""
    for folder in ("/usr/sbin", "/sbin"):
        path = Path(folder, program)
        if path.exists():
            sys.stdout.flush()
            os.execv(path, [str(path), *words])  # noqa: S606 - that is the point
    complain(f"{program}: command not found")
    return 127


def complain(text: str) -> None:
    """One line for the caller."""
    sys.stderr.write(text + "\n")


# --- build


def dkms(words: list[str]) -> int:
    """Stands for `dkms autoinstall`: builds (copies) the simulated modules for one kernel."""
    version, kernel = words
    if version == "installed":
        found = sorted(Path("/usr/src").glob("nvidia-*/nvidia.ko"))
        if not found:
            return 0
        version = found[-1].parent.name.partition("-")[2]
    if kernel == "all":
        installed = {path.parent.name for path in MODULES.glob("*/modules.order")}
        kernels = sorted({os.uname().release, *installed})
        return max(build(version, each) for each in kernels)
    return build(version, kernel)


def dkms_tool(words: list[str]) -> int:
    """The program `dkms`, for the simulated modules; where there are none, the real one."""
    sources = sorted(Path("/usr/src").glob("nvidia-*/nvidia.ko"))
    trees = sorted(Path("/var/lib/dkms/nvidia").glob("*"))
    action = next((word for word in words if not word.startswith("-")), "")
    if action not in {"autoinstall", "status", "remove"} or not (sources or trees):
        return real("dkms", words)
    text = " ".join(words)
    kernel = re.search(r"(?:--kernelver|-k)[ =](\S+)", text)
    if action == "autoinstall":
        wanted = kernel[1] if kernel else os.uname().release
        if not (MODULES / wanted / "build").exists():
            complain(f"Error! Your kernel headers for kernel {wanted} cannot be found.")
            return 21
        return dkms(["installed", wanted])
    if action == "remove":
        version = re.search(r"nvidia/(\S+)|-v[ =]?(\S+)", text)
        return undkms([version[1] or version[2]]) if version else 1
    for tree in trees:
        for built in sorted(tree.glob("*/x86_64")):
            line = f"nvidia/{tree.name}, {built.parent.name}, x86_64: installed"
            sys.stdout.write(f"{line}\n")
    return 0


def build(version: str, kernel: str) -> int:
    """The modules of one version for one kernel."""
    out = sys.stdout
    out.write(f"Loading new nvidia/{version} DKMS files...\nBuilding for {kernel}\n")
    if not (MODULES / kernel / "build").exists():
        out.write(
            f"Module build for kernel {kernel} was skipped since the\n"
            "kernel headers for this kernel do not seem to be installed.\n"
        )
        return 0
    tree = Path("/var/lib/dkms/nvidia", version)
    if is_on("postinst_fails"):
        log = tree / "build/make.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(
            "nvidia/nv-dmabuf.c:41:9: error: too few arguments to function"
            " 'dma_buf_attachment_is_dynamic'\n",
            encoding="utf-8",
        )
        complain("Building module(s)...(bad exit status: 2)")
        complain(f"Error! Bad return status for module build on kernel: {kernel} (x86_64)")
        complain(f"Consult {log} for more information.")
        return 10
    source = Path("/usr/src", f"nvidia-{version}")
    built = tree / kernel / "x86_64/module"
    target = MODULES / kernel / "updates/dkms"
    for folder in (built, target):
        folder.mkdir(parents=True, exist_ok=True)
    signature = signing_mark()
    for name in FILES:
        if not (source / name).exists():
            continue
        data = (source / name).read_bytes() + signature
        for folder in (built, target):
            fresh = folder / f".{name}"
            fresh.write_bytes(data)
            fresh.replace(folder / name)
        out.write(f"Installing {target / name}\n")
    depmod(kernel)
    return 0


def signing_mark() -> bytes:
    """What signing appends, where DKMS is told a key and its certificate."""
    folder = Path("/etc/dkms/framework.conf.d")
    text = ""
    for path in [Path("/etc/dkms/framework.conf"), *sorted(folder.glob("*.conf"))]:
        with contextlib.suppress(OSError):
            text += path.read_text(encoding="utf-8") + "\n"
    found = re.findall(r'^\s*mok_certificate\s*=\s*"?([^"\n]+?)"?\s*$', text, re.MULTILINE)
    standard = [Path("/var/lib/dkms/mok.pub"), Path("/var/lib/shim-signed/mok/MOK.der")]
    for path in [*(Path(name) for name in reversed(found)), *standard]:
        if path.is_file():
            return b"~Module signature appended~ " + fingerprint(path).encode() + b"\n"
    return b""


def fingerprint(path: Path) -> str:
    """The mark of a certificate: the SHA-1 of its file, as mokutil shows it without colons."""
    import hashlib  # noqa: PLC0415 - seldom needed

    return hashlib.sha1(path.read_bytes()).hexdigest()  # noqa: S324 - what mokutil shows


def undkms(words: list[str]) -> int:
    """Take the modules of a version away from every kernel."""
    version = words[0]
    for path in MODULES.glob("*/updates/dkms/nvidia*.ko"):
        if modinfo(path).get("version") == version:
            path.unlink()
    for kernel in {path.parent.name for path in MODULES.glob("*/modules.dep")}:
        depmod(kernel)
    shutil.rmtree(Path("/var/lib/dkms/nvidia", version), ignore_errors=True)
    with contextlib.suppress(OSError):
        Path("/var/lib/dkms/nvidia").rmdir()
    return 0


def depmod(kernel: str) -> None:
    """Write the index of a kernel's modules."""
    subprocess.run(["depmod", kernel], check=False, capture_output=True)  # noqa: S603, S607 - fixed


# --- show


def show(now: Loaded) -> None:
    """Make the trees say what is loaded; the bound folders stay, their content changes."""
    machine = hardware()
    write_atomic(RUN / "loaded.json", json.dumps(now) + "\n")
    write_pci(RUN / "pci", machine, now)
    write_proc(RUN / "proc-driver", machine, now)
    write_sys_modules(RUN / "sys-module", now)
    (RUN / "modules").write_text(modules_text(now), encoding="ascii")
    make_nodes(machine, now)


def write_atomic(path: Path, text: str) -> None:
    """Write a file that nobody sees half written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def driver_of(device: dict[str, Any], now: Loaded) -> str:
    """The kernel driver that has a device."""
    driver: str = device["driver"]
    if not driver.startswith("nvidia"):
        return driver
    if "nouveau" in now and driver == "nvidia":
        return "nouveau"
    return driver if "nvidia" in now else ""


def write_pci(folder: Path, machine: dict[str, Any], now: Loaded) -> None:
    """One folder for each device, as sysfs has it."""
    for device in machine["devices"]:
        entry = folder / device["address"]
        if not entry.exists():
            entry.mkdir(parents=True)
            values = {
                "vendor": f"0x{device['vendor']}",
                "device": f"0x{device['device']}",
                "class": f"0x{device['class']}",
                "subsystem_vendor": f"0x{device['subsystem_vendor']}",
                "subsystem_device": f"0x{device['subsystem_device']}",
                "numa_node": str(device["numa_node"]),
                "revision": "0xa1",
                "enable": "1",
            }
            for name, value in values.items():
                (entry / name).write_text(value + "\n", encoding="ascii")
            if (device["vendor"], device["device"]) == SWITCH_MANAGEMENT:
                (entry / "vpd").write_bytes(b"\x82\x1c\x00SW_MNG (simulated)")
        link = entry / "driver"
        link.unlink(missing_ok=True)
        if driver := driver_of(device, now):
            link.symlink_to(f"/sys/bus/pci/drivers/{driver}")


def write_proc(folder: Path, machine: dict[str, Any], now: Loaded) -> None:
    """What the driver shows below /proc/driver, where it is loaded."""
    if "nvidia" not in now:
        shutil.rmtree(folder / "nvidia", ignore_errors=True)
        return
    version, flavour = now["nvidia"]["version"], now["nvidia"]["flavour"]
    (folder / "nvidia/gpus").mkdir(parents=True, exist_ok=True)
    write_atomic(
        folder / "nvidia/version",
        f"NVRM version: NVIDIA UNIX {flavour}  {version}  Release Build  (sandbox)  \n"
        "GCC version:  gcc version 12.2.0 (simulated)\n",
    )
    write_atomic(
        folder / "nvidia/params",
        "ModifyDeviceFiles: 1\nDeviceFileMode: 438\nNvLinkDisable: 0\n"
        "OpenRmEnableUnsupportedGpus: 1\n",
    )
    for minor, gpu in enumerate(machine["gpus"]):
        entry = folder / "nvidia/gpus" / gpu["address"]
        entry.mkdir(exist_ok=True)
        write_atomic(
            entry / "information",
            f"Model: \t\t {machine['name']}\nIRQ:   \t\t {40 + minor}\n"
            f"GPU UUID: \t {gpu['uuid']}\nVideo BIOS: \t {machine['vbios']}\n"
            "Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {gpu['address']}\nDevice Minor: \t {minor}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n",
        )


def write_sys_modules(folder: Path, now: Loaded) -> None:
    """What /sys/module has of the simulated modules; the real ones are links beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NEEDS:
        entry = folder / name
        if name not in now:
            shutil.rmtree(entry, ignore_errors=True)
            continue
        (entry / "holders").mkdir(parents=True, exist_ok=True)
        needed, held = users_of(name, now)
        values = {"refcnt": str(len(needed) + held), "initstate": "live", "taint": "OE"}
        if version := now[name].get("version"):
            values["version"] = version
        for key, value in values.items():
            write_atomic(entry / key, value + "\n")
        for holder in NEEDS:
            link = entry / "holders" / holder
            link.unlink(missing_ok=True)
            if holder in needed:
                link.symlink_to(f"/sys/module/{holder}")


def modules_text(now: Loaded) -> str:
    """The kernel's own list of modules, with the simulated ones in front."""
    lines = []
    for name in reversed(list(now)):
        needed, held = users_of(name, now)
        by = "".join(f"{other}," for other in needed) or "-"
        flags = "" if name == "nouveau" else " (OE)"
        if now[name].get("flavour", "").startswith("x86_64"):
            flags = " (POE)"
        lines.append(f"{name} {SIZES[name]} {len(needed) + held} {by} Live 0x0{flags}\n")
    with contextlib.suppress(OSError):
        own = (RUN / "modules-of-machine").read_text(encoding="ascii")
        lines.append(own)
    return "".join(lines)


def make_nodes(machine: dict[str, Any], now: Loaded) -> None:
    """The device files, while the driver is loaded."""
    names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    names += [f"nvidia{index}" for index in range(len(machine["gpus"]))]
    switches = [d for d in machine["devices"] if d["driver"] == "nvidia-nvswitch"]
    if switches:
        names.append("nvidia-nvswitchctl")
        names += [f"nvidia-nvswitch{index}" for index in range(len(switches))]
    for name in names:
        path = Path("/dev", name)
        if "nvidia" not in now:
            continue
        with contextlib.suppress(OSError):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*NULL))
            path.chmod(0o666)
        if not path.exists():
            path.touch()


def link_real(source: Path, made: Path, hidden: tuple[str, ...] = ()) -> None:
    """Keep a folder of the machine reachable before it is covered, and link its entries."""
    kept = RUN / f"real-{made.name}"
    kept.mkdir(parents=True, exist_ok=True)
    made.mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        return
    bind(source, str(kept))
    for entry in kept.iterdir():
        if entry.name not in hidden:
            (made / entry.name).symlink_to(entry)


def write_firmware(folder: Path) -> None:
    """The EFI variables of a machine with Secure Boot; without the fault, what the machine has."""
    efi = folder / "efi/efivars"
    if not is_on("secure_boot"):
        return
    efi.mkdir(parents=True)
    for name, value in (("SecureBoot", 1), ("SetupMode", 0)):
        (efi / f"{name}-{GUID}").write_bytes(bytes((6, 0, 0, 0, value)))


def bind(source: Path, target: str) -> None:
    """Show one path in the place of another."""
    mount("--bind", str(source), target)


def mount(*words: str) -> None:
    """Mount something."""
    subprocess.run(["mount", *words], check=True)  # noqa: S603, S607 - fixed


def cover(made: Path, target: str) -> None:
    """Show a made folder as one of /sys, which in a container lacks many that a machine has."""
    if not Path(target).is_dir():
        mount("-o", "remount,rw", "/sys")
        Path(target).mkdir()
        mount("-o", "remount,ro", "/sys")
    bind(made, target)


def say(text: str) -> None:
    """A line in the kernel's log, as dmesg and `journalctl -k` show it on this host."""
    if not text:
        return
    row = {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "time": time.time(),
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME) - boot_time(),
        "text": text,
    }
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps(row) + "\n")


def boot_time() -> float:
    """When this guest booted, on the machine's clock."""
    try:
        return float((RUN / "booted").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot() -> None:
    """Make the trees and show them."""
    machine = hardware()
    for name in ("pci", "proc-driver"):
        (RUN / name).mkdir(parents=True, exist_ok=True)
    write_atomic(RUN / "booted", f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
    say(f"Linux version {os.uname().release} (simulated log of the llmetal sandbox)")
    with contextlib.suppress(OSError):
        shutil.copyfile("/proc/modules", RUN / "modules-of-machine")
    link_real(Path("/sys/module"), RUN / "sys-module", hidden=tuple(NEEDS))
    link_real(Path("/sys/firmware"), RUN / "sys-firmware", hidden=("efi",))
    write_firmware(RUN / "sys-firmware")
    now: Loaded = {}
    if any(device["driver"].startswith("nvidia") for device in machine["devices"]):
        load_at_boot(now)
    show(now)
    bind(RUN / "pci", "/sys/bus/pci/devices")
    bind(RUN / "proc-driver", "/proc/driver")
    cover(RUN / "sys-module", "/sys/module")
    cover(RUN / "sys-firmware", "/sys/firmware")
    if Path("/proc/modules").exists():
        bind(RUN / "modules", "/proc/modules")


def load_at_boot(now: Loaded) -> None:
    """What udev would load for the devices."""
    if is_on("nouveau") and not is_blacklisted("nouveau"):
        insert("nouveau", now)
        return
    for name in AT_BOOT:
        if is_blacklisted(name) or not module_file(name).exists():
            continue
        try:
            insert(name, now)
        except RefusalError as refusal:
            say(refusal.log_line)
            return


def main() -> int:
    """Be the program that is asked for."""
    name, *words = sys.argv[1:]
    programs = {"modprobe": modprobe, "rmmod": rmmod, "lsmod": lsmod}
    programs |= {"dkms": dkms, "undkms": undkms, "dkms-tool": dkms_tool}
    if name == "boot":
        boot()
    elif name == "log":
        say(" ".join(words))
    elif name == "log-xid":
        address = hardware()["gpus"][int(words[0])]["address"].rpartition(".")[0]
        say(f"NVRM: Xid (PCI:{address}): {words[1]}, {words[2]}")
    elif name == "newer":
        sys.stdout.write(f"{NEWER}\n")
    elif name == "refresh" or name in programs:
        RUN.mkdir(exist_ok=True)
        with (RUN / "lock").open("w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if name in programs:
                return programs[name](words)
            show(loaded())
    else:
        complain(f"kernel.py: there is no {name}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
