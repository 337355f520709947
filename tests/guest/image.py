"""The guest's root disk, kernel and initial RAM disk, built once and kept.

    CACHE/                        $SPUR_GUEST_CACHE, else ~/.cache/spur-guest
    ├── root-KEY.lock             flock held while it is being built
    ├── root-KEY/                 complete, never changed again
    │   ├── root.ext4             Debian with systemd and Python; booted with throw-away writes
    │   └── python                such as 3.11: the minor version of the guest's Python
    └── kernel-KEY/
        ├── vmlinuz
        └── initrd

KEY is a hash of everything that decides what is built: the package list, this code, apt's archives.
A directory appears under its final name only when complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import debian, initrd
from .debian import Archive

KERNEL = "linux-image-cloud-amd64"
BUSYBOX = "busybox-static"
PACKAGES = (
    BUSYBOX,
    "dbus",
    "libcap2",
    "logrotate",
    "passwd",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
    "util-linux-extra",
)
MODULES = ("virtio_pci", "virtio_blk", "overlay", "loop")
ROOT_DISK_MB = 1400
UNUSED_S = 7 * 86400
PROGRAMS = ("qemu-system-x86_64", "mmdebstrap", "mkfs.ext4", "apt-get")
# Nobody logs in here and no device but the two disks matters; each of these costs a second under emulation.
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "logrotate.timer",
    "serial-getty@ttyS0.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-logind.service",
    "systemd-random-seed.service",
    "systemd-timesyncd.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
)
RUNNER = """#!/bin/sh
# Runs what the second disk brings and says on the second serial port what came of it.
exec >/dev/ttyS1 2>&1 </dev/null
busybox stty -F /dev/ttyS1 raw -echo
mkdir -p /opt/guest
mount -t ext4 -o noatime /dev/vdb /opt/guest
cd /opt/guest || exit 1
export HOME=/root LANG=C.UTF-8 TERM=dumb NO_COLOR=1 PATH=/opt/guest/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mark=$(cat token)
echo "$mark start"
./script
echo "$mark exit $?"
"""
UNIT = """[Unit]
Description=What the guest is here for
After=dbus.socket basic.target

[Service]
Type=exec
ExecStart=/usr/local/sbin/guest-run
ExecStopPost=/bin/systemctl poweroff -ff
KillMode=process
LimitNOFILE=65536
TasksMax=infinity
Delegate=yes

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Image:
    """What QEMU is given to boot."""

    system: Path
    boot: Path

    @property
    def root(self) -> Path:
        return self.system / "root.ext4"

    @property
    def kernel(self) -> Path:
        return self.boot / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.boot / "initrd"

    @property
    def python(self) -> str:
        return (self.system / "python").read_text()


def missing_programs() -> list[str]:
    """What deploy/guest-setup would install."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def cache_directory() -> Path:
    named = os.environ.get("SPUR_GUEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "spur-guest"


def obtain(cache: Path, kernel_suites: tuple[str, ...] = ()) -> Image:
    """The image from `cache`, built there first where it is missing (a minute; root only).

    The kernel comes from the first of `kernel_suites`, which needs the others, or else from this machine's release.
    """
    return Image(
        _obtain(cache, "root", debian.archives(), _build_system),
        _obtain(
            cache,
            "kernel",
            debian.other_suites(*kernel_suites) or debian.archives(),
            lambda made, scratch: _build_boot(made, scratch, kernel_suites),
        ),
    )


def _obtain(cache: Path, part: str, sources: tuple[Archive, ...], build: Callable[[Path, Path], None]) -> Path:
    """The directory of `part`; `build` gets the one to fill and one for what it needs meanwhile."""
    cache.mkdir(parents=True, exist_ok=True)
    name = f"{part}-{_key(sources)}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (cache / name).exists():
            os.utime(cache / name)
        else:
            _forget_unused(cache)
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=cache) as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                build(made, Path(scratch))
                made.rename(cache / name)
    return cache / name


def _forget_unused(cache: Path) -> None:
    """Remove what no test has asked for in a week."""
    for entry in (*cache.glob("root-*"), *cache.glob("kernel-*")):
        if entry.is_dir() and entry.stat().st_mtime < time.time() - UNUSED_S:
            shutil.rmtree(entry, ignore_errors=True)


def _key(sources: tuple[Archive, ...]) -> str:
    """Sixteen hex digits that change with whatever is built from `sources`."""
    digest = hashlib.sha256()
    for source in (debian.__file__, initrd.__file__, __file__):
        digest.update(Path(str(source)).read_bytes())
    digest.update("\n".join(archive.line() for archive in sources).encode())
    return digest.hexdigest()[:16]


def _build_system(made: Path, scratch: Path) -> None:
    root = scratch / "root"
    debian.make_root(root, PACKAGES)
    _furnish(root)
    (made / "python").write_text(_python_version(root))
    make_disk(root, made / "root.ext4", ROOT_DISK_MB)


def _build_boot(made: Path, scratch: Path, suites: tuple[str, ...]) -> None:
    system, tools = scratch / "kernel", scratch / "tools"
    if suites:
        debian.unpack(system, (f"{KERNEL}/{suites[0]}",), debian.other_suites(*suites))
        debian.unpack(tools, (BUSYBOX,), debian.archives())
    else:
        debian.unpack(system, (KERNEL, BUSYBOX), debian.archives())
    vmlinuz = next(system.rglob("vmlinuz*"))  # in boot/, or with its modules since Debian 13
    shutil.copy(vmlinuz, made / "vmlinuz")
    modules = initrd.modules_for(system, MODULES)
    places = [top / name for top in (system, tools) for name in ("bin/busybox", "usr/bin/busybox")]
    busybox = next(path for path in places if path.is_file())
    (made / "initrd").write_bytes(initrd.build(busybox.read_bytes(), modules))


def _furnish(root: Path) -> None:
    """Make Debian's root a machine that runs one script and nothing else."""
    units = root / "etc/systemd/system"
    for unit in MASKED:
        _link(units / unit, "/dev/null")
    (units / "guest-run.service").write_text(UNIT)
    _link(units / "multi-user.target.wants/guest-run.service", "../guest-run.service")
    _link(units / "default.target", "/lib/systemd/system/multi-user.target")
    runner = root / "usr/local/sbin/guest-run"
    runner.write_text(RUNNER)
    runner.chmod(0o755)
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost guest\n::1 localhost\n")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _python_version(root: Path) -> str:
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def make_disk(directory: Path, disk: Path, size_mb: int) -> None:
    """Make an ext4 image of `size_mb` MiB (sparse) that holds what is in `directory`."""
    features = "^has_journal,^metadata_csum,^huge_file"
    options = ["-q", "-F", "-O", features, "-m", "0", "-E", "lazy_itable_init=1,nodiscard", "-d", str(directory)]
    debian.run("mkfs.ext4", *options, str(disk), f"{size_mb}M")
