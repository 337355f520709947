"""sinfo, beyond what is held against Slurm's own output in test_goldens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spur.nodecolumns import count_text
from spur.nodegroup import host_order, sort_hosts
from spur.pb import spurctld_pb2 as pb
from tests.spur.controllerserver import ControllerServer


def node(name: str, **fields: object) -> pb.NodeInfo:
    return pb.NodeInfo(name=name, cpus=8, memory_mb=1000, version="0.1.0", **fields)  # type: ignore[arg-type]


MAIN = pb.PartitionInfo(name="main", nodes="n[1-12]", is_default=True, state="UP", max_time_s=0xFFFFFFFF)


def test_a_cluster_without_anything_has_headers_and_no_lines(tmp_path: Path) -> None:
    with ControllerServer() as server:
        for argv, lines in (
            (["sinfo"], ["PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST"]),
            (["sinfo", "-N"], ["NODELIST   NODES PARTITION STATE "]),
            (["sinfo", "-h"], []),
            (["squeue"], ["             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"]),
            (["scontrol", "show", "job"], ["No jobs in the system"]),
            (["scontrol", "show", "node"], ["No nodes in the system"]),
            (["scontrol", "show", "partition"], ["No partitions in the system"]),
        ):
            result = server.run(tmp_path, *argv)
            assert (result.stdout.splitlines(), result.stderr, result.code) == (lines, "", 0)


def test_a_cluster_of_thousands_is_grouped_quickly(tmp_path: Path) -> None:
    everything = pb.PartitionInfo(name="all", nodes="n[1-5000]", state="UP", max_time_s=3600)
    nodes = [node(f"n{number}", drain=number % 2 == 0) for number in range(1, 5001)]
    with ControllerServer(nodes=nodes, partitions=[everything]) as server:
        lines = server.run(tmp_path, "sinfo", "-h", "-o", "%D %t").stdout.splitlines()
    assert lines == ["2500 drain", "2500 idle"]


def test_loads_and_free_memory_are_spans(tmp_path: Path) -> None:
    nodes = [node("n1", load=0.5, free_memory_mb=10), node("n2", load=11.25, free_memory_mb=9), node("n3", load=2.0)]
    with ControllerServer(nodes=nodes, partitions=[MAIN]) as server:
        assert server.run(tmp_path, "sinfo", "-h", "-o", "%O %e").stdout == "0.50-11.25 0-10\n"


def test_states_of_partitions(tmp_path: Path) -> None:
    partitions = [
        pb.PartitionInfo(name=state.lower(), nodes="n1", state=state) for state in ("UP", "DOWN", "DRAIN", "INACTIVE")
    ]
    with ControllerServer(nodes=[node("n1")], partitions=partitions) as server:
        assert server.run(tmp_path, "sinfo", "-h", "-o", "%P %a").stdout.splitlines() == [
            "up up", "down down", "drain drain", "inactive inact",
        ]  # fmt: skip


def test_a_node_that_no_partition_has_is_not_shown(tmp_path: Path) -> None:
    with ControllerServer(nodes=[node("n1"), node("m1")], partitions=[MAIN]) as server:
        assert server.run(tmp_path, "sinfo", "-h", "-o", "%N").stdout == "n1\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (1023, "1023"), (1024, "1K"), (1536, "1.50K"), (1025, "1025")])
def test_large_counts_are_shortened_where_nothing_is_lost(count: int, text: str) -> None:
    assert count_text(count) == text


def test_numbers_in_names_count_as_numbers() -> None:
    assert sort_hosts(["n10", "n2", "big", "n1", "n1-3"]) == ["big", "n1", "n1-3", "n2", "n10"]


@given(st.lists(st.text("n1-20", max_size=5)))
def test_any_names_have_an_order(names: list[str]) -> None:
    assert sorted(map(host_order, names)) == sorted(map(host_order, reversed(names)))
