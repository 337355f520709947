"""The gate of a gRPC server: no handler is reached before the caller is proven, and `caller()` tells it who that is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc

from spur.auth import AuthError, Identity, Verify, refuse_unless

_CALLER: ContextVar[Identity] = ContextVar("caller")

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]]


def caller() -> Identity:
    """Who made the call that is being handled. LookupError outside of a handler."""
    return _CALLER.get()


class Gate(grpc.aio.ServerInterceptor):
    """Answers UNAUTHENTICATED to a call without proof and PERMISSION_DENIED to one for another kind of caller."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        try:
            identity = self._verify(tuple(handler_call_details.invocation_metadata))
        except AuthError as error:
            return _refused(handler, grpc.StatusCode.UNAUTHENTICATED, str(error))
        try:
            refuse_unless(identity, handler_call_details.method.split("/")[1])
        except AuthError as error:
            return _refused(handler, grpc.StatusCode.PERMISSION_DENIED, str(error))
        return _known(handler, identity)


def _known(handler: Any, identity: Identity) -> grpc.RpcMethodHandler[Any, Any]:
    """`handler` with the caller set around it."""
    if handler.request_streaming:
        return _refused(handler, grpc.StatusCode.UNIMPLEMENTED, "streams of requests are not served")
    if handler.response_streaming:

        async def answer_all(request: Any, context: Any) -> AsyncIterator[Any]:
            _CALLER.set(identity)
            async for reply in handler.unary_stream(request, context):
                yield reply

        return grpc.unary_stream_rpc_method_handler(
            answer_all,
            handler.request_deserializer,
            handler.response_serializer,
        )

    async def answer(request: Any, context: Any) -> Any:
        _CALLER.set(identity)
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        answer,
        handler.request_deserializer,
        handler.response_serializer,
    )


def _refused(handler: Any, code: grpc.StatusCode, reason: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same shape that answers nothing but the refusal."""

    async def refuse(_request: Any, context: Any) -> None:
        await context.abort(code, reason)

    async def refuse_stream(_request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(code, reason)
        yield

    makers: dict[tuple[bool, bool], tuple[Any, Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, refuse),
        (False, True): (grpc.unary_stream_rpc_method_handler, refuse_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, refuse),
        (True, True): (grpc.stream_stream_rpc_method_handler, refuse_stream),
    }
    make, answer = makers[handler.request_streaming, handler.response_streaming]
    refusing: grpc.RpcMethodHandler[Any, Any] = make(answer, handler.request_deserializer, handler.response_serializer)
    return refusing
