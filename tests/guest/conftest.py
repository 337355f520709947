"""The guest as a fixture: skipped aloud where a machine cannot have one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import image, payload
from .debian import DebianError
from .machine import Machine

CHECKOUT = Path(__file__).resolve().parents[2]
IN_GUEST = CHECKOUT == payload.CHECKOUT
collect_ignore = [] if IN_GUEST else ["inside"]


def unavailable() -> str | None:
    """Why there is no guest on this machine, in one line."""
    if os.environ.get("SPUR_GUEST_TESTS") == "0":
        return "SPUR_GUEST_TESTS=0"
    if os.geteuid() != 0:
        return "only root can make the guest's root file system"
    missing = image.missing_programs()
    return f"missing {', '.join(missing)}: run deploy/guest-setup" if missing else None


RECENT_KERNEL = ("trixie-backports", "trixie")


def machine(kernel_suites: tuple[str, ...] = (), cpus: int = 2) -> Machine:
    """A machine to boot; skips where there can be none."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(f"no guest: {reason}")
    try:
        built = image.obtain(image.cache_directory(), kernel_suites)
    except DebianError as error:
        pytest.skip(f"no guest: {error}")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if built.python != here:
        pytest.skip(f"no guest: its Python is {built.python}, this one {here}, so our packages do not fit")
    return Machine(built, CHECKOUT, cpus=cpus)


@pytest.fixture(scope="session")
def guest() -> Machine:
    """A Debian with systemd on pure cgroup v2. The first use on a machine builds it: about a minute."""
    return machine()


@pytest.fixture(scope="session")
def recent_guest() -> Machine:
    """The same with a kernel that keeps exits behind pidfds (6.15 and later).

    With one processor: QEMU before version 8 lets one run code that another is patching, and such kernels patch a lot.
    """
    return machine(RECENT_KERNEL, cpus=1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One guest at a time on a machine: all of them in one worker (xdist, --dist=loadgroup)."""
    for item in items:
        if {"guest", "recent_guest"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("guest"))


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of this checkout."""
    directory = tmp_path_factory.mktemp("package")
    environment = {**os.environ, "PYTHON": sys.executable, "XZ_LEVEL": "0"}
    command = [str(CHECKOUT / "deploy/build-deb"), str(directory)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])
