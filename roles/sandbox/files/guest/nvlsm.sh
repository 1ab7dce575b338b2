#!/bin/sh
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands for the subnet manager of NVLink 5: it runs, and nothing else.
exec sleep infinity
