"""HOST:PORT."""

from __future__ import annotations

import pytest

from spur.addresses import is_loopback, join, split


@pytest.mark.parametrize(
    ("text", "host", "port"), [("a:1", "a", 1), ("[::1]:6817", "::1", 6817), ("127.0.0.1:0", "127.0.0.1", 0)]
)
def test_splits_and_joins(text: str, host: str, port: int) -> None:
    assert split(text) == (host, port)
    assert join(host, port) == text


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:x", "a:-1", "a:70000", "::1:5", "a:1 ", "a:²"])
def test_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"is \""):
        split(text)


def test_knows_what_only_this_machine_reaches() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "n1", "127.0.0.1.example.org", ""))
