"""The loop of launcher and supervisor: descriptors and timers, on poll(2). asyncio would double their memory."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable

READ = select.POLLIN
WRITE = select.POLLOUT
PRIORITY = select.POLLPRI


class Timer:
    """A call that is due; `cancel` takes it back."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Reactor:
    """One thread's events. A callback gets the poll(2) bits that came. Times are of the monotonic clock, seconds."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signal_ends: tuple[int, int] | None = None

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call` when one of `events`, a hang-up or an error comes up on `fd`; again replaces."""
        self._calls[fd] = call
        self._poll.register(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`; before it is closed, since its number may come back at once."""
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def __contains__(self, fd: int) -> bool:
        return fd in self._calls

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + max(seconds, 0.0), call)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def on_signals(self, numbers: tuple[int, ...], call: Callable[[], None]) -> None:
        """Call `call` after any of the signals came, outside of the handler."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._signal_ends = (read, write)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _noted)
        self.watch(read, READ, lambda _: self._drain(read, call))

    def _drain(self, fd: int, call: Callable[[], None]) -> None:
        try:
            while os.read(fd, 512):
                pass
        except BlockingIOError:
            pass
        call()

    def run_once(self) -> None:
        """Wait for the next events or the next timer, and call."""
        for fd, bits in self._poll.poll(self._wait_ms()):
            call = self._calls.get(fd)  # an earlier call of this round may have forgotten it
            if call is not None:
                call(bits)
        self._run_timers()

    def _wait_ms(self) -> int | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0, int((self._timers[0][0] - time.monotonic()) * 1000) + 1)

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()

    def close_after_fork(self) -> None:
        """In a child: let go of the signal pipe, which the parent goes on using."""
        signal.set_wakeup_fd(-1)
        if self._signal_ends is not None:
            for fd in self._signal_ends:
                os.close(fd)


def _noted(number: int, frame: object) -> None:
    """A handler that does nothing: that there is one makes the kernel wake us, and a child's exec reset it."""
