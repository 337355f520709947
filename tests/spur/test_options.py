"""Command lines are read as the C library's getopt_long reads them."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spur.commands import scancel, scontrol, sinfo, squeue
from spur.options import Option, OptionError, Takes, parse
from spur.sbatchoptions import OPTIONS as SBATCH

TABLE = (
    Option("all", letter="a"),
    Option("name", Takes.VALUE, "n", ("names",)),
    Option("nice", Takes.OPTIONAL, "i"),
    Option("no-kill", Takes.OPTIONAL, "k"),
    Option("node", Takes.VALUE, "w"),
    Option("quiet"),
)


def read(*words: str, permute: bool = True) -> tuple[list[tuple[str, str | None]], list[str]]:
    given, rest = parse(words, TABLE, permute=permute)
    return [(one.name, one.value) for one in given], rest


def test_a_long_option_may_be_shortened_as_long_as_it_is_unique() -> None:
    assert read("--nod", "x", "--qui") == ([("node", "x"), ("quiet", None)], [])


def test_an_exact_name_wins_over_longer_ones() -> None:
    assert read("--name=a", "--names=b") == ([("name", "a"), ("name", "b")], [])


def test_two_names_of_one_option_are_not_ambiguous() -> None:
    assert read("--nam", "a") == ([("name", "a")], [])


def test_an_optional_argument_never_takes_the_next_word() -> None:
    assert read("--nice", "script", "-i", "5", "-k7", "--no-kill=off") == (
        [("nice", None), ("nice", None), ("no-kill", "7"), ("no-kill", "off")],
        ["script", "5"],
    )


def test_letters_are_bundled_and_the_last_may_have_an_argument() -> None:
    assert read("-aanx", "-an", "y", "-n", "") == (
        [("all", None), ("all", None), ("name", "x"), ("all", None), ("name", "y"), ("name", "")],
        [],
    )


def test_positional_arguments_end_the_options_or_do_not() -> None:
    assert read("-a", "script", "-a") == ([("all", None), ("all", None)], ["script"])
    assert read("-a", "script", "-a", permute=False) == ([("all", None)], ["script", "-a"])
    assert read("-", "-a", "--", "-a", "x") == ([("all", None)], ["-", "-a", "x"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bogus=3"], "unrecognized option '--bogus=3'"),
        (["-z"], "invalid option -- 'z'"),
        (["-az"], "invalid option -- 'z'"),
        (["-n"], "option requires an argument -- 'n'"),
        (["--nam"], "option '--name' requires an argument"),
        (["--quiet=1"], "option '--quiet' doesn't allow an argument"),
        (["--no=1"], "option '--no=1' is ambiguous; possibilities: '--no-kill' '--node'"),
    ],
)
def test_what_does_not_fit_is_said_as_the_c_library_says_it(words: list[str], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(words, TABLE, permute=True)
    assert str(refused.value) == message


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "-a",
                "-n",
                "-i",
                "-k",
                "-w",
                "-z",
                "--",
                "-",
                "x",
                "--no",
                "--n",
                "--na",
                "--qui",
                "--all",
                "--ALL",
                "-ai3",
            ]
            + ["--nice", "--nice=", "--nic=4", "--quiet=", "--no-kill", "--name", "--names=v", "-anx", "-kn", ""]
        ),
        st.text("-anikwz=xq", max_size=6),
    ),
    max_size=6,
)


@given(words=WORDS, permute=st.booleans())
def test_any_words_are_read_as_by_the_c_library(words: list[str], permute: bool) -> None:
    try:
        given, rest = parse(words, TABLE, permute=permute)
    except OptionError:
        ours: object = "refused"
    else:
        ours = ([(one.name, one.value) for one in given], rest)
    assert ours == by_the_c_library(words, permute)


class _COption(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


def by_the_c_library(words: list[str], permute: bool) -> object:
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    takes = {Takes.NOTHING: 0, Takes.VALUE: 1, Takes.OPTIONAL: 2}
    named = [(name, number) for number, option in enumerate(TABLE) for name in option.long_names]
    longs = (_COption * (len(named) + 1))(
        *(_COption(name.encode(), takes[TABLE[number].takes], None, 1000 + number) for name, number in named)
    )
    shorts = ("" if permute else "+") + "".join(
        option.letter + ":" * takes[option.takes] for option in TABLE if option.letter
    )
    letters = {ord(option.letter): option for option in TABLE if option.letter}
    argv = (ctypes.c_char_p * (len(words) + 2))(b"command", *(word.encode() for word in words), None)
    optind = ctypes.c_int.in_dll(libc, "optind")
    optarg = ctypes.c_char_p.in_dll(libc, "optarg")
    ctypes.c_int.in_dll(libc, "opterr").value = 0
    optind.value = 0  # GNU: begin anew
    found: list[tuple[str, str | None]] = []
    while (value := libc.getopt_long(len(words) + 1, argv, shorts.encode(), longs, None)) != -1:
        if value == ord("?"):
            return "refused"
        option = letters.get(value) or TABLE[value - 1000]
        found.append((option.name, None if optarg.value is None else optarg.value.decode()))
    return found, [word.decode() for word in list(argv)[optind.value : len(words) + 1] if word is not None]


@pytest.mark.parametrize("table", [SBATCH, squeue.OPTIONS, scancel.OPTIONS, sinfo.OPTIONS, scontrol.OPTIONS])
def test_the_tables_are_well_formed(table: tuple[Option, ...]) -> None:
    names = [name for option in table for name in option.long_names]
    letters = [option.letter for option in table if option.letter]
    assert len(set(names)) == len(names)
    assert len(set(letters)) == len(letters)
    assert all(option.metavar == "" or option.takes is not Takes.NOTHING for option in table)
