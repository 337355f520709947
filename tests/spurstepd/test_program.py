"""The program file: its options, its weight, what it refuses to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spur
import spurstepd
from tests.spurstepd.conftest import Bench, exit_of

PROGRAM = (sys.executable, "-m", "spurstepd")


def test_all_packages_have_one_version() -> None:
    assert spurstepd.__version__ == spur.__version__


@pytest.mark.parametrize("words", [("--state-dir",), ("--bogus", "x"), ("--state-dir", "/x")])
def test_bad_options_get_one_line(words: tuple[str, ...]) -> None:
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"spurstepd: error: --{words[0][2:] if len(words) < 2 or 'bogus' in words[0] else 'runtime-dir'}"
    )


def test_unknown_plugin_is_named(bench: Bench) -> None:
    done = subprocess.run(
        [*PROGRAM, "--state-dir", bench.dirs.state, "--runtime-dir", bench.dirs.runtime, "--node", "n", "--plugin", "x"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == "spurstepd: error: plugin 'x' is not installed (known: none)\n"


def test_loads_nothing_heavy() -> None:
    """What the launcher has loaded, every supervisor carries."""
    heavy = {
        "asyncio",
        "grpc",
        "threading",
        "hashlib",
        "argparse",
        "email",
        "subprocess",
        "structlog",
        "importlib.metadata",
    }
    code = "import sys, spurstepd.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy.isdisjoint(loaded), heavy & set(loaded)


def test_plugins_run_in_children_at_their_points(bench: Bench, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "probe-1.dist-info").mkdir(parents=True)
    (site / "probe-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1\n")
    (site / "probe-1.dist-info" / "entry_points.txt").write_text("[spur.plugins]\nprobe = probe:Probe\n")
    (site / "probe.py").write_text(
        "import os\n"
        "class Probe:\n"
        f"    out = {str(bench.output)!r} + '/points'\n"
        "    def said(what, env):\n"
        "        with open(Probe.out, 'a') as f: f.write(f'{what} {os.getuid()}\\n')\n"
        "        os.chmod(Probe.out, 0o666) if os.getuid() == 0 else None\n"
        "    def prolog(env): Probe.said('prolog', env)\n"
        "    def epilog(env): Probe.said('epilog', env)\n"
        "    def task_init(env): Probe.said('task_init', env); env['BY_PLUGIN'] = 'yes'\n"
        "    def user_init(env): Probe.said('user_init', env)\n"
    )
    start = f"import sys; sys.path.insert(0, {str(site)!r}); import spurstepd.__main__ as m; m.main()"
    bench.start_launcher("--plugin", "probe", python=(sys.executable, "-c", start))
    run = bench.make_run("#!/bin/bash\necho $BY_PLUGIN\n", uid=65534, owes_hooks=True)
    bench.supervise(run)
    assert exit_of(run.finish()) == ("waitid", 0)
    points = (bench.output / "points").read_text().splitlines()
    assert points == ["prolog 0", "task_init 0", "user_init 65534", "epilog 0"]
    assert (bench.output / "42.1.out").read_text() == "yes\n"
