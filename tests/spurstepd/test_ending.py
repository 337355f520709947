"""Verdicts, limits, and the end of what does not want to end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from spurstepd import manifest
from spurstepd.launchplan import Hooks
from spurstepd.ledger import Duty, Process, Progress
from tests.patience import wait_for
from tests.spurstepd.conftest import Bench, RunHandle, exit_of

STUBBORN = "#!/bin/bash\ntrap '' TERM\ntouch {0}/up\nwhile :; do sleep 0.05; done\n"


def test_cancel_is_term_then_kill_and_the_verdict_stands_r24(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start(STUBBORN.format(bench.output), kill_wait_s=0.3)
    wait_for((bench.output / "up").exists, "the script")
    assert run.call("Terminate", kind="cancelled", by_uid=1000, reason="scancel")["first"] is True
    assert run.call("Terminate", kind="timeout")["first"] is False
    state = run.finish()
    assert exit_of(state) == ("waitid", signal.SIGKILL)
    assert (state["verdict"]["kind"], state["verdict"]["by_uid"]) == ("cancelled", 1000)
    assert "CANCELLED AT" in (bench.output / "42.1.out").read_text()


def test_exit_of_a_script_that_survives_term_is_its_own(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start(f"#!/bin/bash\ntrap 'exit 4' TERM\ntouch {bench.output}/up\nwhile :; do sleep 0.05; done\n")
    wait_for((bench.output / "up").exists, "the script")
    run.call("Terminate", kind="cancelled")
    state = run.finish()
    assert exit_of(state) == ("waitid", 4 << 8)
    assert state["verdict"]["kind"] == "cancelled"


def test_verdict_is_on_disk_before_the_first_signal(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n")
    run.wait_phase("running")
    bench.order("ladder-term", "wait")
    peer = run.peer()
    peer.send("org.spur.Run.Terminate", kind="cancelled")
    bench.reached("ladder-term")
    verdict = run.manifest().verdict
    assert verdict is not None and verdict.kind.value == "cancelled"
    assert run.manifest().exit is None
    bench.let_go("ladder-term")
    peer.receive()
    peer.close()
    run.finish()


def test_supervisor_enforces_the_time_limit_alone(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n", time_limit_s=0.3)
    state = run.finish()
    assert state["verdict"]["kind"] == "timeout"
    assert "DUE TO TIME LIMIT" in (bench.output / "42.1.out").read_text()


def test_time_limit_survives_the_supervisor(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n", time_limit_s=0.7)
    os.kill(run.wait_phase("running")["supervisor"]["pid"], signal.SIGKILL)
    state = run.finish()
    assert state["verdict"]["kind"] == "timeout"
    assert exit_of(state) == ("witness", signal.SIGTERM)


def test_suspended_run_is_stopped_not_timed_and_can_be_cancelled(bench: Bench) -> None:
    bench.start_launcher()
    beat = bench.output / "beat"
    run = bench.start(f"#!/bin/bash\nwhile :; do echo >> {beat}; sleep 0.01; done\n", time_limit_s=1.0, kill_wait_s=0.5)
    wait_for(beat.exists, "the script")
    run.call("Suspend")
    stopped = wait_for(lambda: _unchanged(beat), "no more beats")
    time.sleep(1.2)  # longer than the limit: what is suspended has all the time there is
    assert beat.stat().st_size == stopped
    assert run.state()["suspended"] is True
    assert run.state()["phase"] == "running"
    run.call("Terminate", kind="cancelled")
    assert run.finish()["verdict"]["kind"] == "cancelled"


def _unchanged(path: Path) -> int:
    size = path.stat().st_size
    time.sleep(0.1)
    return size if path.stat().st_size == size else 0


def test_resumed_run_goes_on_and_has_its_time(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nsleep 0.3\nexit 6\n", time_limit_s=30.0)
    run.wait_phase("running")
    before = run.manifest().deadline_boottime
    run.call("Suspend")
    time.sleep(0.5)
    run.call("Resume")
    after = run.manifest().deadline_boottime
    assert before is not None and after is not None and after >= before + 0.5
    assert exit_of(run.finish()) == ("waitid", 6 << 8)


def test_wedged_supervisor_is_succeeded_and_its_job_goes_on(bench: Bench) -> None:
    """Stopped, it answers nobody; killed, its successor has the verdict to carry out."""
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n")
    supervisor = run.wait_phase("running")["supervisor"]["pid"]
    leader = run.state()["leader"]["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    state = wait_for(lambda: _another(run, supervisor), "a successor")
    assert state["leader"]["pid"] == leader
    run.call("Terminate", kind="cancelled")
    assert exit_of(run.finish()) == ("witness", signal.SIGTERM)


def _another(run: RunHandle, than: int) -> dict[str, Any] | None:
    try:
        state = run.wait_phase("running")
    except ConnectionError:
        return None
    return state if state["supervisor"]["pid"] != than else None


def test_hook_that_takes_too_long_is_killed_with_its_children_and_drains(bench: Bench) -> None:
    program, child = bench.output / "epilog", bench.output / "child"
    program.write_text(f"#!/bin/bash\nsleep 1000 & echo $! > {child}; wait\n")
    program.chmod(0o755)
    bench.start_launcher()
    state = bench.start("#!/bin/bash\nexit 2\n", hooks=Hooks(epilog=str(program), epilog_timeout_s=0.3)).finish()
    assert exit_of(state) == ("waitid", 2 << 8)
    assert state["drain"] == "job 42: epilog did not end within 0.3 s"
    assert not Path(f"/proc/{child.read_text().strip()}").exists()


def test_failing_prolog_keeps_the_job_from_running_and_says_why(bench: Bench) -> None:
    program = bench.output / "prolog"
    program.write_text("#!/bin/bash\necho the file system is away >&2\nexit 3\n")
    program.chmod(0o755)
    bench.start_launcher()
    state = bench.start("#!/bin/bash\necho ran\n", hooks=Hooks(prolog=str(program))).finish()
    assert exit_of(state) == ("never_started", None)
    assert state["drain"] == "job 42: prolog exited with code 3: the file system is away"
    assert state["requeue_held"] is True
    assert not (bench.output / "42.1.out").exists()


def test_epilog_learns_the_exit_and_runs_once_per_run_r15(bench: Bench) -> None:
    program = bench.output / "epilog"
    program.write_text(
        f'#!/bin/bash\necho "$SLURM_JOB_EXIT_CODE $SLURM_JOB_EXIT_CODE2 $SLURM_SCRIPT_CONTEXT" >> {bench.output}/said\n'
    )
    program.chmod(0o755)
    bench.start_launcher()
    bench.start("#!/bin/bash\nkill -9 $$\n", hooks=Hooks(epilog=str(program))).finish()
    assert (bench.output / "said").read_text() == "9 0:9 epilog_slurmd\n"


def test_another_boot_settles_what_is_owed(bench: Bench) -> None:
    """After a reboot everything is dead; the exit is unknown, aloud, and the epilog is still owed."""
    program = bench.output / "epilog"
    program.write_text(f"#!/bin/bash\necho $SPUR_JOB_EXIT_SOURCE >> {bench.output}/said\n")
    program.chmod(0o755)
    bench.start_launcher()
    run = bench.make_run("#!/bin/bash\necho ran\n", hooks=Hooks(epilog=str(program)))
    record = replace(
        run.manifest().marked(Duty.RUN, Progress.RUNNING, 1.0),
        boot_id="00000000-0000-0000-0000-000000000000",
        leader=Process(os.getpid(), 1, 1),  # a pid that exists, and is somebody else's
    )
    manifest.store(run.dir, record)
    bench.supervise(run)
    state = run.finish()
    assert exit_of(state) == ("unknown", None)
    assert "rebooted" in state["exit"]["detail"]
    assert (bench.output / "said").read_text() == "unknown\n"
    assert not (bench.output / "42.1.out").exists()


def test_pid_of_somebody_else_is_not_taken_for_the_leader_r26(bench: Bench) -> None:
    bench.start_launcher()
    run = bench.make_run("#!/bin/bash\necho ran\n")
    record = replace(run.manifest().marked(Duty.RUN, Progress.RUNNING, 1.0), leader=Process(os.getpid(), 12345, 12345))
    manifest.store(run.dir, record)
    bench.supervise(run)
    assert exit_of(run.finish()) == ("unknown", None)


def test_supervisor_does_not_leave_before_what_its_epilog_left_is_gone(bench: Bench) -> None:
    """An epilog that leaves many processes behind: they are killed, and the place is removed, however long it takes."""
    program = bench.output / "epilog"
    program.write_text("#!/bin/bash\nfor i in $(seq 40); do setsid sleep 1000 & done\n")
    program.chmod(0o755)
    bench.start_launcher()
    bench.start("#!/bin/bash\nexit 2\n", hooks=Hooks(epilog=str(program))).finish()
    assert not [pid for pid in bench.processes() if pid != bench.launchers[0].pid]
