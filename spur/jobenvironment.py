"""The environment that a job brings along, and the limits of the one who submits it.

What --export says decides; the rules are those of sbatch(1) in Slurm 22.05. What the job's node adds is not known here.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping

INFINITY = 2**64 - 1
# Slurm's PropagateResourceLimits=ALL.
LIMITS = ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS")


def environment(export: str | None, environ: Mapping[bytes, bytes], facts: Mapping[bytes, bytes]) -> list[bytes]:
    """NAME=VALUE of the job. `export` is what --export said, None where it was not given; `facts` are set in any case.

    ALL, nothing: everything. NONE, NIL: what belongs to Slurm alone. Names: these and what belongs to Slurm; NAME=VALUE
    sets one; ALL among them adds everything.
    """
    words = [] if export is None else list(split_export(export))
    upper = {word.upper() for word in words}
    if export is None or "ALL" in upper:
        chosen = dict(environ)
    else:
        chosen = {name: value for name, value in environ.items() if name.startswith((b"SLURM_", b"SPANK_"))}
    if not upper & {"NONE", "NIL"}:
        for word in words:
            name, equals, value = word.encode(errors="surrogateescape").partition(b"=")
            if equals:
                chosen[name] = value
            elif name in environ and word.upper() != "ALL":
                chosen[name] = environ[name]
    chosen.pop(b"SLURM_UMASK", None)
    return [name + b"=" + value for name, value in {**chosen, **facts}.items()]


def split_export(text: str) -> Iterator[str]:
    """The parts of a list for --export. A comma inside quotes belongs to its part; the quotes stay."""
    part, quote = "", ""
    for character in text:
        if character == "," and not quote:
            if part:
                yield part
            part = ""
            continue
        if character in "\"'" and quote in ("", character):
            quote = "" if quote else character
        part += character
    if part:
        yield part


def export_spec(export: str | None) -> str:
    """What stands in the job's SLURM_EXPORT_ENV; empty where everything is exported without further wishes."""
    return "" if export is None or export.upper() == "ALL" else export


def umask(environ: Mapping[bytes, bytes], own: int) -> int:
    """SLURM_UMASK of the environment, octal, where it is one; else `own`."""
    text = environ.get(b"SLURM_UMASK", b"")
    try:
        return int(text, 8) & 0o777
    except ValueError:
        return own


def limits(propagate: str | None) -> dict[str, int]:
    """The caller's soft limits that hold for the job: all, or those that --propagate names. ValueError: as below."""
    names = wanted_limits(propagate)
    found = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names}
    return {name: INFINITY if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def wanted_limits(propagate: str | None) -> tuple[str, ...]:
    """The names of limits that `propagate` means. ValueError: the first word that is none."""
    if propagate is None or propagate.upper() in ("", "ALL"):
        return LIMITS
    if propagate.upper() == "NONE":
        return ()
    words = tuple(word.upper().removeprefix("RLIMIT_") for word in propagate.split(",") if word)
    for word in words:
        if word not in LIMITS:
            raise ValueError(word)
    return words
