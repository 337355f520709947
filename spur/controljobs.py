"""What scontrol does to jobs: hold and release, requeue, suspend and resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spur.client import Controller, ControllerError
from spur.console import Failure
from spur.controlsession import Session, is_job_id


def _job_words(arguments: Sequence[str]) -> Iterator[str]:
    """The jobs that `arguments` name: separated by commas or blanks, perhaps behind `jobid=`."""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        text = value if equals and "jobid".startswith(name.lower()) and len(name) >= 3 else argument
        yield from (word for word in text.split(",") if word)


def _each_job(
    session: Session, arguments: Sequence[str], call: Callable[[Controller, int], object], after: str = ""
) -> int:
    """Do `call` to each job of `arguments`. `after`: with what Slurm begins one more line about an error."""
    code = 0
    for word in _job_words(arguments):
        try:
            if not is_job_id(word):
                raise ControllerError("Invalid job id specified")
            call(session.controller, int(word))
        except ControllerError as error:
            code = session.tell(error, f"{error.text} for job {word}")
            if after:
                session.say(f"{after} error: {error.text}")
    return code


def _hold(session: Session, arguments: Sequence[str], *, release: bool) -> int:
    from spur.pb.spurctld_pb2 import HoldJobRequest

    def call(controller: Controller, job_id: int) -> None:
        controller.call(controller.stub.HoldJob, HoldJobRequest(job_id=job_id, release=release))

    key, equals, name = arguments[0].partition("=")
    if equals and key.lower() == "jobname":
        arguments = [str(job_id) for job_id in _waiting_jobs_of(session, name)]
    return _each_job(session, arguments, call, after="slurm_suspend")


def _waiting_jobs_of(session: Session, name: str) -> list[int]:
    from spur.pb.common_pb2 import PENDING
    from spur.pb.spurctld_pb2 import ListJobsRequest

    try:
        jobs = session.controller.call(session.controller.stub.ListJobs, ListJobsRequest()).jobs
    except ControllerError as error:
        raise Failure(f"slurm_load_jobs error: {error.text}", plain=True) from None
    return [info.job_id for info in jobs if info.job.name == name and info.state == PENDING]


def hold(session: Session, arguments: Sequence[str]) -> int:
    return _hold(session, arguments, release=False)


def release(session: Session, arguments: Sequence[str]) -> int:
    return _hold(session, arguments, release=True)


def _requeue(session: Session, arguments: Sequence[str], *, held: bool) -> int:
    from spur.pb.spurctld_pb2 import RequeueJobRequest

    def call(controller: Controller, job_id: int) -> None:
        controller.call(controller.stub.RequeueJob, RequeueJobRequest(job_id=job_id, hold=held))

    return _each_job(session, arguments, call)


def requeue(session: Session, arguments: Sequence[str]) -> int:
    return _requeue(session, arguments, held=False)


def requeue_hold(session: Session, arguments: Sequence[str]) -> int:
    return _requeue(session, arguments, held=True)


def _suspend(session: Session, arguments: Sequence[str], *, resume: bool) -> int:
    from spur.pb.spurctld_pb2 import SuspendJobRequest

    def call(controller: Controller, job_id: int) -> None:
        controller.call(controller.stub.SuspendJob, SuspendJobRequest(job_id=job_id, resume=resume))

    return _each_job(session, arguments, call)


def suspend(session: Session, arguments: Sequence[str]) -> int:
    return _suspend(session, arguments, resume=False)


def resume(session: Session, arguments: Sequence[str]) -> int:
    return _suspend(session, arguments, resume=True)
