"""What users and administrators get wrong: one clear line each, Slurm's where Slurm has one, and nothing lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import BIN, USER, Cluster


def refusal(cluster: Cluster, script: str, *options: str) -> tuple[int, str]:
    """Exit code and standard error of an sbatch that is refused; nothing was queued by it."""
    before = cluster.run("squeue", "-h", "-t", "all", "-o", "%i", check=True).stdout
    result = cluster.run("sbatch", *options, stdin=script)
    assert cluster.run("squeue", "-h", "-t", "all", "-o", "%i", check=True).stdout == before
    assert result.stdout == ""
    return result.returncode, result.stderr


def test_script_without_an_interpreter_line(cluster: Cluster) -> None:
    assert refusal(cluster, "echo hi\n") == (
        1,
        "sbatch: error: This does not look like a batch script.  The first\n"
        "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
        "sbatch: error: For instance: #!/bin/sh\n",
    )


def test_unknown_partition(cluster: Cluster) -> None:
    assert refusal(cluster, "#!/bin/sh\n", "-p", "nopart") == (
        1,
        "sbatch: error: invalid partition specified: nopart\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
    )


@pytest.mark.parametrize("options", [("-c", "1000"), ("-n", "9"), ("--mem=100G",)], ids=" ".join)
def test_request_that_no_node_can_meet(cluster: Cluster, options: tuple[str, ...]) -> None:
    code, told = refusal(cluster, "#!/bin/sh\n", *options)
    assert code == 1
    assert told.splitlines()[-1] in (
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Memory required by task is not available",
    )


def test_working_directory_that_is_gone(cluster: Cluster) -> None:
    """Slurm runs the job in /tmp and says so in its stderr; so do we."""
    gone = cluster.work / "gone"
    gone.mkdir()
    job = cluster.sbatch("pwd", "-H", "-D", gone, "-o", cluster.work / "out")
    gone.rmdir()
    cluster.run("scontrol", "release", str(job), check=True)
    assert cluster.wait_job(job)["ExitCode"] == "0:0"
    said = (cluster.work / "out").read_text()
    assert f"couldn't chdir to `{gone}': No such file or directory: going to /tmp instead" in said
    assert said.endswith("/tmp\n")


def test_unwritable_output_path(cluster: Cluster) -> None:
    job = cluster.as_user(USER).sbatch("echo hi", "-o", "/root/out")
    shown = cluster.wait_job(job, "FAILED")
    assert shown["ExitCode"] == "1:0"
    assert shown["Reason"] == "Could_not_open_stdout_file_/root/out:_Permission_denied"
    assert "DRAIN" not in cluster.nodes()["n1"]["State"]


def test_options_that_do_not_exist(cluster: Cluster) -> None:
    assert refusal(cluster, "#!/bin/sh\n", "--bogus") == (
        255,
        "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n",
    )


def daemon(name: str, conf: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / name, "-f", conf, *options], capture_output=True, text=True, timeout=30, cwd="/"
    )  # fmt: skip


@pytest.fixture
def laid_out() -> Iterator[Cluster]:
    """A cluster that was configured and not started."""
    with Cluster(start=False) as cluster:
        yield cluster


@pytest.mark.parametrize("name", ["spurctld", "spurd"])
def test_unknown_configuration_key_is_named(laid_out: Cluster, name: str) -> None:
    text = laid_out.conf.read_text().replace("heartbeat_interval_secs", "heartbeat_intervall_secs")
    laid_out.conf.write_text(text)
    done = daemon(name, laid_out.conf)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(laid_out.conf) in done.stderr
    assert "heartbeat_intervall_secs" in done.stderr


@pytest.mark.parametrize("name", ["spurctld", "spurd"])
def test_missing_key_file_is_named(laid_out: Cluster, name: str) -> None:
    laid_out.key.unlink()
    done = daemon(name, laid_out.conf, "--state-dir", str(laid_out.root / "state"), "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert str(laid_out.key) in done.stderr.splitlines()[-1]


def test_busy_port_is_named_and_the_first_daemon_unharmed(cluster: Cluster) -> None:
    other = cluster.root / "other"
    for name in ("spurctld", "spurd"):
        named = ("--hostname", "n1") if name == "spurd" else ()
        done = daemon(name, cluster.conf, "--state-dir", str(other / name), "--listen", cluster.address, *named)
        assert done.returncode == 1, done.stderr
        assert cluster.address in done.stderr.splitlines()[-1]
    job = cluster.sbatch("exit 3")
    assert cluster.wait_job(job)["ExitCode"] == "3:0"


def test_missing_configuration_file_is_named(tmp_path: Path) -> None:
    for name in ("spurctld", "spurd"):
        done = daemon(name, tmp_path / "none.toml")
        assert done.returncode == 1
        assert str(tmp_path / "none.toml") in done.stderr


def test_command_without_a_controller_says_what_slurm_says(laid_out: Cluster) -> None:
    result = laid_out.run("squeue", env={"SPUR_CONTROLLER_ADDR": "127.0.0.1:1", "SPUR_CONNECT_SECS": "0.1"})
    assert result.returncode == 1
    assert result.stderr.startswith("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
