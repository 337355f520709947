"""The documentation is true where a machine can tell: its links, the reference of the configuration, what it names."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from spur.config import ARRAYS, TABLES, Config
from spur.example import reference
from spur.tables import options_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CONFIGURATION = ROOT / "docs/configuration.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("https://", "http://", "#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_reference_of_the_configuration_is_that_of_the_option_table() -> None:
    text = CONFIGURATION.read_text()
    assert text.partition("## The keys\n\n")[2] == reference(), (
        "python -m spur.example writes the reference that belongs after '## The keys'"
    )


@pytest.mark.parametrize("table", [Config, *TABLES.values(), *ARRAYS.values()])
def test_every_key_has_a_line_about_it(table: type) -> None:
    for one in options_of(table):
        assert one.doc.endswith("."), f"{table.__name__}.{one.key}"
        assert f"| `{one.key}` |" in CONFIGURATION.read_text()


def test_every_command_has_its_section() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    commands = {name for name, target in scripts.items() if target.startswith("spur.commands.")}
    text = (ROOT / "docs/commands.md").read_text()
    assert not [name for name in commands if f"## {name}\n" not in text]


def test_the_paths_that_the_pages_name_are_there() -> None:
    for page in PAGES:
        for name in re.findall(
            r"`((?:spur|spurctld|spurd|spurstepd|deploy|tests|docs|proto)/[\w./-]*)`", page.read_text()
        ):
            assert (ROOT / name).exists() or name == "spur/pb", f"{page.name}: {name}"


@pytest.mark.parametrize("program", ["deploy/demo", "deploy/check", "deploy/setup", ".ci/run"])
def test_the_commands_of_the_readme_can_be_run(program: str) -> None:
    assert os.access(ROOT / program, os.X_OK)
