"""Names of users and groups for their numbers, asked of the name service in a thread and remembered for a while.

A name service that hangs must not stop the controller: after a moment the number stands for the name.
"""

from __future__ import annotations

import asyncio
import grp
import pwd
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PATIENCE_S = 3.0
KEPT_S = 600.0


class Accounts:
    """Owns the thread and what it found. Lives as long as the daemon."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(2, thread_name_prefix="accounts")
        self._known: dict[tuple[str, int], tuple[str, float]] = {}

    async def user(self, uid: int) -> str:
        return await self._look("user", uid, lambda: pwd.getpwuid(uid).pw_name)

    async def group(self, gid: int) -> str:
        return await self._look("group", gid, lambda: grp.getgrgid(gid).gr_name)

    async def _look(self, kind: str, number: int, ask: Callable[[], str]) -> str:
        name, until = self._known.get((kind, number), ("", 0.0))
        if time.monotonic() < until:
            return name
        asked = asyncio.get_running_loop().run_in_executor(self._thread, ask)
        try:
            name = await asyncio.wait_for(asyncio.shield(asked), PATIENCE_S)
        except KeyError:
            name = str(number)
        except TimeoutError:
            return name or str(number)
        self._known[kind, number] = (name, time.monotonic() + KEPT_S)
        return name

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
