"""When the launcher has to leave spurd's unit, and what systemd is asked for. tests/guest has the real systemd."""

from __future__ import annotations

import pytest

from spurd.scope import Caller, needed, request, scope_name, unit_of

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
    ("caller", "expected"),
    [
        (Caller(True, UNIFIED, notified=True, executed=True), True),
        (Caller(True, HYBRID, notified=True, executed=False), True),
        (Caller(True, UNIFIED, notified=False, executed=True), True),
        (Caller(True, UNIFIED, notified=False, executed=False), False),
        (Caller(False, UNIFIED, notified=True, executed=True), False),
        (Caller(True, "0::/user.slice/session-3.scope\n", notified=False, executed=True), False),
        (Caller(True, "0::/\n", notified=True, executed=True), False),
    ],
)
def test_only_a_service_of_systemd_needs_a_scope(caller: Caller, expected: bool) -> None:
    assert needed(caller) is expected


def test_a_scope_is_named_by_node_and_launcher() -> None:
    assert scope_name("n1", 4711) == "spur-runs-n1-4711.scope"
    assert scope_name("n-1", 4711, attempt=2) == "spur-runs-n\\x2d1-4711-2.scope"


def test_the_request_delegates_and_limits_nothing() -> None:
    words = request("spur-runs-n1-7.scope", "n1", 7)
    text = " ".join(words)
    assert words[0] == "busctl"
    assert "spur-runs-n1-7.scope fail 7 " in text
    assert "Slice s spur.slice Delegate b true PIDs au 1 7 TasksMax t 18446744073709551615" in text
    assert words[-1] == "0"
