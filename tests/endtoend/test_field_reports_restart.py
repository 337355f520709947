"""What went wrong elsewhere when agents and supervisors died or came back: each kind, with what has to happen."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import Cluster
from tests.endtoend.conftest import Traced
from tests.endtoend.scripts import let_go, lives, ran, wait_gone, wait_idle, wait_ran, wait_state, waiting
from tests.patience import wait_for

SHORT_TIMEOUT = {"controller": {"heartbeat_timeout_secs": 1.5, "missing_run_grace_secs": 1}}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process hangs for as long as this lasts; it may be killed meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def test_job_that_its_node_has_no_record_of_is_ended_and_given_up(make_cluster: Callable[..., Cluster]) -> None:
    """Field report: after a restart the agent knew nothing of a job, whose processes went on; it was RUNNING for hours."""
    cluster = make_cluster(config=SHORT_TIMEOUT)
    agent = cluster.agent
    job = cluster.sbatch("exec sleep 1000", "--no-requeue")
    leader, supervisor = agent.leader_pid(job), agent.supervisor_pid(job)
    agent.stop(signal.SIGKILL)
    for pid in (supervisor, *agent.launcher_pids()):
        os.kill(pid, signal.SIGSTOP)
    for pid in (supervisor, *agent.launcher_pids()):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(agent.run_dir(job))
    assert lives(leader)
    agent.start()
    shown = cluster.wait_job(job, "NODE_FAIL")
    assert shown["ExitCode"] != "0:0"
    wait_gone(leader)
    wait_idle(cluster)


def test_node_keeps_its_drain_over_a_stop_of_its_agent(cluster: Cluster) -> None:
    """Field report: stopping an agent deleted the node's record, with what an operator had written into it."""
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=fan 3 rattles", check=True)
    assert cluster.agent.stop() == 0
    assert cluster.nodes()["n1"]["State"].startswith("DOWN+DRAIN")
    cluster.agent.start()
    shown = wait_state(cluster, "n1", "IDLE", "DRAIN")
    assert shown["Reason"].startswith("fan 3 rattles")


def test_devices_of_a_run_are_still_its_own_after_a_restart(make_cluster: Callable[..., Cluster]) -> None:
    """Field report: a job that was taken back had lost its GPUs, and others were given them."""
    cluster = make_cluster(nodes={"n1": {"cpus": 4, "gres": ["gpu:2"]}})
    said = f"echo $SLURM_JOB_GPUS > {cluster.work}/gpus.$SLURM_JOB_ID"
    first = cluster.sbatch(f"{said}{waiting(cluster)}", "--gres=gpu:1")
    wait_ran(cluster, first)
    cluster.agent.restart(signal.SIGKILL)
    second = cluster.sbatch(f"{said}{waiting(cluster)}", "--gres=gpu:1")
    wait_ran(cluster, second)
    third = cluster.sbatch("exit 0", "--gres=gpu:1")
    assert cluster.wait_job(third, "PENDING", Reason="Resources")
    devices = [(cluster.work / f"gpus.{job}").read_text().strip() for job in (first, second)]
    assert sorted(devices) == ["0", "1"]
    let_go(cluster)
    for job in (first, second):
        assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    cluster.wait_job(third, "COMPLETED")


def test_one_hung_supervisor_holds_up_nobody_else_and_is_not_killed_for_it(cluster: Cluster) -> None:
    """Field report: one supervisor that did not answer hung the start of the daemon, hundreds of times over."""
    agent = cluster.agent
    hung, other = (cluster.sbatch(waiting(cluster)) for _ in range(2))
    wait_ran(cluster, hung, other)
    supervisor = agent.supervisor_pid(hung)
    with stopped(supervisor):
        agent.restart(signal.SIGKILL)
        later = cluster.sbatch("exit 3")
        assert cluster.wait_job(later, "FAILED")["ExitCode"] == "3:0"
        let_go(cluster)
        assert cluster.wait_job(other, "FAILED")["ExitCode"] == "7:0"
    assert cluster.wait_job(hung, "FAILED")["ExitCode"] == "7:0"
    assert not agent.events("supervisor_killed")
    assert [ran(cluster, job) for job in (hung, other)] == [1, 1]


def test_cancel_of_a_job_whose_supervisor_hangs_ends_it(make_traced: Callable[..., Traced]) -> None:
    """Field report: a frozen supervisor passed for alive, and blocked its node for ever."""
    cluster, traces = make_traced(config={"agent": {"supervisor_timeout_secs": 1}})
    job = cluster.sbatch("exec sleep 1000")
    leader, supervisor = cluster.agent.leader_pid(job), cluster.agent.supervisor_pid(job)
    with stopped(supervisor):
        cluster.cancel(job)
        cluster.wait_released()
        assert cluster.job(job)["JobState"] == "CANCELLED"
        wait_gone(leader)
        wait_idle(cluster)
        assert not lives(supervisor)
    assert len(traces.times("epilog", job).ends) == 1


def test_cancel_right_after_the_death_of_a_supervisor_frees_its_node_within_10_s(cluster: Cluster) -> None:
    """Field report: a supervisor that was killed left its job RUNNING and its GPU taken."""
    job = cluster.sbatch("exec sleep 1000", "-c", 8)
    leader = cluster.agent.leader_pid(job)
    os.kill(cluster.agent.supervisor_pid(job), signal.SIGKILL)
    cluster.cancel(job)
    cluster.wait_released(within_s=10)
    assert cluster.job(job)["ExitCode"] == "0:15"
    wait_gone(leader)
    wait_idle(cluster)


def test_cpus_are_not_handed_out_while_the_dead_supervisors_job_lives(traced: Traced) -> None:
    """Field report: after a restart a node took jobs while processes of the last one still ran on it."""
    cluster, _ = traced
    agent = cluster.agent
    first = cluster.sbatch("trap '' TERM\nwhile :; do sleep 0.1; done")
    leader = agent.leader_pid(first)
    victims = [agent.pid, agent.supervisor_pid(first), *agent.launcher_pids(), cluster.controller.pid]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims:
            os.kill(pid, number)
    cluster.controller.wait()
    agent.wait()
    cluster.start_controller()
    second = cluster.sbatch(f"[ -e /proc/{leader} ] && exit 1\nexit 0")
    agent.start()
    cluster.cancel(first)
    assert lives(leader)
    cluster.wait_job(second, "COMPLETED")
    assert cluster.job(first)["JobState"] == "CANCELLED"


def test_run_is_taken_back_by_a_job_that_waits_for_its_node_r07(make_traced: Callable[..., Traced]) -> None:
    """The node was given up, and is back before the job could start elsewhere: nothing is run twice."""
    cluster, traces = make_traced(config=SHORT_TIMEOUT)
    job = cluster.sbatch(waiting(cluster))
    leader = cluster.agent.leader_pid(job)
    cluster.agent.stop(signal.SIGKILL)
    wait_state(cluster, "n1", "DOWN")
    cluster.wait_job(job, "PENDING")
    cluster.agent.start()
    assert cluster.wait_job(job, "RUNNING")["Restarts"] == "0"
    assert cluster.agent.leader_pid(job) == leader
    let_go(cluster)
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    cluster.wait_released()
    assert (ran(cluster, job), len(traces.times("epilog", job).ends)) == (1, 1)


def test_exit_of_a_run_that_ended_on_a_node_that_was_given_up_counts_r07(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(config=SHORT_TIMEOUT)
    job = cluster.sbatch(waiting(cluster))
    wait_ran(cluster, job)
    cluster.agent.stop(signal.SIGKILL)
    wait_state(cluster, "n1", "DOWN")
    let_go(cluster)
    wait_for(lambda: cluster.agent.manifest(job)["exit"], "the exit is recorded", explain=cluster.story)
    cluster.agent.start()
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    assert ran(cluster, job) == 1


def test_exit_that_the_agent_alone_saw_outlives_it(cluster: Cluster) -> None:
    """Field report: the exit was lost when the daemon that had it in memory went down as well."""
    agent = cluster.agent
    job = cluster.sbatch(waiting(cluster))
    wait_ran(cluster, job)
    leader, [launcher] = agent.leader_pid(job), agent.launcher_pids()
    victims = (agent.supervisor_pid(job), launcher)
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)
    let_go(cluster)
    wait_gone(leader)
    cluster.faults.order("leader-seen", "kill")
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    agent.start()
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"


def test_older_attempt_is_ended_where_its_node_returns_r08(make_traced: Callable[..., Traced]) -> None:
    """Field report: a job was given to another node while the first was away, and then ran on both."""
    cluster, traces = make_traced(nodes=("n1", "n2"), config=SHORT_TIMEOUT)
    one, two = cluster.agents.values()
    job = cluster.sbatch(f"echo $SLURMD_NODENAME ${{SLURM_RESTART_COUNT:-0}} >> {cluster.work}/where{waiting(cluster)}")
    old = one.leader_pid(job)
    one.stop(signal.SIGKILL)
    wait_for(lambda: "1.2" in two.runs, "it goes to n2", explain=cluster.story)
    new = two.leader_pid(job, 2)
    assert cluster.wait_job(job, "RUNNING")["Restarts"] == "1"
    assert lives(old)
    one.start()
    wait_gone(old)
    wait_for(lambda: not one.runs, "nothing is left of it on n1", explain=cluster.story)
    wait_idle(cluster, "n1")
    assert len(traces.times("epilog", job).ends) == 1
    assert lives(new)
    assert cluster.job(job)["JobState"] == "RUNNING"
    let_go(cluster)
    shown = cluster.wait_job(job, "FAILED")
    assert (shown["ExitCode"], shown["NodeList"]) == ("7:0", "n2")
    assert (cluster.work / "where").read_text() == "n1 0\nn2 1\n"


def test_job_that_may_not_be_rerun_fails_with_its_node_and_is_ended_there(make_traced: Callable[..., Traced]) -> None:
    """Field report: the exit code of a job whose node was lost was 0, and what depended on it went on."""
    cluster, traces = make_traced(config=SHORT_TIMEOUT)
    job = cluster.sbatch(waiting(cluster), "--no-requeue")
    leader = cluster.agent.leader_pid(job)
    cluster.agent.stop(signal.SIGKILL)
    shown = cluster.wait_job(job, "NODE_FAIL")
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:1", "0")
    cluster.agent.start()
    wait_gone(leader)
    cluster.wait_released()
    wait_idle(cluster)
    assert cluster.job(job)["JobState"] == "NODE_FAIL"
    assert len(traces.times("epilog", job).ends) == 1


def test_pause_of_the_controller_takes_no_node_down(make_cluster: Callable[..., Cluster]) -> None:
    """Field report: a controller that had not listened for a while took all of its healthy nodes for lost."""
    cluster = make_cluster(config={"controller": {"heartbeat_timeout_secs": 5}})
    job = cluster.sbatch(waiting(cluster), "--no-requeue")
    wait_ran(cluster, job)
    with stopped(cluster.controller.pid):
        time.sleep(8)  # there is nothing to wait for: nothing happens
    assert cluster.nodes()["n1"]["State"] == "MIXED"
    let_go(cluster)
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"


def test_no_zombies_pile_up_under_agent_and_launcher(cluster: Cluster) -> None:
    """Field report: what jobs left behind stayed defunct under daemons that did not reap."""
    left = "( setsid sh -c 'sleep 0.01 & exit 0' & )\n"
    for _ in range(5):
        cluster.wait_job(cluster.sbatch(left * 10), "COMPLETED")
    cluster.wait_released()
    family = {cluster.agent.pid, *cluster.agent.launcher_pids()}

    def defunct() -> list[str]:
        found = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
        fields = [text.rpartition(")")[2].split() for text in found]
        return [one[0] for one in fields if one[0] == "Z" and int(one[1]) in family]

    wait_for(lambda: not defunct(), "nothing is defunct", explain=cluster.story)


def may_shield() -> bool:
    """Whether the kernel lets us: it does not in every container."""
    child = "open('/proc/self/oom_score_adj', 'wb', buffering=0).write(b'-999')"
    return subprocess.run([sys.executable, "-c", child], stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_supervisor_is_shielded_from_the_oom_killer_and_its_job_is_not(cluster: Cluster) -> None:
    """Field report: a supervisor's protection was inherited by the job, so that the kernel killed everybody else."""
    job = cluster.sbatch(f"cat /proc/self/oom_score_adj > {cluster.work}/score{waiting(cluster)}")
    wait_ran(cluster, job)
    supervisor = cluster.agent.supervisor_pid(job)
    assert int((cluster.work / "score").read_text()) == 0
    assert int(Path(f"/proc/{supervisor}/oom_score_adj").read_text()) == (-999 if may_shield() else 0)
    let_go(cluster)
    cluster.wait_job(job, "FAILED")
