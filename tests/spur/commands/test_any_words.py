"""Whatever a command is called with, it ends with an exit code and says why; never with a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spur.commands import scancel, scontrol, sinfo, squeue
from spur.options import Option, Takes
from spur.sbatchoptions import OPTIONS as SBATCH
from tests.spur.controllerserver import ControllerServer

TABLES = {
    "sbatch": SBATCH,
    "scancel": scancel.OPTIONS,
    "scontrol": scontrol.OPTIONS,
    "sinfo": sinfo.OPTIONS,
    "squeue": squeue.OPTIONS,
}
VALUES = st.one_of(
    st.sampled_from(
        [
            "",
            "1",
            "0",
            "-1",
            "1-2",
            "a,b",
            "n[1-3]",
            "n[1",
            "all",
            "ALL",
            "NONE",
            "gpu:2",
            "x=y",
            "%i",
            "%.3j|%N",
            "P,-t",
        ]
        + ["jobid:3", "root", "R", "5:00", "1G", "999999999999", "USR1", "batch_script", "nodename=n1", "state=drain"]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
)
KEYWORDS = [keyword.name for keyword in scontrol.KEYWORDS] + ["job", "node", "config", "hostnames", "hostlist", "1"]


@st.composite
def calls(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(TABLES)))
    table: tuple[Option, ...] = tuple(one for one in TABLES[name] if one.name not in ("iterate", "wait"))
    words = [name]
    if name == "scontrol":
        words += draw(st.lists(st.sampled_from(KEYWORDS), max_size=3))
    for _ in range(draw(st.integers(0, 4))):
        option = draw(st.sampled_from(table))
        long = draw(st.sampled_from(option.long_names))
        short = option.letter and draw(st.booleans())
        words.append(f"-{option.letter}" if short else f"--{long}")
        if option.takes is not Takes.NOTHING and draw(st.booleans()):
            words[-1] += ("" if short else "=") + draw(VALUES)
        elif option.takes is Takes.VALUE:
            words.append(draw(VALUES))
    return words + draw(st.lists(VALUES, max_size=2))


@pytest.fixture(scope="module")
def server() -> Any:
    with ControllerServer() as running:
        yield running


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=calls(), stdin=st.sampled_from([b"", b"#!/bin/sh\n", b"show job\nquit x\n'\n"]))
def test_a_command_ends_in_order(
    words: list[str], stdin: bytes, server: ControllerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = server.run(tmp_path, *words, stdin=stdin)
    assert 0 <= result.code <= 255
    assert result.code == 0 or result.stderr or result.stdout or "-Q" in words or "--quiet" in words
