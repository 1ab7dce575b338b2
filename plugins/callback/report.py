# Copyright: the llmetal developers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback report: writes the report of a site run, however the run ended."""

from __future__ import annotations

DOCUMENTATION = r"""
name: report
type: notification
short_description: Write the report of a site run
version_added: 0.1.0
author: The llmetal developers (@llmetal)
description:
  - Writes C(report.json), C(report.md) and C(index.html) into a folder named after the time in UTC,
    with stages and seconds, changes, versions, proofs, warnings, refusals and failures.
  - Does nothing in runs without a play that belongs to a stage of C(site.yml).
requirements:
  - enabled in C(callbacks_enabled)
options:
  report_dir:
    description: Folder of the reports, below the current one where it is relative.
    type: path
    default: reports
    env:
      - name: LLMETAL_REPORT_DIR
    ini:
      - section: callback_report
        key: report_dir
"""

import time
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.llmetal.inference.plugins.module_utils.files import write_atomic
from ansible_collections.llmetal.inference.plugins.plugin_utils import report

_PLAN = "llmetal.inference.plan"


class CallbackModule(CallbackBase):  # type: ignore[misc] # Ansible has no types
    """Hands Ansible's events to the report, and writes it at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "llmetal.inference.report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        """Begin with no report: the first play of a stage begins it."""
        super().__init__()
        self._report: report.Report | None = None
        self._began = time.time()

    def v2_playbook_on_play_start(self, play: Any) -> None:  # noqa: ANN401 - Ansible has no types
        """A play begins."""
        title = str(play.get_name())
        if self._report is None and report.stage_of(title) is not None:
            self._report = self._new()
        if self._report is not None:
            self._report.play(title, time.time())

    def v2_runner_on_ok(self, result: Any) -> None:  # noqa: ANN401 - likewise
        """A task ended well on a host."""
        self._take(result, "changed" if result.result.get("changed") else "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ANN401, FBT001, FBT002 - Ansible calls it so
        """A task failed on a host."""
        self._take(result, "ignored" if ignore_errors else "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:  # noqa: ANN401 - likewise
        """A task was not for a host."""
        self._take(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:  # noqa: ANN401 - likewise
        """A host does not answer."""
        self._take(result, "unreachable")

    def v2_playbook_on_stats(self, stats: Any) -> None:  # noqa: ANN401, ARG002 - likewise
        """The run is over: write the report, and say where it is."""
        if self._report is None:
            return
        self._report.end(time.time())
        data = self._report.as_dict()
        try:
            folder = _free(Path(self.get_option("report_dir")) / report.folder_name(data))
            write_atomic(folder / "report.md", report.as_markdown(data))
            write_atomic(folder / "index.html", report.as_html(data))
            write_atomic(folder / "report.json", report.as_json(data))
        except OSError as error:
            self._display.warning(f"the report cannot be written: {error}")
            return
        self._display.display(f"Report: {folder / 'index.html'}")

    def _new(self) -> report.Report:
        options = context.CLIARGS
        inventory = options.get("inventory") or ()
        return report.Report(
            self._began,
            check=bool(options.get("check")),
            inventory=[str(one) for one in inventory],
            limit=str(options["subset"]) if options.get("subset") else None,
        )

    def _take(self, result: Any, status: str) -> None:  # noqa: ANN401 - Ansible has no types
        if self._report is None:
            return
        task = result.task
        role = getattr(task, "_role", None)
        seen = report.Task(
            role=str(role.get_name()).rpartition(".")[2] if role else "",
            name=str(task.name or task.action),
            is_plan=task.resolved_action == _PLAN,
        )
        self._report.result(str(result.host.get_name()), seen, status, result.result)


def _free(wanted: Path) -> Path:
    """Make a new folder of a name; with a number behind it where there is one."""
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
        else:
            return folder
