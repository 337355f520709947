"""A run from its directory to its release, without an agent."""

from __future__ import annotations

import pytest

from tests.spurstepd.conftest import Bench, exit_of

EXITS = {
    "exit 0": ("exit 0", 0),
    "exit 7": ("exit 7", 7 << 8),
    "exit 255": ("exit 255", 255 << 8),
    "kill -9 itself": ("kill -9 $$", 9),
    "TERM itself": ("kill -15 $$", 15),
}


@pytest.mark.parametrize("script, status", EXITS.values(), ids=EXITS)
def test_exit_is_what_waitid_saw(bench: Bench, script: str, status: int) -> None:
    bench.start_launcher()
    run = bench.start(f"#!/bin/bash\n{script}\n")
    state = run.finish()
    assert exit_of(state) == ("waitid", status)
