"""When a launcher has to leave spurd's unit, and how. tests/guest has the real systemd."""

from __future__ import annotations

import pytest

from spurd.scope import Origin, needed, scope_name, scoped, unit_of

UNIFIED = "0::/system.slice/spurd.service\n"
HYBRID = """3:memory:/system.slice/spurd.service
1:name=systemd:/system.slice/spurd.service
0::/system.slice/spurd.service
"""


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (UNIFIED, "spurd.service"),
        (HYBRID, "spurd.service"),
        ("0::/spur.slice/spur-runs-n1-7.scope/launcher\n", "spur-runs-n1-7.scope"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", ""),
        ("1:name=systemd:/\n0::/system.slice/other.service\n", ""),
        ("", ""),
    ],
)
def test_the_unit_of_a_process_is_the_innermost_in_its_cgroup(text: str, unit: str) -> None:
    assert unit_of(text) == unit


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (Origin(True, UNIFIED, notified=True, executed=True), True),
        (Origin(True, HYBRID, notified=True, executed=False), True),
        (Origin(True, UNIFIED, notified=False, executed=True), True),
        (Origin(True, UNIFIED, notified=False, executed=False), False),
        (Origin(False, UNIFIED, notified=True, executed=True), False),
        (Origin(True, "0::/user.slice/session-3.scope\n", notified=False, executed=True), False),
        (Origin(True, "0::/\n", notified=True, executed=True), False),
    ],
)
def test_only_a_service_of_systemd_needs_a_scope(origin: Origin, expected: bool) -> None:
    assert needed(origin) is expected


def test_a_scope_is_named_by_its_node_and_a_number() -> None:
    assert scope_name("n1", 4711) == "spur-runs-n1-4711.scope"
    assert scope_name("n-1", 7) == "spur-runs-n\\x2d1-7.scope"


def test_the_program_runs_delegated_and_without_a_limit_on_its_tasks() -> None:
    command = scoped(("spurstepd", "-x"), "n1", 7)
    assert command[0] == "systemd-run"
    assert command[-3:] == ("--", "spurstepd", "-x")
    assert {"--scope", "--slice=spur.slice", "--property=Delegate=yes", "--property=TasksMax=infinity"} <= set(command)
