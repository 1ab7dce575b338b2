#!/bin/sh
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands for nvidia-persistenced: stays while there is a driver.
if [ ! -e /proc/driver/nvidia/version ]; then
  echo "nvidia-persistenced failed to initialize. Check syslog for more details." >&2
  exit 1
fi
exec sleep infinity
