"""Everything that a supervisor will ever import is imported before the first fork, and nothing afterwards.

An upgrade replaces or deletes the files under a running supervisor. Code that would be loaded then would be another
version's, or be missing. Python loads many modules late: these are the ones that the standard library's functions in
use here would ask for (found by running with the finder below).
"""

from __future__ import annotations

import ast  # noqa: F401  traceback
import calendar  # noqa: F401  time.strptime
import codecs
import encodings.ascii
import encodings.idna
import encodings.latin_1
import encodings.utf_8  # noqa: F401
import hashlib  # noqa: F401
import importlib.abc
import linecache  # noqa: F401  traceback
import locale  # noqa: F401
import os
import pwd  # noqa: F401
import shutil  # noqa: F401
import subprocess  # noqa: F401
import sys
import time
import tokenize  # noqa: F401
import traceback
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportAfterFork(ImportError):
    """Something wanted to import a module in a process that must not load code any more."""


class _Refusal(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        raise ImportAfterFork(f"{name} is not loaded, and nothing is loaded any more", name=name)


def lock_imports() -> None:
    """Run what loads lazily once, then refuse every module that is not there yet."""
    time.strptime("2026", "%Y")
    try:
        raise ValueError
    except ValueError:
        traceback.format_exc()
    codecs.lookup("utf-8")
    os.fsencode("x")
    warnings.filterwarnings("ignore")
    sys.meta_path.insert(0, _Refusal())
