#!/bin/sh
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands for `dkms autoinstall`: builds (copies) the simulated module for one kernel.
set -e
version=@VERSION@
kernel=$1
echo "Loading new nvidia/$version DKMS files..."
echo "Building for $kernel"
if [ ! -e "/lib/modules/$kernel/build" ]; then
  echo "Module build for kernel $kernel was skipped since the"
  echo "kernel headers for this kernel do not seem to be installed."
  exit 0
fi
if [ -e /usr/lib/sandbox-hardware/faults/postinst_fails ]; then
  log=/var/lib/dkms/nvidia/$version/build/make.log
  mkdir -p "${log%/*}"
  echo "nvidia/nv-dmabuf.c:41:9: error: too few arguments to function 'dma_buf_attachment_is_dynamic'" >"$log"
  echo "Building module(s)...(bad exit status: 2)" >&2
  echo "Error! Bad return status for module build on kernel: $kernel (x86_64)" >&2
  echo "Consult $log for more information." >&2
  exit 10
fi
install -D -m 0644 "/usr/src/nvidia-$version/nvidia.ko" "/lib/modules/$kernel/updates/dkms/nvidia.ko"
echo "Installing /lib/modules/$kernel/updates/dkms/nvidia.ko"
depmod "$kernel" 2>/dev/null || true
