"""A batch script as sbatch sees it: is it one at all, and which options do its #SBATCH lines give.

Pure functions over the script's bytes, which reach the job exactly as they are. The rules are those of Slurm 22.05's
sbatch, found by trying them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_MARK = b"#SBATCH"
_BLANKS = " \t\n\v\f\r"


class ScriptError(Exception):
    """The script cannot be submitted; one or more lines that say why, as Slurm's sbatch does."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


class DirectiveError(Exception):
    """A #SBATCH line cannot be read; Slurm ends with `fatal` here."""


def wrap(command: bytes) -> bytes:
    """The script that --wrap makes of `command`."""
    return b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" + command + b"\n"


def check(script: bytes) -> None:
    """ScriptError: `script` is empty, does not begin with #!, is binary or has DOS line breaks."""
    if not script:
        raise ScriptError("Batch script is empty!")
    if not script.partition(b"\0")[0].strip():
        raise ScriptError("Batch script contains only whitespace!")
    if not script.startswith(b"#!"):
        raise ScriptError(
            "This does not look like a batch script.  The first",
            "line must start with #! followed by the path to an interpreter.",
            "For instance: #!/bin/sh",
        )
    if b"\0" in script:
        raise ScriptError("The Slurm controller does not allow scripts that", "contain a NULL character '\\0'.")
    if b"\r\n" in script:
        raise ScriptError(
            "Batch script contains DOS line breaks (\\r\\n)", "instead of expected UNIX line breaks (\\n)."
        )


def directives(script: bytes, name: str) -> list[str]:
    """The words of all #SBATCH lines before the first command, as if they stood on one command line.

    `name` is what messages call the script. DirectiveError: a quotation is not closed.
    """
    words: list[str] = []
    for number, line in enumerate(_head(script), 1):
        if line.startswith(_MARK):
            words.extend(_words(os.fsdecode(line.removeprefix(_MARK).lstrip()), f"{name}: line {number}"))
    return words


def has_pbs_lines(script: bytes) -> bool:
    """Whether options for another batch system stand where #SBATCH lines count."""
    return any(line.startswith(b"#PBS") for line in _head(script))


def _head(script: bytes) -> Iterator[bytes]:
    """The lines before the first command: blank ones and comments."""
    for line in script.split(b"\n"):
        if line.strip() and not line.lstrip().startswith(b"#"):
            return
        yield line


def _words(text: str, where: str) -> Iterator[str]:
    """The words of one line. A # outside of quotes begins a comment, a backslash takes what follows as it is.

    Other than in a shell, a blank outside of quotes ends a word even behind a backslash, and an empty word is none.
    """
    at = 0
    while at < len(text):
        start, word, quote, escaped = at, "", "", False
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        while at < len(text) and (quote or text[at] not in ("" if escaped else "#") + _BLANKS):
            character = text[at]
            at += 1
            if escaped or (quote and character not in (quote, "\\")):
                word, escaped = word + character, False
            elif character == "\\":
                escaped = True
            elif character in "\"'":
                quote = "" if quote else character
            else:
                word += character
        if quote:
            raise DirectiveError(f"{where}: Unmatched `{quote}` in [{text[start:]}]")
        if word:
            yield word
        if text[at : at + 1] == "#":
            return
