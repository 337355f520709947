"""Debian's packages as apt on this machine is configured: sources, downloads, root file systems.

No archive is named here; whatever apt was told to use is used. A root file system made here is a plain
directory, owned by the caller.
"""

from __future__ import annotations

import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_TARGET = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"


class DebianError(Exception):
    """One line: which step failed and what it said."""


@dataclass(frozen=True, slots=True)
class Archive:
    """One suite of Debian that apt knows."""

    uri: str
    release: str
    component: str

    def line(self) -> str:
        """The entry of a sources.list."""
        signed = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
        return f"deb{signed} {self.uri} {self.release} {self.component}"


def parse_targets(text: str, codename: str) -> tuple[Archive, ...]:
    """The archives of Debian `codename`, with its updates, in what `apt-get indextargets` printed."""
    found = []
    for line in text.splitlines():
        origin, suite, uri, release, component = line.split("|")
        if origin == "Debian" and suite.split("-")[0] == codename:
            found.append(Archive(uri, release, component))
    return tuple(dict.fromkeys(found))


def release_name() -> str:
    """The code name of the Debian that this machine runs, such as bookworm."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def archives() -> tuple[Archive, ...]:
    """What apt is configured for. DebianError: this is no Debian, or `apt-get update` never ran."""
    output = run("apt-get", "indextargets", "--format", _TARGET, "Created-By: Packages")
    found = parse_targets(output, release_name())
    if not found:
        raise DebianError("apt knows no archive of Debian: run apt-get update first")
    return found


def make_root(target: Path, packages: tuple[str, ...]) -> None:
    """Make a configured root file system with `packages` in `target`. As root only; half a minute."""
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=apt", f"--include={','.join(packages)}"]
    command += ['--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    run(*command, "", str(target), *(archive.line() for archive in archives()))


def dependency(package: str, pattern: str) -> str:
    """The package that the meta-package `package` depends on today and that `pattern` matches."""
    output = run("apt-cache", "depends", "--important", package)
    for line in output.splitlines():
        name = line.partition("Depends:")[2].strip()
        if re.fullmatch(pattern, name):
            return name
    raise DebianError(f"{package} depends on nothing like {pattern}")


def unpack(package: str, target: Path, scratch: Path) -> None:
    """Unpack the newest `package` below `target` without installing it."""
    scratch.mkdir(parents=True, exist_ok=True)
    run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package, cwd=scratch)
    (archive,) = scratch.glob(f"{package}_*.deb")
    run("dpkg-deb", "--extract", str(archive), str(target))


def run(*command: str, cwd: Path | None = None) -> str:
    """The standard output of `command`. DebianError: it failed, with the end of what it said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise DebianError(f"{command[0]} ended with {done.returncode}: {last}")
    return done.stdout
