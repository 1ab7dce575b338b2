# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done for a host, whatever is left of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.guest import (
    Bind,
    Reality,
    Steps,
    Wish,
    start_plan,
    steps_to_start,
)
from ansible_collections.llmetal.inference.plugins.module_utils.sandbox.settings import Settings

WISH = Wish(name="gpu-1", os="debian12", address="10.213.0.11", scenario="rtx_4090")
WHOLE = Reality(
    prepared_os="debian12",
    prepared_digest=WISH.digest,
    base="/cache/bookworm-1",
    base_exists=True,
    mounted=True,
    running=True,
)
ANEW = Steps(wipe=True, mount=True, configure=True, start=True)


@pytest.mark.parametrize(
    ("reality", "steps"),
    [
        (WHOLE, Steps()),
        (Reality(), ANEW),
        (replace(WHOLE, prepared_os="", running=False, mounted=False), ANEW),
        (replace(WHOLE, base_exists=False, running=False, mounted=False), ANEW),
        (replace(WHOLE, prepared_os=""), replace(ANEW, stop=True)),
        (replace(WHOLE, running=False), Steps(start=True)),
        (replace(WHOLE, running=False, mounted=False), Steps(mount=True, start=True)),
        (replace(WHOLE, prepared_digest="old"), Steps(stop=True, configure=True, start=True)),
    ],
    ids=[
        "as wished",
        "nothing there",
        "killed while preparing",
        "base gone",
        "unfinished and running",
        "powered off",
        "machine restarted",
        "other wish",
    ],
)
def test_steps(reality: Reality, steps: Steps) -> None:
    """Each state that an interrupted run can leave has its way to a running host."""
    assert steps_to_start(WISH, reality) == steps


def test_reset_makes_anew() -> None:
    """Whatever there is, and whatever system it had."""
    other = replace(WHOLE, prepared_os="debian13")
    assert steps_to_start(WISH, other, reset=True) == replace(ANEW, stop=True)


def test_another_system_is_refused() -> None:
    """A host's content is not thrown away unasked."""
    with pytest.raises(LlmetalError, match=r"is debian13, wanted debian12.*reset"):
        steps_to_start(WISH, replace(WHOLE, prepared_os="debian13"))


def test_binds_are_quoted() -> None:
    """A colon in a path does not end it."""
    wish = replace(WISH, binds=(Bind("/srv/a:b", "/mnt/x", read_only=True),))
    argv = start_plan(Settings(files=Path("/files")), wish)["argv"]
    assert "--bind-ro=/srv/a\\:b:/mnt/x" in argv


def test_digest_follows_the_wish() -> None:
    """Any change of the wish has the guest configured again."""
    assert WISH.digest != replace(WISH, scenario="").digest
    assert WISH.digest == replace(WISH).digest
