"""A cluster with hooks that leave traces."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.endtoend.hooktraces import HookTraces

Traced = tuple[Cluster, HookTraces]


@pytest.fixture
def make_traced() -> Iterator[Callable[..., Traced]]:
    """Makes clusters whose prolog and epilog write down when they ran: `make_traced(nodes=..., config=...)`."""
    with ExitStack() as stack:

        def make(*, config: dict[str, Any] | None = None, **options: Any) -> Traced:
            traces = HookTraces(Path(f"/tmp/spur-t{secrets.token_hex(5)}"))
            hooks = {**traces.config, **(config or {}).get("hooks", {})}
            cluster = Cluster(traces.root, config={**(config or {}), "hooks": hooks}, start=False, **options)
            traces.write()
            stack.enter_context(cluster)
            cluster.start()
            return cluster, traces

        yield make


@pytest.fixture
def traced(make_traced: Callable[..., Traced]) -> Traced:
    """One node of one CPU, so that one job has to wait for the other."""
    return make_traced(nodes={"n1": {"cpus": 1}})
