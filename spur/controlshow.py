"""What scontrol shows and copies: records, the configuration, lists of hosts, scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spur import __version__, client, hostlist, record, times
from spur.client import ControllerError
from spur.console import Failure
from spur.controlsession import Session, is_job_id
from spur.nodegroup import sort_hosts


def show(session: Session, arguments: Sequence[str]) -> int:
    word, equals, value = arguments[0].partition("=")
    name = value if equals else arguments[1] if len(arguments) > 1 else ""
    given = equals != "" or len(arguments) > 1
    lowered = word.lower()
    for entity, (least, act) in ENTITIES.items():
        if entity.startswith(lowered) and len(lowered) >= least:
            return act(session, name if given else None)
    if lowered in UNSUPPORTED_ENTITIES:
        raise Failure(f"show {lowered} is not supported by Spur {__version__}")
    raise Failure(f"invalid entity:{word} for keyword:show ", plain=True)


def show_jobs(session: Session, name: str | None) -> int:
    from spur import jobview
    from spur.pb.spurctld_pb2 import ListJobsRequest

    if name and not is_job_id(name):
        session.say("scontrol_print_job error: Invalid job id specified")
        return 1
    job_ids = [int(name)] if name and int(name) else []
    try:
        controller = session.controller
        reply = controller.call(controller.stub.ListJobs, ListJobsRequest(job_ids=job_ids))
        if job_ids and not reply.jobs:
            raise ControllerError("Invalid job id specified")
    except ControllerError as error:
        return session.tell(error, f"slurm_load_jobs error: {error.text}")
    if not reply.jobs:
        session.console.print("No jobs in the system")
    for info in reply.jobs:
        view = jobview.decode(info)
        text = record.of_job(view, reply.at, session.environ, details=session.details, one_line=session.one_line)
        session.console.write(text)
    return 0


def show_nodes(session: Session, name: str | None) -> int:
    from spur import nodeview
    from spur.pb.spurctld_pb2 import ListNodesRequest

    try:
        controller = session.controller
        reply = controller.call(controller.stub.ListNodes, ListNodesRequest())
    except ControllerError as error:
        return session.tell(error, f"slurm_load_node error: {error.text}")
    views = {info.name: nodeview.decode(info) for info in reply.nodes}
    if not views and name is None:
        session.console.print("No nodes in the system")
    code = 0
    for wanted in list(views) if name is None else _hosts(name):
        view = views.get(wanted)
        if view is None:
            session.console.print(f"Node {wanted} not found")
            code = 1
            continue
        text = record.of_node(view, reply.at, session.environ, details=session.details, one_line=session.one_line)
        session.console.write(text)
    return code


def show_partitions(session: Session, name: str | None) -> int:
    from spur import partitionview
    from spur.pb.spurctld_pb2 import ListPartitionsRequest

    try:
        controller = session.controller
        reply = controller.call(controller.stub.ListPartitions, ListPartitionsRequest())
    except ControllerError as error:
        return session.tell(error, f"slurm_load_partitions error: {error.text}")
    views = [partitionview.decode(info, index) for index, info in enumerate(reply.partitions)]
    if not views and name is None:
        session.console.print("No partitions in the system")
    chosen = [view for view in views if name in (None, view.name)]
    for view in chosen:
        session.console.write(record.of_partition(view, one_line=session.one_line))
    if not chosen and name is not None:
        session.console.print(f"Partition {name} not found")
        return 1
    return 0


def show_config(session: Session, _name: str | None) -> int:
    from spur.pb.spurctld_pb2 import GetConfigRequest

    try:
        controller = session.controller
        reply = controller.call(controller.stub.GetConfig, GetConfigRequest())
    except ControllerError as error:
        return session.tell(error, f"slurm_load_ctl_conf error: {error.text}")
    session.console.print(f"Configuration data as of {times.format_instant(reply.at, session.environ)}")
    for key in sorted(reply.entries, key=str.lower):
        session.console.print(f"{key:<23} = {reply.entries[key]}")
    session.console.print()
    return ping(session, ())


def show_hostnames(session: Session, name: str | None) -> int:
    text = name
    if text is None:
        text = session.environ.get("SLURM_JOB_NODELIST") or session.environ.get("SLURM_NODELIST")
        if not text:
            session.console.complain("host list is empty")
            return 0
    try:
        names = hostlist.expand(text)
    except hostlist.HostlistError as error:
        raise Failure(str(error), plain=True, code=0) from None
    for one in names:
        session.console.print(one)
    return 0


def show_hostlist(session: Session, name: str | None) -> int:
    session.console.print(hostlist.compress(_hosts(_host_text(name))))
    return 0


def show_hostlist_sorted(session: Session, name: str | None) -> int:
    session.console.print(hostlist.compress(sort_hosts(_hosts(_host_text(name)))))
    return 0


def _host_text(name: str | None) -> str:
    """The argument, or the content of the file that it is the absolute path of."""
    if name is None:
        raise Failure("invalid encode argument", plain=True)
    if not name.startswith("/"):
        return name
    try:
        with open(name, errors="surrogateescape") as file:
            return ",".join(file.read().split())
    except OSError:
        raise Failure(f"Can not open {name}", plain=True) from None


def _hosts(text: str) -> list[str]:
    try:
        return hostlist.expand(text)
    except hostlist.HostlistError as error:
        raise Failure(str(error), plain=True) from None


def show_reservations(session: Session, _name: str | None) -> int:
    session.console.print("No reservations in the system")
    return 0


def show_licenses(session: Session, _name: str | None) -> int:
    session.console.print("No licenses configured in Slurm.")
    return 0


# What `show` knows, with the fewest letters that will do; a shortened word means the first that it fits.
ENTITIES: Mapping[str, tuple[int, Callable[[Session, str | None], int]]] = {
    "config": (1, show_config),
    "hostnames": (5, show_hostnames),
    "hostlist": (8, show_hostlist),
    "hostlistsorted": (14, show_hostlist_sorted),
    "jobs": (1, show_jobs),
    "jobid": (4, show_jobs),
    "licenses": (2, show_licenses),
    "nodes": (1, show_nodes),
    "partitions": (2, show_partitions),
    "reservations": (1, show_reservations),
}
UNSUPPORTED_ENTITIES = frozenset(
    {
        "aliases", "assoc_mgr", "bbstat", "burstbuffer", "daemons", "dwstat", "federation", "frontend", "slurmd",
        "step", "steps", "topology",
    }
)  # fmt: skip


def write(session: Session, arguments: Sequence[str]) -> int:
    if not "batch_script".startswith(arguments[0].lower()):
        raise Failure(f"invalid write argument:{arguments[0]}", plain=True)
    if len(arguments) == 1:
        return 0
    job_id = arguments[1]
    try:
        script = _script(session, job_id)
    except ControllerError as error:
        session.tell(error, f"job script retrieval failed: {error.text}")
        return 0  # as Slurm's scontrol ends
    path = arguments[2] if len(arguments) > 2 else f"slurm-{job_id}.sh"
    if path == "-":
        session.console.stdout.write(script)
        return 0
    try:
        with open(path, "wb") as file:
            file.write(script)
    except OSError as error:
        session.say(f"failed to open file `{path}`: {error.strerror}")
        return 0
    session.console.print(f"batch script for job {job_id} written to {path}")
    return 0


def _script(session: Session, job_id: str) -> bytes:
    from spur.pb.spurctld_pb2 import ListJobsRequest

    if not is_job_id(job_id) or not int(job_id):
        raise ControllerError("Invalid job id specified")
    controller = session.controller
    request = ListJobsRequest(job_ids=[int(job_id)], with_script=True)
    for info in controller.call(controller.stub.ListJobs, request).jobs:
        if not info.script:
            raise ControllerError("Invalid user id")  # the controller gives it to the owner and to root only
        return info.script
    raise ControllerError("Invalid job id specified")


def completing(session: Session, _arguments: Sequence[str]) -> int:
    from spur import jobview
    from spur.pb.spurctld_pb2 import ListJobsRequest

    try:
        reply = session.controller.call(session.controller.stub.ListJobs, ListJobsRequest())
    except ControllerError as error:
        return session.tell(error, f"slurm_load_jobs error: {error.text}")
    for view in (jobview.decode(info) for info in reply.jobs if info.completing):
        since = times.format_duration(max(reply.at - view.ended_at, 0))
        ended = times.format_instant(view.ended_at, session.environ)
        session.console.print(
            f"JobId={view.job_id} EndTime={ended} CompletingTime={since} Nodes(COMPLETING)={view.nodes} "
        )
    return 0


def ping(session: Session, _arguments: Sequence[str]) -> int:
    from spur.pb.spurctld_pb2 import PingRequest

    try:
        reply = session.controller.call(session.controller.stub.Ping, PingRequest())
    except ControllerError as error:
        frame = "*****************************************"
        host = client.read_config(session.environ).agent.controller[0].rpartition(":")[0]
        session.console.print(f"Slurmctld(primary) at {session.environ.get('SPUR_CONTROLLER_ADDR') or host} is DOWN")
        for line in (frame, "** RESTORE SLURMCTLD DAEMON TO SERVICE **", frame):
            session.console.print(line)
        if error.hint:
            session.say(f"scontrol: {error.hint}")
        return 1
    session.console.print(f"Slurmctld(primary) at {reply.hostname} is UP")
    return 0
