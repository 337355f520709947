"""What went wrong elsewhere with hooks, reports, releases and attempts: each kind, with what has to happen."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import Cluster
from tests.endtoend.conftest import Traced
from tests.endtoend.scripts import (
    let_go,
    lives,
    ran,
    wait_gone,
    wait_idle,
    wait_ran,
    wait_state,
    waiting,
)
from tests.patience import wait_for


def test_next_job_does_not_start_before_the_epilog_of_the_last_has_ended(traced: Traced) -> None:
    """Field report: a job began while the epilog of the one before still cleaned its node."""
    cluster, traces = traced
    traces.does("epilog", "sleep 1")
    first, second = (cluster.sbatch("exit 0") for _ in range(2))
    cluster.wait_job(second, "COMPLETED")
    assert traces.times("epilog", first).ends[0] <= traces.times("prolog", second).begins[0]


def test_requeued_job_starts_again_only_after_its_own_epilog(traced: Traced) -> None:
    """Field report: a requeue was only a cancel; and the script was gone when the job was to run again."""
    cluster, traces = traced
    traces.does("epilog", "sleep 0.5")
    script = cluster.work / "job.sh"
    script.write_text(f"#!/bin/sh\necho ${{SLURM_RESTART_COUNT:-none}} >> {cluster.work}/count{waiting(cluster)}")
    job = cluster.sbatch(None, script)
    script.unlink()
    wait_ran(cluster, job)
    leader = cluster.agent.leader_pid(job)
    cluster.run("scontrol", "requeue", str(job), check=True)
    wait_gone(leader)
    let_go(cluster)
    shown = cluster.wait_job(job, "FAILED", Restarts="1")
    assert shown["ExitCode"] == "7:0"
    cluster.wait_released()
    prologs, epilogs = traces.times("prolog", job), traces.times("epilog", job)
    assert (len(prologs.begins), len(epilogs.ends)) == (2, 2)
    assert epilogs.ends[0] <= prologs.begins[1]
    assert (cluster.work / "count").read_text() == "none\n1\n"


def test_exit_code_is_seen_while_the_epilog_still_runs(traced: Traced) -> None:
    """Field report: clients could not tell what a job that was COMPLETING had come to."""
    cluster, traces = traced
    traces.does("epilog", f"while [ ! -e {cluster.work}/cleaned ]; do sleep 0.05; done")
    job = cluster.sbatch("exit 7")
    assert cluster.wait_job(job, "COMPLETING", ExitCode="7:0")
    assert cluster.nodes()["n1"]["CPUAlloc"] == "1"
    (cluster.work / "cleaned").touch()
    cluster.wait_job(job, "FAILED", ExitCode="7:0")
    wait_idle(cluster)


def test_failed_prolog_holds_the_job_and_drains_the_node_with_a_reason_that_names_both(traced: Traced) -> None:
    """Field report: what a failed prolog did to its job differed from path to path, and sometimes it was lost."""
    cluster, traces = traced
    traces.does("prolog", "echo the filesystem is away; exit 1")
    job = cluster.sbatch(waiting(cluster))
    held = cluster.wait_job(job, "PENDING", Reason="launch_failed_requeued_held")
    assert held["ExitCode"] == "0:0"
    reason = wait_state(cluster, "n1", "DRAIN")["Reason"]
    assert f"job {job}: prolog" in reason and "the filesystem is away" in reason
    assert reason.count("prolog") == 1
    cluster.wait_released()
    assert (ran(cluster, job), len(traces.times("epilog", job).ends)) == (0, 1)
    traces.does("prolog", ":")
    let_go(cluster)
    cluster.run("scontrol", "update", "nodename=n1", "state=resume", check=True)
    cluster.run("scontrol", "release", str(job), check=True)
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    assert ran(cluster, job) == 1


def test_failed_epilog_drains_the_node_and_leaves_the_result(traced: Traced) -> None:
    cluster, traces = traced
    traces.does("epilog", "exit 3")
    job = cluster.sbatch("exit 0")
    shown = cluster.wait_job(job, "COMPLETED")
    assert shown["ExitCode"] == "0:0"
    assert f"job {job}: epilog" in wait_state(cluster, "n1", "DRAIN")["Reason"]
    later = cluster.sbatch("exit 0")
    assert cluster.wait_job(later, "PENDING")["Reason"] != "None"
    cluster.agent.restart(signal.SIGKILL)
    cluster.controller.restart(signal.SIGKILL)
    assert f"job {job}: epilog" in wait_state(cluster, "n1", "DRAIN")["Reason"]
    traces.does("epilog", ":")
    cluster.run("scontrol", "update", "nodename=n1", "state=resume", check=True)
    cluster.wait_job(later, "COMPLETED")


def test_reports_are_not_given_up_while_the_controller_is_away(make_traced: Callable[..., Traced]) -> None:
    """Field report: three tries, then the end of a job was forgotten; it was COMPLETING for minutes, then failed."""
    cluster, traces = make_traced(nodes={"n1": {"cpus": 20}})
    jobs = [cluster.sbatch(waiting(cluster, code=code)) for code in range(20)]
    wait_ran(cluster, *jobs)
    cluster.controller.stop(signal.SIGKILL)
    let_go(cluster)
    wait_for(lambda: all(traces.times("epilog", job).ends for job in jobs), "all epilogs ended", explain=cluster.story)
    cluster.agent.stop(signal.SIGKILL)
    cluster.agent.start(wait=False)
    cluster.agent.wait_event("listening")
    cluster.start_controller()
    shown = [cluster.wait_job(job, within_s=15) for job in jobs]
    assert [one["ExitCode"] for one in shown] == [f"{code}:0" for code in range(20)]
    cluster.wait_released()
    assert all(len(traces.times("epilog", job).begins) == 1 for job in jobs)


def test_jobs_of_a_node_that_is_set_down_are_ended_on_it_before_anybody_else_gets_their_place(traced: Traced) -> None:
    """Field report: the controller ended a job by itself and never told the agent, which refused all later ones."""
    cluster, traces = traced
    job = cluster.sbatch("trap '' TERM\nwhile :; do sleep 0.1; done", "--no-requeue")
    leader = cluster.agent.leader_pid(job)
    cluster.run("scontrol", "update", "nodename=n1", "state=down", "reason=cable", check=True)
    assert cluster.wait_job(job)["JobState"] == "NODE_FAIL"
    later = cluster.sbatch(f"[ -e /proc/{leader} ] && exit 1\nexit 0")
    cluster.run("scontrol", "update", "nodename=n1", "state=resume", check=True)
    cluster.wait_job(later, "COMPLETED")
    assert not lives(leader)
    assert traces.times("epilog", job).ends[0] <= traces.times("prolog", later).begins[0]


def test_run_that_the_controller_does_not_know_is_ended_and_its_number_not_given_again(traced: Traced) -> None:
    """Field report: a job that the controller had forgotten kept its node's GPUs for ever."""
    cluster, traces = traced
    job = cluster.sbatch("exec sleep 1000")
    leader = cluster.agent.leader_pid(job)
    cluster.controller.stop(signal.SIGKILL)
    shutil.rmtree(cluster.root / "spurctld")
    cluster.start_controller()
    wait_gone(leader)
    cluster.wait_released()
    later = cluster.sbatch("exit 0")
    assert later > job
    cluster.wait_job(later, "COMPLETED")
    assert len(traces.times("epilog", job).ends) == 1
    wait_idle(cluster)


def test_end_of_one_attempt_that_is_late_does_not_hit_the_next(traced: Traced) -> None:
    """Field report: a cancel that had been delayed was meant for attempt N and ended attempt N+1."""
    cluster, traces = traced
    job = cluster.sbatch(waiting(cluster))
    wait_ran(cluster, job)
    leader = cluster.agent.leader_pid(job)
    cluster.agent.send(signal.SIGSTOP)
    cluster.run("scontrol", "requeue", str(job), check=True)
    assert lives(leader)
    cluster.agent.send(signal.SIGCONT)
    wait_gone(leader)
    wait_for(lambda: ran(cluster, job) == 2, "the next attempt runs", explain=cluster.story)
    cluster.agent.restart(signal.SIGKILL)
    assert cluster.wait_job(job, "RUNNING")["Restarts"] == "1"
    let_go(cluster)
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    cluster.wait_released()
    assert (ran(cluster, job), len(traces.times("epilog", job).ends)) == (2, 2)


def test_release_of_one_run_does_not_free_anothers_resources(make_cluster: Callable[..., Cluster]) -> None:
    """Field report: what ended first gave back the CPUs of its siblings too."""
    cluster = make_cluster(nodes={"n1": {"cpus": 2}})
    first = cluster.sbatch("exec sleep 1000")
    second = cluster.sbatch(waiting(cluster))
    wait_ran(cluster, second)
    whole = cluster.sbatch("exit 0", "-c", 2)
    cluster.cancel(first)
    wait_for(lambda: cluster.nodes()["n1"]["CPUAlloc"] == "1", "one CPU is free", explain=cluster.story)
    assert cluster.agent.runs == [f"{second}.1"]
    cluster.agent.restart(signal.SIGKILL)
    assert cluster.wait_job(whole, "PENDING", Reason="Resources")
    let_go(cluster)
    cluster.wait_job(whole, "COMPLETED")


def test_every_end_has_its_epilog(make_traced: Callable[..., Traced]) -> None:
    """Field report: the forced end of a job went past all cleaning up."""
    brief = [{"name": "main", "default": True}, {"name": "brief", "default_time": "0:01"}]
    cluster, traces = make_traced(
        nodes={"n1": {"cpus": 16}}, config={"partitions": brief, "job": {"kill_wait_secs": 0.5}}
    )
    stubborn = "trap '' TERM\nwhile :; do sleep 0.1; done"
    exits = cluster.sbatch("exit 1")
    no_interpreter = cluster.sbatch("#!/no/such/interpreter")
    overruns = cluster.sbatch(stubborn, "-p", "brief")
    cancelled, killed, orphaned = (cluster.sbatch(text) for text in ("exec sleep 1000", stubborn, "exec sleep 1000"))
    for job in (cancelled, killed, orphaned):
        cluster.agent.leader_pid(job)
    os.kill(cluster.agent.supervisor_pid(orphaned), signal.SIGKILL)
    cluster.cancel(cancelled, killed, orphaned)
    jobs = {exits: "FAILED", no_interpreter: "FAILED", overruns: "TIMEOUT"}
    jobs |= dict.fromkeys((cancelled, killed, orphaned), "CANCELLED")
    for job, state in jobs.items():
        cluster.wait_job(job, state)
    cluster.wait_released()
    for job in jobs:
        assert [len(traces.times(hook, job).ends) for hook in ("prolog", "epilog")] == [1, 1], job


def test_many_cancels_of_one_job_are_one(make_traced: Callable[..., Traced]) -> None:
    """Field report: a daemon crashed when several ends of one job came together."""
    cluster, traces = make_traced()
    job = cluster.sbatch("trap '' TERM\nwhile :; do sleep 0.1; done")
    cluster.agent.leader_pid(job)
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: cluster.run("scancel", str(job)).returncode, range(12)))
    assert set(results) == {0}
    assert cluster.wait_job(job)["JobState"] == "CANCELLED"
    cluster.wait_released()
    assert cluster.job(job)["ExitCode"] == "0:9"
    assert len(traces.times("epilog", job).begins) == 1


def test_what_sbatch_was_told_is_true_after_a_crash_of_the_controller(cluster: Cluster) -> None:
    """Field report: a job that had been taken was not known after a failover."""
    cluster.agent.stop()
    jobs = [cluster.sbatch(f"exit {code}") for code in range(5)]
    cluster.controller.kill()
    cluster.start_controller()
    assert [cluster.job(job)["JobState"] for job in jobs] == ["PENDING"] * 5
    cluster.agent.start()
    assert [cluster.wait_job(job)["ExitCode"] for job in jobs] == [f"{code}:0" for code in range(5)]


def test_controller_leaves_promptly_though_an_agent_hangs(cluster: Cluster) -> None:
    """Field report: the controller did not end as long as a call of somebody was open."""
    cluster.agent.send(signal.SIGSTOP)
    cluster.sbatch("exit 0")
    assert cluster.controller.stop(within_s=8) == 0
    cluster.start_controller()
    cluster.agent.send(signal.SIGCONT)
