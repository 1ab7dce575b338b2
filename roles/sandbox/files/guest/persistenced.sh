#!/bin/sh
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands for nvidia-persistenced: stays while there is a driver, and holds its devices.
hardware=/usr/lib/sandbox-hardware
if [ ! -e /proc/driver/nvidia/version ] || [ -e $hardware/faults/persistence_dead ]; then
  echo "nvidia-persistenced failed to initialize. Check syslog for more details." >&2
  exit 1
fi
(sleep 0.2 && $hardware/kernel.py refresh) &
exec sleep infinity 3</dev/nvidiactl 4</dev/nvidia0
