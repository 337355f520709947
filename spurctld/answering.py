"""How handlers refuse: a gRPC status whose details are Slurm's text; a further line for the user in the metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote

import grpc
import structlog

from spurctld.core.states import RefusalKind
from spurctld.core.values import Refusal
from spurctld.engine import Unavailable
from spurctld.messages import Malformed
from spurctld.store import StoreError

NOTE = "spur-note"

_CODES = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RefusalKind.DENIED: grpc.StatusCode.PERMISSION_DENIED,
    RefusalKind.WRONG_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

Context = grpc.aio.ServicerContext[Any, Any]
S = TypeVar("S")
Q = TypeVar("Q")
R = TypeVar("R")
P = ParamSpec("P")

log = structlog.get_logger()


class Refused(Exception):
    """Raised in a handler: the caller is told so, and nothing else happens."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def handler(
    handle: Callable[Concatenate[S, Q, P], Awaitable[R]],
) -> Callable[[S, Q, Context], Awaitable[R]]:
    """A handler that gives its reply or raises, as one that gRPC can call."""

    @wraps(handle)
    async def answer(self: S, request: Q, context: Context) -> R:
        try:
            return await handle(self, request)  # type: ignore[call-arg]
        except Refused as error:
            await _abort(context, _CODES[error.refusal.kind], error.refusal.text, error.refusal.note)
        except Malformed as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (Unavailable, StoreError) as error:
            # not UNAVAILABLE: that would be taken for a controller which cannot be reached
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"the controller cannot do this now: {error}")
        except Exception:  # the boundary of a call: one that fails must not be without an answer
            log.exception("call_failed", call=handle.__name__)
            await _abort(context, grpc.StatusCode.INTERNAL, "the controller failed to handle the call; see its log")

    return answer


async def _abort(context: Context, code: grpc.StatusCode, text: str, note: str = "") -> NoReturn:
    await context.abort(code, text, ((NOTE, quote(note)),) if note else ())
    raise AssertionError("abort does not return")
