"""A small disk that can be filled to the last byte and freed: a tmpfs in our own mount namespace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.chaos.network import CLONE_NEWNS, unshare

SIZE_MB = 64


def own_mounts() -> None:
    """From now on what this process mounts is seen by it and its children alone, and gone with them. OSError."""
    unshare(CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


class SmallDisk:
    """Mounted at `where`, which is made. Needs `own_mounts` before."""

    def __init__(self, where: Path) -> None:
        where.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=711", "spur-chaos", where], check=True)
        self._where, self._ballast = where, where / ".ballast"

    def fill(self, leave_bytes: int) -> None:
        """Until so many bytes are free, or a page less."""
        room = os.statvfs(self._where)
        wanted = self._held() + max(room.f_bavail * room.f_frsize - leave_bytes, 0)
        with open(self._ballast, "ab") as ballast:
            if wanted:
                try:
                    os.posix_fallocate(ballast.fileno(), 0, wanted)
                except OSError:  # somebody else took of the last room meanwhile: it is full all the same
                    pass

    def _held(self) -> int:
        try:
            return self._ballast.stat().st_size
        except FileNotFoundError:
            return 0

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self._where], check=True)
