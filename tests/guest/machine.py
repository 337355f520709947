"""One guest: booted, given a script, read out, gone.

QEMU emulates the processor (no KVM is needed), so seconds here are tens of milliseconds elsewhere. The
guest says on its second serial port what the script printed; the first is the console and is shown when
something went wrong. The emulator is a child of the caller and never outlives the call.
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .image import Image, make_disk
from .payload import CHECKOUT, copy_files, copy_venv, requirements

MEMORY_MB = 2048
PAYLOAD_SPARE_MB = 256
KERNEL_LINE = "console=ttyS0 panic=-1 quiet random.trust_cpu=on systemd.unified_cgroup_hierarchy=1 mitigations=off"
POLL_S = 0.1


class GuestError(Exception):
    """The guest did not get as far as an exit code; the message ends with the last it said."""


@dataclass(frozen=True, slots=True)
class GuestResult:
    """What the script printed (both streams, in order) and how it ended.

    `boot_s` and `script_s` are wall seconds on the host.
    """

    output: str
    exit_code: int
    boot_s: float
    script_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of guest that can be booted any number of times."""

    image: Image
    checkout: Path
    memory_mb: int = MEMORY_MB
    cpus: int = 2

    def run(
        self,
        script: str,
        files: Mapping[str, Path] | None = None,
        timeout_s: float = 300,
        distributions: tuple[str, ...] = ("spur[test]",),
        reboots: bool = False,
    ) -> GuestResult:
        """Boot, run `script` as root in /opt/guest, power off.

        `script` starts with a #! line. `files` maps names below /opt/guest to files or folders here; the
        checkout is always there, and a virtual environment with `distributions`, whose bin/ is in PATH.
        Where it `reboots`, the script runs again in every boot, on the same disks, until it ends.
        GuestError: no end within `timeout_s` seconds, or none at all.
        """
        with tempfile.TemporaryDirectory(prefix="spur-guest-") as scratch:
            token = secrets.token_hex(8)
            disk = self._payload(Path(scratch), script, files or {}, token, distributions)
            return self._boot(Path(scratch), disk, token, timeout_s, reboots)

    def _payload(
        self, scratch: Path, script: str, files: Mapping[str, Path], token: str, distributions: tuple[str, ...]
    ) -> Path:
        tree = scratch / "payload"
        tree.mkdir()
        copy_files(tree, {"checkout": self.checkout, **files})
        if distributions:
            copy_venv(tree / "venv", requirements(distributions), CHECKOUT)
        (tree / "token").write_text(token)
        (tree / "script").write_text(script)
        (tree / "script").chmod(0o755)
        used = sum(path.lstat().st_blocks * 512 for path in tree.rglob("*"))
        make_disk(tree, scratch / "payload.ext4", used // 2**20 * 5 // 4 + PAYLOAD_SPARE_MB)
        return scratch / "payload.ext4"

    def _command(self, disk: Path, console: Path, said: Path, reboots: bool) -> list[str]:
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(self.cpus)]
        command += ["-M", "q35", "-m", str(self.memory_mb), "-display", "none", "-nodefaults"]
        command += [] if reboots else ["-no-reboot"]
        command += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd), "-append", KERNEL_LINE]
        for path in (self.image.root, disk):
            command += ["-drive", f"file={path},if=virtio,format=raw,snapshot=on"]
        return [*command, "-serial", f"file:{console}", "-serial", f"file:{said}"]

    def _boot(self, scratch: Path, disk: Path, token: str, timeout_s: float, reboots: bool) -> GuestResult:
        console, said = scratch / "console", scratch / "said"
        began = time.monotonic()
        command = self._command(disk, console, said, reboots)
        emulator = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            started = _wait(emulator, said, f"{token} start", began + timeout_s)
            _wait(emulator, said, f"{token} exit ", began + timeout_s)
            ended = time.monotonic()
            return _read(_text(said), token, started - began, ended - started)
        except GuestError as failure:
            raise GuestError(f"{failure}\n--- console\n{_tail(console)}\n--- script\n{_tail(said)}") from None
        finally:
            emulator.kill()
            _, complaint = emulator.communicate()
            (scratch / "complaint").write_text(complaint)


def _wait(emulator: subprocess.Popen[str], said: Path, mark: str, deadline: float) -> float:
    """The moment at which `mark` stood in `said`."""
    while True:
        over = emulator.poll() is not None
        if mark in _text(said):
            return time.monotonic()
        if over:
            raise GuestError(f"the guest powered off before it said {mark.split()[1]!r}")
        if time.monotonic() > deadline:
            raise GuestError(f"the guest did not say {mark.split()[1]!r} in time")
        time.sleep(POLL_S)


def _read(text: str, token: str, boot_s: float, script_s: float) -> GuestResult:
    output = text.partition(f"{token} start\n")[2]
    body, _, code = output.rpartition(f"{token} exit ")
    return GuestResult(body, int(code.split()[0]), boot_s, script_s)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(path: Path) -> str:
    return "\n".join(_text(path).splitlines()[-40:])
