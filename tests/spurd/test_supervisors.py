"""The agent and peers on a supervisor's socket: newer ones, older ones, strangers, and those that talk nonsense."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from spurd.channel import Channel, ChannelLost, Refused
from spurd.runstate import Phase
from spurd.supervisors import Impostor, Supervisor
from spurstepd.ids import RunId
from spurstepd.ledger import ExitSource, LedgerError, Progress

RUN = RunId(42, 1)
HELLO = {"version": "9.9", "schema": 1, "pid": 5, "job": 42, "attempt": 1, "nonce": "secret"}
STATE: dict[str, Any] = {
    "job": 42,
    "attempt": 1,
    "phase": "finished",
    "uid": 7,
    "suspended": False,
    "supervisor": {"pid": 5, "inode": None, "start_ticks": 3},
    "leader": {"pid": 6},
    "verdict": None,
    "exit": {"source": "waitid", "status": 1792, "code": 7, "signal": 0, "core": False, "at": 1.5, "oom_kills": 0},
    "obligations": [{"duty": "run", "progress": "done"}],
}
Answers = Callable[[dict[str, Any]], bytes]


def reply(parameters: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"parameters": parameters, **more}).encode() + b"\0"


def answering(**by_method: bytes) -> Answers:
    return lambda call: by_method[call["method"].rpartition(".")[2]]


@asynccontextmanager
async def peer(path: Path, answers: Answers) -> AsyncIterator[Supervisor]:
    """Somebody who answers on the socket; what he says is up to `answers`, empty: he hangs up."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while message := await reader.readuntil(b"\0"):
            said = answers(json.loads(message[:-1]))
            if not said:
                writer.close()
                return
            writer.write(said)

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side has gone

    server = await asyncio.start_unix_server(quietly, path)
    try:
        yield Supervisor(RUN, path, "secret")
    finally:
        server.close()
        for writer in connections:
            writer.close()
        await asyncio.sleep(0.05)


def trying(path: Path, answers: Answers, do: Callable[[Supervisor], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(20), peer(path / "42.1.sock", answers) as supervisor:
            return await do(supervisor)

    return asyncio.run(run())


async def first_state(supervisor: Supervisor) -> Any:
    with await supervisor.follow() as following:
        async for state in following.states():
            return state


def test_a_newer_supervisor_may_say_more_than_we_know(tmp_path: Path) -> None:
    """M4, R20: fields are only ever added."""
    told = {**STATE, "colour": "red", "exit": {**STATE["exit"], "cause": {"why": 1}}}
    answers = answering(Hello=reply({**HELLO, "moon": 1}), Subscribe=reply({"state": told, "more": 2}, continues=True))
    state = trying(tmp_path, answers, first_state)
    assert (state.run, state.phase, state.uid) == (RUN, Phase.FINISHED, 7)
    assert (state.exit.source, state.exit.status) == (ExitSource.WAITID, 7 << 8)
    assert next(iter(state.obligations.values())).progress is Progress.DONE


def test_an_older_supervisor_may_leave_out_what_is_optional(tmp_path: Path) -> None:
    answers = answering(Hello=reply(HELLO), Subscribe=reply({"state": STATE}, continues=True))
    state = trying(tmp_path, answers, first_state)
    assert (state.drain, state.drain_noted, state.requeue_held, state.waiting_for) == (None, None, None, None)


@pytest.mark.parametrize(
    "hello", [{**HELLO, "nonce": "guess"}, {**HELLO, "nonce": None}, {**HELLO, "attempt": 2}, {"version": "1"}]
)
def test_who_does_not_know_the_nonce_or_has_another_run_is_not_our_supervisor(
    tmp_path: Path, hello: dict[str, Any]
) -> None:
    """R10, R26"""
    with pytest.raises(Impostor):
        trying(tmp_path, answering(Hello=reply(hello)), first_state)


@pytest.mark.parametrize("said", [b"", b"nonsense\0", b"[]\0", b'{"parameters": 7}\0', b'{"error": 3}\0'])
def test_nonsense_costs_the_link_and_nothing_else(tmp_path: Path, said: bytes) -> None:
    with pytest.raises(ChannelLost):
        trying(tmp_path, answering(Hello=said), first_state)


@pytest.mark.parametrize(
    "state", [{**STATE, "phase": "dancing"}, {**STATE, "uid": "root"}, {k: v for k, v in STATE.items() if k != "job"}]
)
def test_a_state_that_is_none_is_refused_by_the_name_of_its_field(tmp_path: Path, state: dict[str, Any]) -> None:
    answers = answering(Hello=reply(HELLO), Subscribe=reply({"state": state}, continues=True))
    with pytest.raises(LedgerError, match=r"reply\.state"):
        trying(tmp_path, answers, first_state)


def test_an_error_reply_is_told_by_its_name(tmp_path: Path) -> None:
    answers = answering(Release=b'{"error": "org.spur.Run.NotSettled", "parameters": {"duty": "epilog"}}\0')
    with pytest.raises(Refused, match=r"NotSettled \(duty: epilog\)"):
        trying(tmp_path, answers, lambda supervisor: supervisor.call("Release", {}, 10))


def test_a_call_that_is_not_answered_ends_with_its_patience(tmp_path: Path) -> None:
    def silence(_call: dict[str, Any]) -> bytes:
        return b" "

    with pytest.raises(TimeoutError):
        trying(tmp_path, silence, lambda supervisor: supervisor.call("Start", {}, 0.2))


def test_the_peer_is_known_by_the_kernel(tmp_path: Path) -> None:
    async def look(supervisor: Supervisor) -> int:
        async with Channel.open(supervisor.socket) as channel:
            fd = channel.peer_pidfd()
            assert fd is not None
            os.close(fd)
            return channel.peer_pid()

    assert trying(tmp_path, answering(), look) == os.getpid()


def test_nobody_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ChannelLost):
        asyncio.run(Supervisor(RUN, tmp_path / "none.sock", None).follow())
