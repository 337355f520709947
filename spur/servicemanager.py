"""What a daemon tells systemd about itself, and the descriptors that systemd keeps for it.

The protocol is sd_notify(3) and sd_listen_fds(3): one datagram of NAME=VALUE lines to the socket in
NOTIFY_SOCKET. What is put into the descriptor store survives a crash and a restart of the daemon, and comes
back in LISTEN_FDS. Without systemd there is no such socket, and everything here does nothing and says so.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass

FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START
SEND_TIMEOUT_S = 1.0
NAME_LIMIT = 255
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class KeptDescriptor:
    """A descriptor that an earlier process of this unit left in the store. The caller owns it now."""

    name: str
    descriptor: int


@dataclass(frozen=True, slots=True)
class Notifier:
    """The way to the service manager. Every call is true where the manager was reached.

    `watchdog_interval_s` is how often `watchdog` has to be called: half of what the manager allows, or None.
    """

    address: str | None = None
    watchdog_interval_s: float | None = None

    def ready(self, status: str) -> bool:
        """Start-up or a reload has ended."""
        return self.send("READY=1", f"STATUS={_one_line(status)}")

    def reloading(self) -> bool:
        """The configuration is being read again; `ready` ends it (Type=notify-reload wants the time too)."""
        return self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> bool:
        return self.send("STOPPING=1", f"STATUS={_one_line(status)}")

    def status(self, text: str) -> bool:
        """The line that `systemctl status` shows."""
        return self.send(f"STATUS={_one_line(text)}")

    def watchdog(self) -> bool:
        return self.send("WATCHDOG=1")

    def main_pid(self, pid: int) -> bool:
        """Another process is the service now."""
        return self.send(f"MAINPID={pid}")

    def extend_start(self, seconds: float) -> bool:
        """Starting takes longer, by `seconds` from now; nothing is late until then."""
        return self.send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def store(self, name: str, descriptor: int) -> bool:
        """Have the manager keep a duplicate of `descriptor` as `name`. ValueError: nothing can be called so.

        FDPOLL=0 is what makes a pidfd worth keeping: without it systemd drops the descriptor at the hang-up
        that tells of the exit, before anybody read it.
        """
        return self.send("FDSTORE=1", "FDPOLL=0", f"FDNAME={_checked(name)}", descriptors=(descriptor,))

    def remove(self, name: str) -> bool:
        """Have the manager close every descriptor that it keeps as `name`."""
        return self.send("FDSTOREREMOVE=1", f"FDNAME={_checked(name)}")

    def send(self, *lines: str, descriptors: tuple[int, ...] = ()) -> bool:
        """Send one message. False where there is no manager, or it took nothing for a second."""
        if self.address is None:
            return False
        # An address with a leading @ lies in the abstract namespace, unix(7).
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SEND_TIMEOUT_S)
            try:
                sender.connect(address)
                socket.send_fds(sender, ["\n".join(lines).encode()], list(descriptors))
            except OSError:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Handover:
    """What the service manager gave to this process."""

    notifier: Notifier
    kept: tuple[KeptDescriptor, ...]


def from_environment(environment: MutableMapping[str, str]) -> Handover:
    """The service manager that started this process, and the descriptors it handed over.

    The variables are removed, so that no child takes itself for the service.
    """
    said = {name: environment.pop(name, "") for name in _VARIABLES}
    notifier = Notifier(said["NOTIFY_SOCKET"] or None, _interval(said))
    return Handover(notifier, _taken_back(said))


def _interval(said: dict[str, str]) -> float | None:
    meant = said["WATCHDOG_PID"] in ("", str(os.getpid()))
    if not meant or not said["WATCHDOG_USEC"].isdigit() or int(said["WATCHDOG_USEC"]) == 0:
        return None
    return int(said["WATCHDOG_USEC"]) / 2_000_000


def _taken_back(said: dict[str, str]) -> tuple[KeptDescriptor, ...]:
    if said["LISTEN_PID"] != str(os.getpid()) or not said["LISTEN_FDS"].isdigit():
        return ()
    count = int(said["LISTEN_FDS"])
    names = said["LISTEN_FDNAMES"].split(":") if said["LISTEN_FDNAMES"] else []
    names += ["unknown"] * (count - len(names))
    kept = []
    for descriptor, name in enumerate(names[:count], FIRST_DESCRIPTOR):
        os.set_inheritable(descriptor, False)
        kept.append(KeptDescriptor(name, descriptor))
    return tuple(kept)


def _checked(name: str) -> str:
    """ValueError where systemd would not take `name` (sd_pid_notify_with_fds(3))."""
    if not 0 < len(name) <= NAME_LIMIT or not name.isascii() or not name.isprintable() or ":" in name:
        raise ValueError(f"a stored descriptor cannot be called {name!r}")
    return name


def _one_line(text: str) -> str:
    return " ".join(text.split())
