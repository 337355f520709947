"""What the controller's tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import grpc
import pytest

from tests.leftovers import descriptors
from tests.patience import wait_for
from tests.spurctld.site import Site


class MakeSite(Protocol):
    def __call__(self, **options: Any) -> Site: ...


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    """Makes controllers of the test's own kind."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Site(**options))


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """A controller of one node, n1, that has not registered."""
    return make_site()


@pytest.fixture(autouse=True)
def closed_connections(nothing_left: None) -> Iterator[None]:
    """gRPC closes the sockets of a channel a moment after the channel, and keeps some descriptors for good."""
    _ = nothing_left
    _warm_up()
    before = descriptors()
    yield

    def closed() -> bool:
        gc.collect()
        return descriptors().keys() <= before.keys()

    wait_for(closed, "gRPC closed its sockets", explain=lambda: str(descriptors()))


_warm = False


def _warm_up() -> None:
    global _warm
    if not _warm:
        channel = grpc.insecure_channel("127.0.0.1:1")
        with pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(0.05)
        channel.close()
        _warm = True
