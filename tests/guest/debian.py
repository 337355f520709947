"""Debian's packages as apt on this machine is configured: sources, downloads, root file systems.

No archive is named here; whatever apt was told to use is used. A root file system made here is a plain
directory, owned by the caller.
"""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass, replace
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


def other_suites(*suites: str) -> tuple[Archive, ...]:
    """Other suites in the archive where apt finds this release's own packages."""
    main = next(archive for archive in archives() if archive.release == release_name())
    return tuple(replace(main, release=suite) for suite in suites)


def make_root(target: Path, packages: tuple[str, ...]) -> None:
    """Make a configured root file system with `packages` in `target`. As root only; half a minute."""
    options = ["--variant=apt", "--dpkgopt=force-unsafe-io"]
    _bootstrap(target, packages, archives(), *options, *(f"--dpkgopt=path-exclude={one}" for one in LEFT_OUT))


def unpack(target: Path, packages: tuple[str, ...], sources: tuple[Archive, ...]) -> None:
    """Unpack `packages` and what they depend on in `target`, without installing them. Ten seconds."""
    _bootstrap(target, packages, sources, "--variant=extract")


def _bootstrap(target: Path, packages: tuple[str, ...], sources: tuple[Archive, ...], *options: str) -> None:
    command = ["mmdebstrap", "--quiet", "--mode=root", f"--include={','.join(packages)}", *options]
    command += ['--aptopt=Acquire::Languages "none"', '--aptopt=APT::Install-Recommends "false"']
    run(*command, "", str(target), *(archive.line() for archive in sources))


def run(*command: str, cwd: Path | None = None) -> str:
    """The standard output of `command`. DebianError: it failed, with the end of what it said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise DebianError(f"{command[0]} ended with {done.returncode}: {last}")
    return done.stdout
