"""Everything that a supervisor will ever import is imported before the first fork, and nothing afterwards.

An upgrade replaces or deletes the files under a running supervisor. Code that would be loaded then would be another
version's, or be missing. Python loads some modules late, behind functions: what our own code can reach is used once
here; the finder then refuses the rest, so that a test finds what is missing and not an upgrade.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportAfterFork(ImportError):
    """Something wanted to import a module in a process that must not load code any more."""


class _Refusal:
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        raise ImportAfterFork(f"{name} is not loaded, and nothing is loaded any more", name=name)


def lock_imports() -> None:
    """Run what loads lazily once, then refuse every module that is not there yet."""
    "\u00e4".encode("ascii", errors="replace").decode("latin-1")
    "x".encode("utf-8", errors="surrogateescape")
    sys.meta_path.insert(0, _Refusal())
