"""What ties a supervisor to the launcher that forked it: a SOCK_SEQPACKET pair with JSON messages.

A message is whole in the kernel's buffer before `send` returns, so that it arrives even when its sender dies next:
what a supervisor said before it acted is known.

    supervisor to launcher   {"locked": true}            it holds the run's lock
                             {"refused": "why"}          it does not, and leaves
                             {"leader": {...}} + pidfd   the leader, before any user code runs
                             {"done": true}              all is discharged, no successor is needed
    launcher to supervisor   {"witness": {...}}          the leader's exit, reaped by the launcher
"""

from __future__ import annotations

import json
import socket
from typing import Any

from spurstepd.varlink import passed_fds

_BYTES = 8192
_ANCILLARY = socket.CMSG_SPACE(16)


class Umbilical:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: dict[str, Any], fd: int | None = None) -> bool:
        """Say `message`; False where the other side is gone or does not listen: nobody waits for that."""
        data = json.dumps(message).encode()
        try:
            if fd is None:
                self._end.send(data, socket.MSG_NOSIGNAL)
            else:
                socket.send_fds(self._end, [data], [fd], socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """The next message and its descriptor. None: the other side is gone. BlockingIOError: there is none now."""
        try:
            data, ancillary, _flags, _address = self._end.recvmsg(_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        if not data:
            return None
        fds = passed_fds(ancillary)
        return json.loads(data), fds[0] if fds else None

    def close(self) -> None:
        self._end.close()


def pair() -> tuple[Umbilical, Umbilical]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Umbilical(one), Umbilical(other)
