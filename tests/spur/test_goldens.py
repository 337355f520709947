"""The commands print, byte for byte, what Slurm 22.05's printed of the same jobs, nodes and partitions.

Each file in golden/ is a scene: what was there when Slurm's commands were recorded, as messages of our contract, and
what they were called with, printed and ended with. Where ours means to differ, `normalized` says so; the rest is equal.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from spur import times
from spur.console import VERSION_LINE
from spur.pb import spurctld_pb2 as pb
from tests.spur.controllerserver import ControllerServer, Result

GOLDEN = Path(__file__).parent / "golden"
SCENES = sorted(path.stem for path in GOLDEN.glob("*.json") if path.stem != "sbatch")
Case = dict[str, Any]

_USAGE = re.compile(r"Usage: .*(?:\n[ \t]+.*)*\n")
_DATE = re.compile(r"\A\w{3} \w{3} \d\d \d\d:\d\d:\d\d \d{4}\n")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("scene", SCENES)
def test_output_errors_and_exit_codes_are_those_of_slurm(scene: str, tmp_path: Path) -> None:
    golden = json.loads((GOLDEN / f"{scene}.json").read_text())
    with ControllerServer(
        jobs=[json_format.ParseDict(one, pb.JobInfo()) for one in golden["jobs"]],
        nodes=[json_format.ParseDict(one, pb.NodeInfo()) for one in golden["nodes"]],
        partitions=[json_format.ParseDict(one, pb.PartitionInfo()) for one in golden["partitions"]],
    ) as server:
        differences = []
        for case in golden["cases"]:
            server.at = case["at"] + 0.5
            result = server.run(tmp_path, *case["argv"], env=case.get("env"))
            differences += difference(case, result)
    assert not differences, "\n".join(differences)


def test_sbatch_takes_and_refuses_what_slurm_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    differences = []
    for case in json.loads((GOLDEN / "sbatch.json").read_text())["cases"]:
        (tmp_path / "t.sh").unlink(missing_ok=True)
        if "script" in case:
            (tmp_path / "t.sh").write_bytes(case["script"].encode("latin-1"))
        with ControllerServer(submitted=pb.SubmitJobReply(job_id=_number_in(case["stdout"]))) as server:
            # /dev/stdin is the process's, so only a process of its own can be given one.
            run = server.process if "/dev/stdin" in case["argv"] else server.run
            stdin = case.get("stdin", "").encode("latin-1")
            result = run(tmp_path, *case["argv"], env=case.get("env"), stdin=stdin)
        if "sbatch: defined options\n" in case["stderr"]:
            wishes, listed = _wishes(server.requests[-1].job), _listed(case["stderr"])
            if wishes != listed:
                differences.append(f"{title(case)}: ours {wishes}, Slurm's {listed}")
            continue
        case["stderr"] = case["stderr"].replace("WORK", str(tmp_path))
        differences += difference(case, result)
    assert not differences, "\n".join(differences)


def difference(case: Case, result: Result) -> list[str]:
    """What is not as it was with Slurm."""
    ours = [*normalized(result.stdout), *normalized(result.stderr), f"exit {result.code}"]
    slurms = [*normalized(case["stdout"]), *normalized(case["stderr"]), f"exit {case['code']}"]
    if ours == slurms:
        return []
    return [title(case), *difflib.unified_diff(slurms, ours, "Slurm", "ours", n=0, lineterm="")]


def normalized(text: str) -> list[str]:
    """Without the moment of the call, and without our own words for usage and version."""
    text = _DATE.sub("DATE\n", text)
    text = _USAGE.sub("USAGE\n", text)
    return text.replace(VERSION_LINE, "VERSION").replace("slurm-wlm 22.05.8", "VERSION").split("\n")


def title(case: Case) -> str:
    variables = "".join(f"{name}={value} " for name, value in case.get("env", {}).items())
    return f"{variables}{' '.join(case['argv'])}"


def _number_in(text: str) -> int:
    found = re.search(r"\d+", text)
    return int(found[0]) if found else 1


def _listed(text: str) -> dict[str, str]:
    """The options that Slurm's sbatch says hold, with -v."""
    found = dict(re.findall(r"^sbatch: ([a-z-]+) *: (.*)$", text, re.MULTILINE))
    return {"job-name": "t.sh"} | {name: value for name, value in found.items() if name not in ("test-only", "verbose")}


def _wishes(job: Any) -> dict[str, str]:
    wishes = {"job-name": job.name, "output": job.stdout_path}
    if job.HasField("tasks"):
        wishes["ntasks"] = str(job.tasks)
    if job.HasField("time_limit_s"):
        wishes["time"] = times.format_limit(job.time_limit_s)
    return {name: value for name, value in wishes.items() if value}
