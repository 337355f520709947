"""Command lines as getopt_long(3) of the GNU C library reads them, over a declarative table of options.

Slurm's commands are built on that function and scripts depend on its habits: long options may be shortened as long
as they stay unique, an optional argument never takes the next word, sbatch stops at its first positional argument
and the others go on behind it. No parser of the standard library does all of this, so this module does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class Takes(Enum):
    """Whether an option has an argument."""

    NOTHING = "nothing"
    VALUE = "value"
    OPTIONAL = "optional"  # only as --name=VALUE or -nVALUE


class Support(Enum):
    """What Spur does about an option that Slurm has."""

    FULL = "full"
    HARMLESS = "harmless"  # taken and without effect, because what it asks for is so anyway or changes no result
    REFUSED = "refused"  # an error: the user would not get what was asked for


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command. `name` is its long name, `aliases` further ones, `letter` the short one, if any."""

    name: str
    takes: Takes = Takes.NOTHING
    letter: str = ""
    aliases: tuple[str, ...] = ()
    variable: str = ""  # of the environment, which gives the option as well
    metavar: str = ""
    help: str = ""
    support: Support = Support.FULL

    @property
    def long_names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases) if self.name else self.aliases


@dataclass(frozen=True, slots=True)
class Given:
    """An option as it was given; `value` is None where no argument was."""

    option: Option
    value: str | None

    @property
    def name(self) -> str:
        return self.option.name


class OptionError(Exception):
    """The words do not fit the table; the message is the C library's, without the command's name."""


Table = Sequence[Option]


def parse(words: Sequence[str], table: Table, *, permute: bool) -> tuple[list[Given], list[str]]:
    """The options in `words`, in their order, and the positional arguments.

    Without `permute` the first positional argument ends the options. OptionError: as the C library says it.
    """
    given: list[Given] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return given, rest + left
        if word == "-" or not word.startswith("-"):
            if not permute:
                return given, [word, *left]
            rest.append(word)
        elif word.startswith("--"):
            given.append(_long(word[2:], left, table))
        else:
            given.extend(_letters(word[1:], left, table))
    return given, rest


def _long(text: str, left: list[str], table: Table) -> Given:
    """The long option `text`, which may take its argument from the front of `left`."""
    name, equals, value = text.partition("=")
    found, full = _find(name, text, table)
    if equals:
        if found.takes is Takes.NOTHING:
            raise OptionError(f"option '--{full}' doesn't allow an argument")
        return Given(found, value)
    if found.takes is Takes.VALUE:
        if not left:
            raise OptionError(f"option '--{full}' requires an argument")
        return Given(found, left.pop(0))
    return Given(found, None)


def _find(name: str, text: str, table: Table) -> tuple[Option, str]:
    """The option that `name` or a beginning of it stands for, and its full name."""
    named = [(option, full) for option in table for full in option.long_names]
    for option, full in named:
        if full == name:
            return option, full
    matches = [(option, full) for option, full in named if full.startswith(name)]
    if not matches:
        raise OptionError(f"unrecognized option '--{text}'")
    if len({option.name for option, _ in matches}) > 1:
        possible = " ".join(f"'--{full}'" for _, full in matches)
        raise OptionError(f"option '--{text}' is ambiguous; possibilities: {possible}")
    return matches[0]


def _letters(bundle: str, left: list[str], table: Table) -> Iterator[Given]:
    """The options of `bundle`, such as `hj11` of `-hj11`; the last may take its argument from `left`."""
    letters = {option.letter: option for option in table if option.letter}
    while bundle:
        letter, bundle = bundle[0], bundle[1:]
        option = letters.get(letter)
        if option is None:
            raise OptionError(f"invalid option -- '{letter}'")
        if option.takes is Takes.NOTHING:
            yield Given(option, None)
            continue
        if not bundle and option.takes is Takes.VALUE:
            if not left:
                raise OptionError(f"option requires an argument -- '{letter}'")
            bundle = left.pop(0)
            yield Given(option, bundle)
            return
        yield Given(option, bundle or None)
        return
