#!/bin/sh
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands for the fabric manager: starts only with a driver of exactly its own version.
version=@VERSION@
state=/proc/driver/nvidia/version
if [ "$1" = --version ]; then
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
if [ ! -e /usr/lib/sandbox-hardware/has_fabric ]; then
  echo "request to query NVSwitch device information failed with error: NV_WARN_NOTHING_TO_DO" >&2
  exit 1
fi
echo "$$" >/run/nvidia-fabricmanager/nv-fabricmanager.pid
echo "Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."
exec sleep infinity
