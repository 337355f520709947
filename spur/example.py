"""The example configuration and the reference of its keys, made from the option table of spur.config.

deploy/ ships the example, docs/configuration.md holds the reference; tests compare both with what is made here.
"""

from __future__ import annotations

from collections.abc import Iterator

from spur.config import ARRAYS, TABLES, Config
from spur.tables import REQUIRED, Option, as_toml, options_of

_HEAD = """\
# Configuration of Spur, the same file for spurctld, every spurd and the commands: /etc/spur/spur.toml.
# A key that stands behind a # has the value that holds without it.
# Times are seconds where the key says so, and as Slurm writes them elsewhere: "30", "1:00:00", "2-12", "UNLIMITED".
"""


def example() -> str:
    """A configuration with every key, its value and what it does; those that hold anyway are commented out."""
    lines = [_HEAD, *_top()]
    for name, table in TABLES.items():
        lines += ["", f"[{name}]", *(line for one in options_of(table) for line in _documented(one))]
    lines += ["", "# Without [[nodes]], every node that proves itself with the key may register."]
    for name, table in ARRAYS.items():
        lines += ["", f"[[{name}]]", *(line for one in options_of(table) for line in _documented(one, given=True))]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """The same as tables in Markdown."""
    lines = ["| key | default | |", "|---|---|---|", *(_row(one) for one in options_of(Config)), ""]
    for heading, tables in (("[{}]", TABLES), ("[[{}]]", ARRAYS)):
        for name, table in tables.items():
            about = " ".join((table.__doc__ or "").split())
            lines += [f"### `{heading.format(name)}`", "", about, "", "| key | default | |", "|---|---|---|"]
            lines += [*(_row(one) for one in options_of(table)), ""]
    return "\n".join(lines)


def _top() -> Iterator[str]:
    for one in options_of(Config):
        yield from _documented(one)


def _documented(one: Option, *, given: bool = False) -> Iterator[str]:
    yield f"# {one.doc}"
    commented = "" if given and (one.default is REQUIRED or one.shown != as_toml(one.default)) else "# "
    yield f"{commented}{one.key} = {one.shown}"


def _row(one: Option) -> str:
    default = "required" if one.default is REQUIRED else f"`{as_toml(one.default)}`" if as_toml(one.default) else ""
    text = one.doc if default not in ("", "required") else f"{one.doc} Such as `{one.shown}`."
    return f"| `{one.key}` | {default} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    print(reference(), end="")
