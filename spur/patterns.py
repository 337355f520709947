"""Names of output files with Slurm's patterns in them: `slurm-%j.out`."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_STDOUT = "slurm-%j.out"

_NO_ARRAY = 4294967294  # NO_VAL: what %a shows for a job that is no element of an array
_FIELD = re.compile(r"%(\d*)(.?)", re.DOTALL)
_PADDED = frozenset("AaJjnt")
_WIDEST = 10


@dataclass(frozen=True, slots=True)
class Names:
    """What the letters stand for."""

    job: int
    job_name: str
    user: str
    node: str  # the first node's short name
    node_rank: int = 0
    task: int = 0
    step: str = "batch"

    def letters(self) -> dict[str, str]:
        step = "" if self.step == "batch" else f".{self.step}"
        return {
            "A": str(self.job),
            "a": str(_NO_ARRAY),
            "J": f"{self.job}{step}",
            "j": str(self.job),
            "N": self.node,
            "n": str(self.node_rank),
            "s": self.step,
            "t": str(self.task),
            "u": self.user,
            "x": self.job_name,
        }


def expand(pattern: str, names: Names) -> str:
    """`pattern` with its letters replaced.

    A number after the percent sign pads with zeros, up to ten places and only what is a number. A letter that means
    nothing stays as it is, `%%` is a percent sign. A backslash anywhere turns all of this off, and one level of
    backslashes is taken away (sbatch(1), "filename pattern"; settled with Slurm 22.05 where that is silent).
    """
    if "\\" in pattern:
        return re.sub(r"\\(.?)", r"\1", pattern, flags=re.DOTALL)
    letters = names.letters()

    def replaced(found: re.Match[str]) -> str:
        width, letter = found[1], found[2]
        if letter == "%":
            return f"{width}%"
        if letter not in letters:
            return found[0]
        places = min(int(width or 0), _WIDEST) if letter in _PADDED else 0
        return letters[letter].rjust(places, "0")

    return _FIELD.sub(replaced, pattern)
