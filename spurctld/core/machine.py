"""The controller's state machine: one event in, instructions out. No clock, no socket, no database, no chance.

Lives as long as the process; after a failed commit or a restart it is made again from what was saved (`rows`).
"""

from __future__ import annotations

from typing import assert_never

from spurctld.core import events as e
from spurctld.core.audit import validate
from spurctld.core.cluster import Cluster
from spurctld.core.instructions import Instruction
from spurctld.core.launching import end_hook, refuse_launch, take_launch
from spurctld.core.limits import pass_time
from spurctld.core.nodes import answer_ping, beat, leave, order_nodes, register
from spurctld.core.reports import take_report
from spurctld.core.requests import cancel, hold, note_absence, note_verdict, requeue, suspend
from spurctld.core.scheduling import run_pass
from spurctld.core.submission import submit

Event = (
    e.JobSubmitted
    | e.CancelAsked
    | e.SuspendAsked
    | e.RequeueAsked
    | e.HoldAsked
    | e.NodesOrdered
    | e.NodeRegistered
    | e.NodeBeat
    | e.NodeLeft
    | e.RunReported
    | e.LaunchTaken
    | e.LaunchRefused
    | e.TerminateTaken
    | e.RunAbsent
    | e.NodeAnswered
    | e.HookEnded
    | e.Tick
    | e.SchedulePass
)


class Core:
    """Applies events, one at a time, to the cluster's records."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def apply(self, event: Event) -> list[Instruction]:
        """What has to be saved, told and done because of `event`; saves come first.

        ImpossibleTransition: a bug of ours; the records may be half changed and must be read anew.
        """
        cluster = self.cluster
        cluster.begin(type(event).__name__, event.at, event.mono, event.stimulus)
        _dispatch(cluster, event)
        return cluster.finish()

    def validate(self) -> None:
        """Recomputes every index and sum. AssertionError names the first that is wrong."""
        validate(self.cluster)


def _dispatch(cluster: Cluster, event: Event) -> None:
    match event:
        case e.JobSubmitted():
            submit(cluster, event)
        case e.CancelAsked():
            cancel(cluster, event)
        case e.SuspendAsked():
            suspend(cluster, event)
        case e.RequeueAsked():
            requeue(cluster, event)
        case e.HoldAsked():
            hold(cluster, event)
        case e.NodesOrdered():
            order_nodes(cluster, event)
        case e.NodeRegistered():
            register(cluster, event)
        case e.NodeBeat():
            beat(cluster, event)
        case e.NodeLeft():
            leave(cluster, event)
        case e.RunReported():
            take_report(cluster, event)
        case e.LaunchTaken():
            take_launch(cluster, event)
        case e.LaunchRefused():
            refuse_launch(cluster, event)
        case e.TerminateTaken():
            note_verdict(cluster, event)
        case e.RunAbsent():
            note_absence(cluster, event)
        case e.NodeAnswered():
            answer_ping(cluster, event)
        case e.HookEnded():
            end_hook(cluster, event)
        case e.Tick():
            pass_time(cluster, event)
        case e.SchedulePass():
            run_pass(cluster, event)
        case _:
            assert_never(event)
