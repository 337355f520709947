"""What a batch script finds: its user, its place, its files, and how its failures to start are told."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import spurstepd
from spurstepd.launchplan import Hooks
from tests.spurstepd.conftest import Bench, exit_of

NOBODY = 65534


def output(bench: Bench, run: str = "42.1") -> str:
    return (bench.output / f"{run}.out").read_text()


def test_runs_as_its_user_with_a_constructed_environment(bench: Bench) -> None:
    bench.start_launcher()
    script = (
        "#!/bin/bash\nid -u; id -g; pwd; umask; env | sort; cat /proc/self/oom_score_adj; grep SigIgn /proc/$$/status\n"
    )
    run = bench.start(script, uid=NOBODY, environment=("PATH=/usr/bin:/bin", "A=1 2=3"), umask=0o027)
    run.finish()
    lines = output(bench).splitlines()
    assert lines[:4] == [str(NOBODY), str(NOBODY), str(bench.output), "0027"]
    assert [one for one in lines if one.startswith("A=")] == ["A=1 2=3"]
    assert not [one for one in lines if one.startswith(("SPUR_FAULTS_DIR", "HOME="))]
    assert lines[-2] == "0"
    assert int(lines[-1].split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert os.stat(bench.output / "42.1.out").st_uid == NOBODY


def test_script_is_run_as_it_is_r23(bench: Bench) -> None:
    """A syntax error on line 3 still runs line 2; an EXIT trap and a trailing exec are the user's."""
    bench.start_launcher()
    syntax = bench.start("#!/bin/bash\necho first\nif then\n", job=1)
    trap = bench.start("#!/bin/bash\ntrap 'echo trapped; exit 5' EXIT\nfalse\n", job=2)
    trailing = bench.start("#!/bin/bash\nexec bash -c 'exit 9'\n", job=3)
    assert exit_of(syntax.finish()) == ("waitid", 2 << 8)
    assert "first" in output(bench, "1.1")
    assert exit_of(trap.finish()) == ("waitid", 5 << 8)
    assert output(bench, "2.1") == "trapped\n"
    assert exit_of(trailing.finish()) == ("waitid", 9 << 8)


def test_core_dump_is_told(bench: Bench) -> None:
    bench.start_launcher()
    state = bench.start("#!/bin/bash\nulimit -c unlimited\nkill -SEGV $$\n", limits=(("CORE", -1, -1),)).finish()
    assert state["exit"]["signal"] == signal.SIGSEGV
    assert state["exit"]["status"] in (signal.SIGSEGV, signal.SIGSEGV | 0x80)
    assert state["exit"]["core"] == bool(state["exit"]["status"] & 0x80)


def test_unwritable_output_is_said_and_gives_code_1(bench: Bench) -> None:
    bench.start_launcher()
    state = bench.start("#!/bin/bash\nexit 0\n", stdout="/nonexistent/out", stderr="/nonexistent/out").finish()
    assert exit_of(state) == ("waitid", 1 << 8)
    assert state["exit"]["detail"] == "Could not open stdout file /nonexistent/out: No such file or directory"


def test_output_is_opened_as_the_user(bench: Bench) -> None:
    """Root could write it; the job's user cannot, and so the job cannot."""
    bench.start_launcher()
    closed = bench.output / "roots"
    closed.mkdir(mode=0o700)
    state = bench.start(
        "#!/bin/bash\nexit 0\n", uid=NOBODY, stdout=str(closed / "x"), stderr=str(closed / "x")
    ).finish()
    assert state["exit"]["detail"].endswith("Permission denied")
    assert not (closed / "x").exists()


def test_bad_interpreter_is_named(bench: Bench) -> None:
    bench.start_launcher()
    state = bench.start("#!/nonexistent/sh\n").finish()
    assert exit_of(state) == ("waitid", 2 << 8)
    assert state["exit"]["detail"] == "execve(): bad interpreter(/nonexistent/sh): No such file or directory"
    assert "bad interpreter(/nonexistent/sh)" in output(bench)


def test_missing_working_directory_falls_back_to_tmp_as_in_slurm(bench: Bench) -> None:
    bench.start_launcher()
    state = bench.start("#!/bin/bash\npwd\n", cwd="/nonexistent/dir").finish()
    assert exit_of(state) == ("waitid", 0)
    said = output(bench)
    assert "couldn't chdir to `/nonexistent/dir': No such file or directory: going to /tmp instead" in said
    assert said.endswith("/tmp\n")


def test_task_knows_its_pid_and_has_a_temporary_directory_as_in_slurm(bench: Bench) -> None:
    """The notes are slurmstepd's of 22.05, but for its name."""
    bench.start_launcher()
    script = "#!/bin/sh\necho $SLURM_TASK_PID $$; echo $TMPDIR; stat -c %a $TMPDIR\n"
    made = bench.output / "tmp"
    bench.start(script, job=1, environment=("PATH=/usr/bin:/bin", f"TMPDIR={made}")).finish()
    pids, directory, mode = output(bench, "1.1").splitlines()
    assert len(set(pids.split())) == 1
    assert (directory, mode) == (str(made), "700")
    nowhere = "/nowhere/at/all"
    bench.start(script, job=2, environment=("PATH=/usr/bin:/bin", f"TMPDIR={nowhere}")).finish()
    assert output(bench, "2.1").splitlines()[:2] == [
        f"spurstepd: error: Unable to create TMPDIR [{nowhere}]: No such file or directory",
        "spurstepd: error: Setting TMPDIR to /tmp",
    ]


@pytest.mark.parametrize("append, expected", [(False, "new\n"), (True, "old\nnew\n")])
def test_output_is_truncated_or_appended(bench: Bench, append: bool, expected: str) -> None:
    bench.start_launcher()
    (bench.output / "42.1.out").write_text("old\n")
    bench.start("#!/bin/bash\necho new\n", append=append).finish()
    assert output(bench) == expected


def test_stdout_and_stderr_in_one_file_lose_nothing(bench: Bench) -> None:
    """Field report: two opens of one file clobber each other."""
    bench.start_launcher()
    bench.start("#!/bin/bash\nfor i in $(seq 200); do echo out $i; echo err $i >&2; done\n").finish()
    assert len(output(bench).splitlines()) == 400


def test_leftovers_die_with_the_run(bench: Bench) -> None:
    """A daemon that detached itself by setsid and a double fork is not left behind."""
    bench.start_launcher()
    pid_file = bench.output / "daemon"
    script = f"#!/bin/bash\nsetsid bash -c 'echo $$ > {pid_file}; exec sleep 1000' &\nwhile [ ! -s {pid_file} ]; do :; done\n"
    run = bench.start(script)
    state = run.finish()
    assert exit_of(state) == ("waitid", 0)
    daemon = int(pid_file.read_text())
    assert not Path(f"/proc/{daemon}").exists()


def test_task_prolog_changes_the_environment(bench: Bench) -> None:
    program = bench.output / "task_prolog"
    program.write_text("#!/bin/bash\necho export ADDED=by prolog\necho unset GONE\necho print said\n")
    program.chmod(0o755)
    bench.start_launcher()
    run = bench.start(
        '#!/bin/bash\necho "$ADDED/$GONE"\n',
        hooks=Hooks(task_prolog=(str(program),)),
        environment=("PATH=/usr/bin:/bin", "GONE=here"),
    )
    run.finish()
    assert output(bench) == "said\nby prolog/\n"


def test_an_order_to_end_that_comes_before_the_exec_is_not_lost(bench: Bench) -> None:
    bench.start_launcher()
    bench.order("child-signals", "wait")
    run = bench.start("#!/bin/sh\nexec sleep 1000\n")
    bench.reached("child-signals")
    run.call("Terminate", kind="cancelled")
    bench.let_go("child-signals")
    assert exit_of(run.finish()) == ("waitid", signal.SIGTERM)


def test_titles_can_be_read_by_a_person(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n")
    supervisor = run.state()["supervisor"]["pid"]
    launcher = bench.launchers[0].pid
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode() for pid in (launcher, supervisor)]
    assert titles == ["spurstepd: launcher", "spurstepd: 42.1"]
    assert Path(f"/proc/{supervisor}/comm").read_text() == "spurstepd\n"
    run.call("Terminate", kind="cancelled")
    assert exit_of(run.finish()) == ("waitid", signal.SIGTERM)


def test_no_descriptor_of_ours_reaches_the_job(bench: Bench) -> None:
    bench.start_launcher()
    bench.start("#!/bin/bash\nexec ls /proc/self/fd\n").finish()
    assert output(bench).split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


def test_affinity_where_cpus_are_constrained(bench: Bench) -> None:
    bench.start_launcher()
    bench.start("#!/bin/bash\nnproc\n", constrain_cpus=True).finish()
    assert output(bench) == "1\n"


def test_launch_without_permission_waits_for_start(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\necho ran\n", may_start=False)
    assert run.wait_phase("ready")["leader"] is None
    run.call("Start")
    assert exit_of(run.finish()) == ("waitid", 0)


def test_launch_that_nobody_claims_is_undone(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\necho ran\n", may_start=False, unclaimed_s=0.2)
    state = run.finish()
    assert exit_of(state) == ("never_started", None)
    assert state["verdict"]["kind"] == "launch_failed"
    assert not (bench.output / "42.1.out").exists()


def test_supervisor_lives_through_signals_meant_for_daemons(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nsleep 0.5\nexit 3\n")
    for pid in (run.state()["supervisor"]["pid"], bench.launchers[0].pid):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
    assert exit_of(run.finish()) == ("waitid", 3 << 8)
    assert not bench.events("supervisor_died")


def test_deleted_installation_does_not_matter(bench: Bench, tmp_path: Path) -> None:
    """The files of the package are gone while the job runs; exit and epilog are exact (M6)."""
    copy = tmp_path / "installed"
    shutil.copytree(Path(spurstepd.__file__).parent, copy / "spurstepd", ignore=shutil.ignore_patterns("__pycache__"))
    epilog = bench.output / "epilog"
    epilog.write_text(f"#!/bin/bash\necho $SLURM_JOB_EXIT_CODE2 > {bench.output}/epilog.said\n")
    epilog.chmod(0o755)
    bench.start_launcher(python=(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(copy)!r}); import spurstepd.__main__ as m; assert m.__file__.startswith({str(copy)!r}); m.main()"))  # fmt: skip
    go = bench.output / "go"
    run = bench.start(
        f"#!/bin/bash\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexit 7\n", hooks=Hooks(epilog=str(epilog))
    )
    run.wait_phase("running")
    shutil.rmtree(copy)
    go.touch()
    assert exit_of(run.finish()) == ("waitid", 7 << 8)
    assert (bench.output / "epilog.said").read_text() == "7:0\n"
    assert not bench.events("supervisor_crashed")


def test_task_epilog_runs_as_the_user_after_the_task(bench: Bench) -> None:
    program = bench.output / "task_epilog"
    program.write_text("#!/bin/bash\necho $(id -u) after\n")
    program.chmod(0o755)
    bench.start_launcher()
    run = bench.start("#!/bin/bash\necho task; exit 3\n", uid=NOBODY, hooks=Hooks(task_epilog=(str(program),)))
    assert exit_of(run.finish()) == ("waitid", 3 << 8)
    assert output(bench) == f"task\n{NOBODY} after\n"


def test_a_job_cannot_state_its_own_exit_r27(bench: Bench) -> None:
    """Its records are root's; what it can write, nobody reads for its exit (R40)."""
    bench.start_launcher()
    script = (
        "#!/bin/bash\nd=$(dirname $0)\n"
        "for f in exit manifest.json witness.json launch.json lock; do\n"
        "  (echo 0 > $d/$f) 2>/dev/null && echo wrote $f; (cat $d/$f >/dev/null) 2>/dev/null && echo read $f\n"
        "done\n(ls $d) 2>/dev/null && echo listed\nexit 7\n"
    )
    assert exit_of(bench.start(script, uid=NOBODY).finish()) == ("waitid", 7 << 8)
    assert output(bench) == ""
