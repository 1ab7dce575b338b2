#!/usr/bin/python
# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module survey: everything that the planner needs to know of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: survey
short_description: Report everything that the planner needs to know of a host
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Looks once at operating system, kernel, packages, package sources, GPUs, disks, Python
    interpreters, services, the kind of machine, and what earlier runs of llmetal left.
  - Changes nothing, needs no root, and does not fail because a tool is missing. What cannot be read
    is null.
options:
  paths:
    description: Folders whose disks are reported besides the root's. They need not be there yet.
    type: list
    elements: str
    default: []
  config:
    description: Folder of the installed lock and of the receipts.
    type: path
    default: /etc/llmetal
  run:
    description: Folder of the run lock.
    type: path
    default: /run/llmetal
  scope:
    description: Whether the services are the system's or the user's.
    type: str
    choices: [system, user]
    default: system
  driver_chooser:
    description:
      - Whether C(ubuntu-drivers) is asked what it recommends, which takes seconds. V(data) does not
        ask it.
    type: str
    choices: [data, ubuntu_drivers]
    default: data
extends_documentation_fragment:
  - llmetal.inference.attributes.read_only
"""

EXAMPLES = r"""
- name: Look at the host
  llmetal.inference.survey:
    paths:
      - /opt/llmetal
      - /var/lib/llmetal/models
  register: looked
"""

RETURN = r"""
facts:
  description: What the host is and has.
  type: dict
  returned: always
  contains:
    schema:
      description: Form of this result.
      type: int
      sample: 1
    os:
      description: Distribution, as its identifiers, C(key) (both in one) and C(pretty).
      type: dict
      sample:
        id: debian
        version_id: "12"
        codename: bookworm
        key: debian12
        pretty: Debian GNU/Linux 12 (bookworm)
    arch:
      description: Machine architecture.
      type: str
      sample: x86_64
    kernel:
      description:
        - Running and installed kernels, boot, headers and compiler for modules, and Secure Boot
          (V(enabled), V(disabled), V(unsupported), V(unknown)). C(headers.build) says whether the
          build folder of the running kernel is there, C(headers.complete) whether it is configured.
      type: dict
      sample:
        running: 6.1.0-40-amd64
        boot_id: 0c2e0e0f-5b1c-4b55-8a39-5f4e2e7f1c11
        installed: [6.1.0-40-amd64]
        headers:
          package: linux-headers-6.1.0-40-amd64
          installed: false
          version: null
          build: false
          complete: false
        compiler: {path: /usr/bin/gcc, version: 12.2.0}
        secure_boot: disabled
    memory_bytes:
      description: Memory in bytes.
      type: int
      sample: 2164663517184
    cpus:
      description: Processors.
      type: int
      sample: 256
    cpu_flags:
      description: Instruction sets that engines ask for, of amx_tile, avx2, avx512f.
      type: list
      elements: str
      sample: [avx2, avx512f]
    disks:
      description: Size of and room on the disks, in bytes, and whether they are mounted read-only.
      type: list
      elements: dict
      sample: [{path: /, size_bytes: 1888000000000, free_bytes: 1750000000000, read_only: false}]
    packages:
      description: Installed packages that have to do with driver, kernel, compiler and Python.
      type: dict
      sample: {gcc-12: 12.2.0-14+deb12u1}
    held:
      description: Packages on hold.
      type: list
      elements: str
      sample: []
    broken:
      description: Packages that an interrupted or failed transaction left half done.
      type: list
      elements: str
      sample: []
    apt:
      description: What apt would do. Null stands for what could not be read.
      type: dict
      contains:
        sources:
          description: Declared package sources, each with the keys of its own keyring.
          type: list
          elements: dict
          sample:
            - file: /etc/apt/sources.list
              types: [deb]
              uris: ["http://mirror.example/debian"]
              suites: [bookworm]
              components: [main]
              signed_by: null
              fingerprints: null
        trusted:
          description: Fingerprints of the keys for sources without a keyring of their own.
          type: list
          elements: str
          sample: [4D64FEC119C2029067D6E791F8D2585B8783D481]
        proxy:
          description: Proxies that apt uses, without user and password.
          type: list
          elements: str
          sample: ["http://proxy.example:3128"]
        unattended:
          description: Whether packages are upgraded without anybody asking.
          type: bool
          sample: true
        unattended_spares:
          description: Patterns of packages that these upgrades leave alone.
          type: list
          elements: str
          sample: [nvidia-.*]
        locked_by:
          description: Programs that hold a lock of apt or dpkg; null where that needs root.
          type: list
          elements: dict
          sample: [{path: /var/lib/dpkg/lock-frontend, pid: 812, program: /usr/bin/apt-get}]
        cloud_init:
          description: V(running) or V(done); null where cloud-init does not run on this host.
          type: str
          sample: done
    gpu:
      description: Result of M(llmetal.inference.gpu_info).
      type: dict
      sample: {gpus: [], switches: [], reboot_required: false}
    gpu_health:
      description: How each GPU is, besides what C(gpu) says. Null stands for what cannot be read.
      type: list
      elements: dict
      contains:
        pci_address:
          description: Address on the PCI bus.
          type: str
          sample: "0000:1b:00.0"
        memory_used_mib:
          description: Memory in use, in MiB.
          type: int
          sample: 4
        retirement_pending:
          description: Whether memory pages wait for a reset to be retired.
          type: bool
          sample: false
        sick:
          description: Values for which nvidia-smi prints an error.
          type: list
          elements: str
          sample: []
        link:
          description:
            - PCIe link, in lanes and as the kernel names speeds. C(slot_width) is what the bridge
              above can. The speed falls when a GPU idles.
          type: dict
          sample:
            {width: 16, max_width: 16, slot_width: 16, speed: 2.5 GT/s, max_speed: 32.0 GT/s}
        aer_fatal:
          description: Fatal errors on the PCIe link since the boot.
          type: int
          sample: 0
        aer_nonfatal:
          description: Uncorrected errors on the PCIe link since the boot that were not fatal.
          type: int
          sample: 0
        acs:
          description: Whether a bridge above sends traffic between devices to the root; needs root.
          type: bool
          sample: false
        processes:
          description: Processes that use the GPU, with their systemd unit and working folder.
          type: list
          elements: dict
          sample:
            - pid: 4711
              program: VLLM::EngineCore
              unit: llmetal-chat.service
              folder: /var/cache/llmetal/engines/chat
    iommu:
      description: Whether the IOMMU is on, and the types of its groups.
      type: dict
      sample: {"on": true, types: [identity]}
    kernel_log:
      description:
        - Xids since the boot, counted by GPU and number. A GPU off the bus counts as Xid 79.
        - C(whole) says whether the log still reaches back to the boot. Null where there is no GPU,
          or no log can be read.
      type: dict
      sample:
        source: dmesg
        whole: true
        xids:
          - pci_address: "0000:1b:00.0"
            xid: 63
            count: 2
            last: "NVRM: Xid (PCI:0000:1b:00): 63, Row Remapper: New row marked for remapping"
    ubuntu_drivers:
      description:
        - What C(ubuntu-drivers) recommends. Null where O(driver_chooser) does not ask it, or where
          there is no GPU.
      type: dict
      contains:
        path:
          description: The program, or null where it is not installed.
          type: str
          sample: /usr/bin/ubuntu-drivers
        server:
          description:
            - The package that C(ubuntu-drivers list --gpgpu --recommended) names for computing.
              Where no package has modules for the kernel, those that DKMS builds count too.
          type: str
          sample: nvidia-driver-595-server-open
        desktop:
          description: The package that C(ubuntu-drivers devices) marks as recommended.
          type: str
          sample: nvidia-driver-595-open
        offered:
          description: The driver packages that C(ubuntu-drivers devices) lists.
          type: list
          elements: str
          sample: [nvidia-driver-595-open, nvidia-driver-595-server-open]
        said:
          description: What it said where it recommends nothing.
          type: str
          sample: null
    modules:
      description:
        - Whether the running kernel has nouveau, files that keep nouveau and nova_core from being
          loaded, kernels that have an nvidia module, releases known to DKMS, and what the installer
          of a .run file left.
      type: dict
      sample:
        nouveau: true
        kept_out: {nouveau: [/etc/modprobe.d/llmetal-nvidia.conf], nova_core: []}
        kernels: [6.1.0-40-amd64]
        dkms: [nvidia/580.178.04]
        installer: null
    libraries:
      description: Versions of the driver's libraries that the loader knows; null if not readable.
      type: dict
      sample: {libnvidia-ml: [580.178.04], libcuda: [580.178.04]}
    toolkits:
      description: CUDA toolkits, compilers and the settings that lead programs to them.
      type: dict
      contains:
        found:
          description: Toolkits below C(/usr/local), each once.
          type: list
          elements: dict
          sample:
            - paths: [/usr/local/cuda, /usr/local/cuda-13.0]
              version: 13.0.88
              nvcc: true
              ptxas: true
        nvcc:
          description: The nvcc that services find on their path, or null.
          type: dict
          sample: {path: /usr/bin/nvcc, version: 11.8.89}
        compilers:
          description: C compilers that services find on their path, each null where there is none.
          type: dict
          sample: {cc: /usr/bin/cc, gcc: /usr/bin/gcc, clang: null}
        settings:
          description: Where LD_LIBRARY_PATH, CUDA_HOME and CUDA_PATH are set for everybody.
          type: list
          elements: dict
          sample:
            - file: /etc/environment
              name: LD_LIBRARY_PATH
              value: /usr/local/cuda-12.1/lib64
        loader_folders:
          description: Folders of toolkits that the loader searches for everybody.
          type: list
          elements: str
          sample: [/usr/local/cuda/targets/x86_64-linux/lib]
    docker:
      description:
        - Docker, its configuration, and what its daemon says of itself. C(kind) is V(none), V(deb),
          V(snap) or V(other). C(daemon) is null where none answers or asking needs root.
      type: dict
      sample:
        kind: deb
        path: /usr/bin/docker
        context: default
        daemon_json:
          {exists: true, valid: true, error: null, runtimes: [nvidia], cgroup_driver: null}
        daemon:
          version: 28.5.1
          runtimes: [io.containerd.runc.v2, nvidia, runc]
          default_runtime: runc
          cgroup_driver: systemd
          kernel: 6.1.0-40-amd64
          rootless: false
        containerd_nvidia: null
    container_toolkit:
      description:
        - Programs of the NVIDIA Container Toolkit, its mode, whether the GPUs have links in
          C(/dev/char), and its CDI files with their driver and the paths that are gone.
      type: dict
      sample:
        programs: [nvidia-ctk, nvidia-container-runtime]
        mode: auto
        device_links: false
        cdi:
          - file: /run/cdi/nvidia.yaml
            version: 580.178.04
            paths: 41
            missing: 0
            missing_first: []
    limits:
      description:
        - What a service may use, in bytes. C(memlock_bytes) is the default of systemd,
          C(memlock_hard_bytes) the limit of this user, -1 means none.
        - C(memory_limit_bytes) is the lowest limit of the control groups, null where there is none.
      type: dict
      sample:
        memlock_bytes: 8388608
        memlock_hard_bytes: -1
        infiniband: [mlx5_0]
        shm_bytes: 1082331758592
        shm_free_bytes: 1082331758592
        tmp_file_system: ext4
        memory_available_bytes: 2100000000000
        memory_limit_bytes: null
    ports:
      description: TCP ports that are listened on; C(process) is null where it cannot be read.
      type: list
      elements: dict
      sample:
        - address: 0.0.0.0
          port: 8000
          uid: 998
          process:
            pid: 4711
            program: /opt/llmetal/environments/vllm/bin/python
            unit: llmetal-chat.service
            folder: /var/cache/llmetal/engines/chat
    python:
      description: Python interpreters, and whether each has the headers to compile against.
      type: list
      elements: dict
      sample: [{path: /usr/bin/python3.11, version: 3.11.2, headers: true}]
    receipts:
      description: Receipts by role; one that cannot be read says C(unreadable) and why.
      type: dict
      sample: {}
    lock_sha256:
      description: Hash of the installed lock, or null.
      type: str
      sample: null
    services:
      description: Units of llmetal, of the driver, and of upgrades by themselves.
      type: dict
      sample: {nvidia-persistenced.service: {active: active, enabled: enabled}}
    platform:
      description:
        - The kind of machine, whether systemd and the user's manager are usable, and whether it is
          a node of Kubernetes whose GPU operator brings the driver.
      type: dict
      sample:
        wsl: false
        dgx: false
        jetson: false
        container: null
        virtualization: kvm
        systemd: true
        systemd_user: false
        kubelet: false
        operator_driver: false
    user:
      description: Who asked.
      type: dict
      sample: {name: root, uid: 0, home: /root}
    run_lock:
      description: The run lock, or null.
      type: dict
      sample: null
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.host_facts import collect

ARGUMENTS: dict[str, Any] = {
    "paths": {"type": "list", "elements": "str", "default": []},
    "config": {"type": "path", "default": "/etc/llmetal"},
    "run": {"type": "path", "default": "/run/llmetal"},
    "scope": {"type": "str", "choices": ["system", "user"], "default": "system"},
    "driver_chooser": {"type": "str", "choices": ["data", "ubuntu_drivers"], "default": "data"},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        facts = collect(
            paths=params["paths"],
            config=params["config"],
            run_dir=params["run"],
            scope=params["scope"],
            driver_chooser=params["driver_chooser"],
        )
    except LlmetalError as error:
        module.fail_json(**error.as_result())
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
