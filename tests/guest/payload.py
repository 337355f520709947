"""The guest's second disk: a script, the files it wants, and a virtual environment as the host runs it.

The environment is put together from the distributions that the tests run with here, so that nothing is
downloaded or compiled for the guest; its Python must be of the same minor version.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

VENV = Path("/opt/guest/venv")
CHECKOUT = Path("/opt/guest/checkout")
_LAUNCHER = """#!{venv}/bin/python3
import sys
from {module} import {function}
sys.exit({function}())
"""


def requirements(names: Iterable[str]) -> list[metadata.Distribution]:
    """The installed distributions of `names`, "name[extra]" allowed, and all that they require here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    done: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if requirement in done:
            continue
        done.add(requirement)
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", requirement)
        assert match is not None, requirement
        try:
            distribution = metadata.distribution(match[1])
        except metadata.PackageNotFoundError:
            continue  # a requirement of another platform or Python
        found[match[1].lower()] = distribution
        extras = [extra.strip() for extra in (match[2] or "").split(",") if extra.strip()]
        waiting += [_bare(line) for line in distribution.requires or () if _wanted(line, extras)]
    return list(found.values())


def _bare(requirement: str) -> str:
    return re.split(r"[ ;<>=!~(]", requirement, maxsplit=1)[0]


def _wanted(requirement: str, extras: list[str]) -> bool:
    marker = requirement.partition(";")[2]
    extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    return extra is None or extra[1] in extras


def copy_venv(target: Path, distributions: Iterable[metadata.Distribution], checkout: Path) -> None:
    """Make at `target` what will be a virtual environment once mounted at VENV.

    `checkout` is importable from it, as an editable installation would be, with its commands in bin/.
    """
    packages = target / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    scripts = target / "bin"
    packages.mkdir(parents=True)
    scripts.mkdir()
    (target / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in ("python3", "python"):
        (scripts / name).symlink_to("/usr/bin/python3")
    for distribution in distributions:
        _copy_distribution(distribution, packages)
        for entry in distribution.entry_points:
            if entry.group == "console_scripts":
                _write_command(scripts / entry.name, entry.module, entry.attr)
    (packages / "spur-checkout.pth").write_text(f"{checkout}\n")


def _copy_distribution(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        source, copy = Path(str(distribution.locate_file(file))), packages / file
        if file.parts[0] == ".." or file.is_absolute() or file.suffix == ".pth" or not source.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)  # with its time: compiled code is valid for that time alone


def _write_command(path: Path, module: str, attribute: str) -> None:
    path.write_text(_LAUNCHER.format(venv=VENV, module=module, function=attribute))
    path.chmod(0o755)


def copy_files(target: Path, files: Mapping[str, Path]) -> None:
    """Put each host file or folder of `files` below `target` under its name there."""
    leave_out = shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "*.egg-info")
    for name, source in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True, ignore=leave_out, dirs_exist_ok=True)
        else:
            shutil.copy2(source, copy)
