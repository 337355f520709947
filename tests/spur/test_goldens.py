"""The commands print, byte for byte, what Slurm 22.05's printed of the same jobs, nodes and partitions.

Each file in golden/ holds what was there when Slurm's commands were recorded, as messages of our contract, and what
they printed. Where ours means to differ, the test says so; everything else must be equal.
"""

from __future__ import annotations

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
from tests.spur.controllerserver import ControllerServer

GOLDEN = Path(__file__).parent / "golden"
SCENES = sorted(path for path in GOLDEN.glob("*.json") if path.name != "sbatch.json")
SUBMISSIONS: list[dict[str, Any]] = json.loads((GOLDEN / "sbatch.json").read_text())["cases"]
_USAGE = re.compile(r"Usage: .*(?:\n[ \t]+.*)*\n")
_DATE = re.compile(r"\A\w{3} \w{3} \d\d \d\d:\d\d:\d\d \d{4}\n")


def cases() -> Iterator[Any]:
    for path in SCENES:
        for at, case in enumerate(json.loads(path.read_text())["cases"]):
            yield pytest.param(path.name, at, id=title(case))


def title(case: dict[str, Any]) -> str:
    variables = "".join(f"{name}={value} " for name, value in case.get("env", {}).items())
    return f"{variables}{' '.join(case['argv'])}"[:70]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ControllerServer]]:
    """One server for each scene, which says what was there then."""
    running: dict[str, ControllerServer] = {}
    for path in SCENES:
        scene = json.loads(path.read_text())
        running[path.name] = ControllerServer(
            jobs=[json_format.ParseDict(one, pb.JobInfo()) for one in scene["jobs"]],
            nodes=[json_format.ParseDict(one, pb.NodeInfo()) for one in scene["nodes"]],
            partitions=[json_format.ParseDict(one, pb.PartitionInfo()) for one in scene["partitions"]],
        ).__enter__()
    yield running
    for server in running.values():
        server.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("scene", "number"), list(cases()))
def test_output_errors_and_exit_code_are_those_of_slurm(
    scene: str, number: int, servers: dict[str, ControllerServer], tmp_path: Path
) -> None:
    case = json.loads((GOLDEN / scene).read_text())["cases"][number]
    server = servers[scene]
    server.at = case["at"] + 0.5
    result = server.run(tmp_path, *case["argv"], env=case.get("env"))
    assert normalized(result.stdout) == normalized(case["stdout"])
    assert normalized(result.stderr) == normalized(case["stderr"])
    assert result.code == case["code"]


@pytest.mark.parametrize("case", [pytest.param(one, id=title(one)) for one in SUBMISSIONS])
def test_sbatch_takes_and_refuses_what_slurm_does(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "script" in case:
        (tmp_path / "t.sh").write_bytes(case["script"].encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    with ControllerServer(submitted=pb.SubmitJobReply(job_id=_number_in(case["stdout"]))) as server:
        result = server.run(tmp_path, *case["argv"], env=case.get("env"), stdin=case.get("stdin", "").encode("latin-1"))
    if "sbatch: defined options\n" in case["stderr"]:
        assert result.code == case["code"]
        assert _wishes(server.requests[-1].job) == _listed(case["stderr"])
        return
    assert normalized(result.stdout) == normalized(case["stdout"])
    assert normalized(result.stderr) == normalized(case["stderr"].replace("WORK", str(tmp_path)))
    assert result.code == case["code"]


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


def normalized(text: str) -> str:
    """Without the moment of the call, and with our own words for usage and version."""
    text = _DATE.sub("DATE\n", text)
    text = _USAGE.sub("USAGE\n", text)
    return text.replace(VERSION_LINE, "VERSION").replace("slurm-wlm 22.05.8", "VERSION")
