"""What callers want of the supervisor of one run, until it was carried out or refused.

A wish outlives the death of a supervisor: its successor is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from spurd.channel import Refused, Values
from spurd.runs import Ask, Order

Reply = asyncio.Future[Values]


class Wishes:
    """In the order in which they are to be carried out; `show` is told of them at every change."""

    def __init__(self, show: Callable[[tuple[Ask, ...]], None]) -> None:
        self._show = show
        self._tickets = count(1)
        self._open: dict[int, tuple[Ask, Reply]] = {}

    def add(self, order: Order, **parameters: int | str) -> Reply:
        """The future gives the reply or raises Refused; one that is cancelled takes the wish back."""
        ticket = next(self._tickets)
        reply: Reply = asyncio.get_running_loop().create_future()
        self._open[ticket] = (Ask(order, tuple(sorted(parameters.items())), ticket), reply)
        reply.add_done_callback(lambda _: self._drop(ticket))
        self._tell()
        return reply

    def settle(self, ask: Ask, outcome: Values | Refused) -> bool:
        """Tell whoever wished for `ask`; False where nobody did, or does any more."""
        _, reply = self._open.get(ask.ticket, (ask, None))
        if reply is None or reply.done():
            return False
        if isinstance(outcome, Refused):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)
        return True

    def end(self) -> None:
        """There is nobody any more who could carry out what is left."""
        for ask, _ in list(self._open.values()):
            self.settle(ask, Refused("NotRunning", {"phase": "released"}))

    def _drop(self, ticket: int) -> None:
        if self._open.pop(ticket, None) is not None:
            self._tell()

    def _tell(self) -> None:
        # A verdict goes before everything else.
        asks = [ask for ask, _ in self._open.values()]
        self._show(tuple(sorted(asks, key=lambda ask: (ask.order is not Order.TERMINATE, ask.ticket))))
