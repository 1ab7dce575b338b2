#!/bin/sh
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands for the fabric manager: starts only with a driver of exactly its own version, which is the first argument.
# On a machine of NVLink 5 it starts the subnet manager, as on metal.
hardware=/usr/lib/sandbox-hardware
version=$1
state=/proc/driver/nvidia/version
if [ "$2" = --version ]; then
  echo "Fabric Manager version is : $version"
  exit 0
fi
if [ ! -e $state ]; then
  echo "request to query NVIDIA GPU driver version from NVSwitch driver failed" >&2
  exit 1
fi
loaded=$(sed -n 's/^NVRM version:.*  \([0-9][0-9.]*\)  .*/\1/p' $state)
if [ "$loaded" != "$version" ]; then
  echo "fabric manager NVIDIA GPU driver interface version $version don't match with driver version $loaded." \
    "Please update with matching NVIDIA driver package." >&2
  exit 1
fi
if [ ! -e $hardware/has_fabric ]; then
  echo "request to query NVSwitch device information failed with error: NV_WARN_NOTHING_TO_DO" >&2
  exit 1
fi
if [ -e $hardware/needs_nvlsm ]; then
  if [ ! -x /opt/nvidia/nvlsm/sbin/nvlsm ]; then
    echo "nvlsm: not found: the NVLink subnet manager has to be installed on this system (simulated)" >&2
    exit 1
  fi
  /opt/nvidia/nvlsm/sbin/nvlsm &
fi
echo "$$" >/run/nvidia-fabricmanager/nv-fabricmanager.pid
echo "Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."
(sleep 0.2 && $hardware/kernel.py refresh) &
exec sleep infinity 3</dev/nvidiactl 4</dev/nvidia0
