"""From a launch to its plan: environment, paths, limits and the first ledger. Expected values are Slurm 22.05's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from spurd.claims import Request
from spurd.environment import UNLIMITED_S, Account, Allocation, Asked
from spurd.launches import INFINITE, Launch, Site, first_ledger, limits, plan
from spurstepd.ids import RunId
from spurstepd.launchplan import Hooks, LaunchPlan, decode, encode
from spurstepd.ledger import Device, Duty, Grant, Progress
from spurstepd.rundir import RunDir

RUN = RunId(52, 1)
ALLOCATION = Allocation(
    run=RUN,
    cluster="peer",
    node="vm",
    hostname="vm.example",
    partition="debug",
    nodes="vm",
    num_nodes=1,
    node_index=0,
    tasks_per_node="1",
    cpus_per_node="2",
    started_at=1000.9,
    time_limit_s=UNLIMITED_S,
    restarts=0,
    config_path="/etc/spur/spur.toml",
)
ASKED = Asked("s.sh", "/home/u", "login", "", "", "", None, None, None, None, None)
ACCOUNT = Account("u", 1000, 100, "/home/u", "/bin/bash", (100, 27))
GRANT = Grant((0, 1))
SITE = Site(Hooks(), 60.0, 10.0, False, False, False, False, {"NOFILE": (1024, 4096), "CORE": (0, -1)})
LAUNCH = Launch(
    run=RUN,
    uid=1000,
    gid=100,
    user="u",
    wanted=Request(2),
    allocation=ALLOCATION,
    asked=ASKED,
    script=b"#!/bin/sh\n",
    arguments=("a", "b"),
    environment=(b"PATH=/x", b"SLURM_SUBMIT_DIR=/home/u", b"FOO=a=b", b"SLURM_RESTART_COUNT=3"),
    umask=0o027,
    stdin="",
    stdout="",
    stderr="",
    append=False,
    limits={},
    task_prolog="",
    task_epilog="",
    kill_wait_s=30.0,
    may_start=True,
    stimulus="",
)
# env of a job of sbatch without options, without what the supervisor adds (SLURM_TASK_PID) or has no meaning here
# (SLURM_WORKING_CLUSTER, which names a protocol version of Slurm's).
OF_SLURM = {
    "ENVIRONMENT", "HOSTNAME", "SLURMD_NODENAME", "SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_CPUS_ON_NODE",
    "SLURM_GTIDS", "SLURM_JOBID", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GID", "SLURM_JOB_ID", "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_JOB_UID", "SLURM_JOB_USER",
    "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NODELIST", "SLURM_NODE_ALIASES", "SLURM_PRIO_PROCESS",
    "SLURM_PROCID", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_TASKS_PER_NODE", "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN", "TMPDIR",
}  # fmt: skip
LATER = {"SLURM_JOB_START_TIME"}  # set by Slurm since 23.02


def planned(launch: Launch = LAUNCH, grant: Grant = GRANT, site: Site = SITE, **gpus: str) -> LaunchPlan:
    return plan(launch, ACCOUNT, grant, gpus, site, RunDir(Path("/s/runs/52.1")))


def variables(launch: Launch = LAUNCH, **gpus: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in planned(launch, **gpus).environment)


def test_the_script_sees_the_variables_that_slurm_sets_and_no_other_of_its_kind() -> None:
    names = {name for name in variables() if name.startswith("SLURM") or name in OF_SLURM}
    assert names == OF_SLURM | LATER


def test_what_the_job_brings_is_passed_on_and_what_we_know_better_is_not() -> None:
    seen = variables()
    assert seen["PATH"] == "/x"
    assert seen["FOO"] == "a=b"
    assert "HOME" not in seen
    assert "SLURM_RESTART_COUNT" not in seen
    assert variables(replace(LAUNCH, allocation=replace(ALLOCATION, restarts=2)))["SLURM_RESTART_COUNT"] == "2"


def test_a_job_that_brings_nothing_has_a_login() -> None:
    bare = replace(LAUNCH, environment=(), asked=replace(ASKED, export="NONE"))
    seen = variables(bare)
    assert (seen["USER"], seen["LOGNAME"], seen["SHELL"], seen["HOME"]) == ("u", "u", "/bin/bash", "/home/u")
    assert (seen["SLURM_EXPORT_ENV"], seen["SLURM_GET_USER_ENV"]) == ("NONE", "1")
    assert "SLURM_GET_USER_ENV" not in variables(replace(LAUNCH, asked=replace(ASKED, export="ALL,X=y")))


def test_what_was_asked_for_shows_and_what_was_not_does_not() -> None:
    asked = replace(ASKED, tasks=2, cpus_per_task=1, memory_mb=100, memory_per_cpu_mb=50, account="lab")
    seen = variables(replace(LAUNCH, asked=asked))
    assert (seen["SLURM_NTASKS"], seen["SLURM_NPROCS"], seen["SLURM_CPUS_PER_TASK"]) == ("2", "2", "1")
    assert (seen["SLURM_MEM_PER_NODE"], seen["SLURM_MEM_PER_CPU"], seen["SLURM_JOB_ACCOUNT"]) == ("100", "50", "lab")
    assert "SLURM_MEM_PER_NODE" not in variables(replace(LAUNCH, asked=replace(ASKED, memory_mb=0)))


def test_a_time_limit_shows_as_the_time_at_which_it_ends() -> None:
    limited = replace(LAUNCH, allocation=replace(ALLOCATION, time_limit_s=60))
    assert variables(limited)["SLURM_JOB_END_TIME"] == "1060"
    assert planned(limited).time_limit_s == 60
    assert planned().time_limit_s is None


def test_outputs_are_relative_to_the_working_directory_and_joined_by_default() -> None:
    made = planned()
    assert made.stdout == made.stderr == "/home/u/slurm-52.out"
    assert made.stdin == "/dev/null"
    made = planned(replace(LAUNCH, stdout="o/%x-%u-%N", stderr="/tmp/%j.err", stdin="in"))
    assert (made.stdout, made.stderr, made.stdin) == ("/home/u/o/s.sh-u-vm", "/tmp/52.err", "/home/u/in")
    assert planned(replace(LAUNCH, stdout="none")).stdout == "/dev/null"


def test_the_script_is_run_as_it_stands_with_its_arguments() -> None:
    made = planned()
    assert made.argv == ("/s/runs/52.1/script", "a", "b")
    assert (made.uid, made.gid, made.groups, made.umask, made.cwd) == (1000, 100, (100, 27), 0o027, "/home/u")
    assert planned(replace(LAUNCH, script=b"")).argv == ()
    assert decode(json.loads(json.dumps(encode(made)))) == made


def test_limits_are_the_submitters_within_what_a_process_may_have_here() -> None:
    node = {"NOFILE": (1024, 4096), "CORE": (0, -1), "STACK": (8192, 8192)}
    assert {name: (soft, hard) for name, soft, hard in limits({}, node)} == node
    asked = {"NOFILE": 65536, "CORE": INFINITE, "STACK": 4096, "UNKNOWN": 1}
    assert limits(asked, node) == (("CORE", -1, -1), ("NOFILE", 4096, 4096), ("STACK", 4096, 8192))


def test_hooks_are_told_of_the_run_and_inherit_nothing() -> None:
    site = replace(SITE, hooks=Hooks(prolog="/p", epilog="/e", task_prolog=("/tp",)))
    made = planned(replace(LAUNCH, task_prolog="/mine"), site=site, CUDA_VISIBLE_DEVICES="0").hooks
    seen = dict(entry.split("=", 1) for entry in made.environment)
    assert (made.prolog, made.epilog, made.task_prolog) == ("/p", "/e", ("/tp", "/mine"))
    assert (seen["SLURM_JOB_ID"], seen["SLURM_JOB_USER"], seen["SLURM_JOB_UID"]) == ("52", "u", "1000")
    assert (seen["SLURM_JOB_WORK_DIR"], seen["SLURM_JOB_STDOUT"]) == ("/home/u", "/home/u/slurm-52.out")
    assert seen["CUDA_VISIBLE_DEVICES"] == "0"
    assert "FOO" not in seen


def test_devices_of_others_are_denied() -> None:
    devices = tuple(Device("gpu", "", index, f"/dev/nvidia{index}") for index in range(3))
    made = planned(grant=Grant((0,), 0, devices[1:2]), site=replace(SITE, devices=devices))
    assert made.denied_devices == ("/dev/nvidia0", "/dev/nvidia2")


def test_a_hook_that_the_site_does_not_have_is_not_owed() -> None:
    """R11"""
    without = first_ledger(LAUNCH, GRANT, SITE, "boot", "nonce", 1.0)
    assert without.progress(Duty.PROLOG) is without.progress(Duty.EPILOG) is Progress.NONE
    assert without.progress(Duty.RUN) is without.progress(Duty.REPORT) is Progress.OWED
    hooks = replace(SITE, hooks=Hooks(epilog="/e"))
    assert first_ledger(LAUNCH, GRANT, hooks, "boot", "nonce", 1.0).progress(Duty.EPILOG) is Progress.OWED
    plugins = replace(SITE, hooks=Hooks(plugins=("site",)))
    assert first_ledger(LAUNCH, GRANT, plugins, "boot", "nonce", 1.0).progress(Duty.PROLOG) is Progress.OWED


def test_a_run_is_bound_to_its_cpus_only_where_all_of_them_are_real() -> None:
    """A node may declare more CPUs than its machine has; what is virtual cannot be bound to."""
    site = replace(SITE, constrain_cpus=True, real_cpus=frozenset({0, 1}))
    for cpus, bound in (((0, 1), True), ((1, 2), False)):
        made = plan(LAUNCH, ACCOUNT, Grant(cpus=cpus), {}, site, RunDir(Path("/spool/52.1")))
        assert made.constrain_cpus is bound
