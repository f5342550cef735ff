"""What stands around every unary RPC: makes its ``Call``, and hands its outcome to gRPC.

Handlers are wrapped once, when they are registered: grpc.aio's own interceptors would do so anew for every call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import grpc
from google.rpc import status_pb2

from gradserve.errors import Code
from gradserve_server.calls import CallFailed, Calls
from gradserve_server.grpc_types import Context, MaybeHandler
from gradserve_server.status import to_status
from gradserve_server.telemetry import Call, request_id_of

Behaviour = Callable[[bytes, Context], Awaitable[bytes]]


class ObservingServer:
    """Takes handlers as a ``grpc.aio.Server`` does, and hands them on to one, those of unary RPCs wrapped.

    Streaming ones (health watching, reflection, our own) pass as they are.
    """

    def __init__(self, server: grpc.aio.Server, calls: Calls) -> None:
        """Takes the server, and what runs calls."""
        self._server = server
        self._calls = calls

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Registers handlers."""
        wrapped = tuple(_Wrapping(handlers, self._calls) for handlers in generic_rpc_handlers)
        self._server.add_generic_rpc_handlers(wrapped)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Does nothing: generated code registers its handlers in this way too, and gRPC would take these unwrapped."""


class _Wrapping(grpc.GenericRpcHandler):
    """Handlers, wrapped when they are first asked for."""

    def __init__(self, handlers: grpc.GenericRpcHandler, calls: Calls) -> None:
        self._handlers = handlers
        self._calls = calls
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> MaybeHandler:
        path = handler_call_details.method
        wrapped = self._wrapped.get(path)
        if wrapped is not None:
            return wrapped
        handler = self._handlers.service(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        service, _, method = path.removeprefix("/").partition("/")
        self._wrapped[path] = grpc.unary_unary_rpc_method_handler(
            _wrap(cast("Behaviour", handler.unary_unary), self._calls, service, method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return self._wrapped[path]


def _wrap(behaviour: Behaviour, calls: Calls, service: str, method: str) -> Behaviour:
    async def wrapped(request: bytes, context: Context) -> bytes:
        call = calls.begin(
            service=service,
            method=method,
            request_id=request_id_of(context.invocation_metadata()),
            request_bytes=_size(request),
            remaining=context.time_remaining,
        )

        async def answer() -> bytes:
            try:
                return await behaviour(request, context)
            except grpc.aio.AbortError:  # a handler of grpcio's own, such as health, has answered
                call.code = Code[grpc.StatusCode(context.code()).name]
                raise

        try:
            response = await calls.run(call, answer, is_ended_by_grpc=True)
        except CallFailed as failed:
            failure = failed.failure
            await context.abort(
                grpc.StatusCode[failure.code.name], failure.text, _error_trailer(call, to_status(failure))
            )
            raise AssertionError("unreachable: abort raises") from failed
        context.set_trailing_metadata(_trailer(call))
        return response

    return wrapped


def _trailer(call: Call) -> tuple[tuple[str, str], ...]:
    return (("x-request-id", call.request_id), ("gradserve-timing", call.timing()))


def _error_trailer(call: Call, status: status_pb2.Status) -> tuple[tuple[str, str | bytes], ...]:
    details = ("grpc-status-details-bin", status.SerializeToString())
    if call.reason == "BAD_REQUEST_ID":  # what does not belong in a log does not belong in a header either
        return (details,)
    return (*_trailer(call), details)


def _size(message: object) -> int:
    """Returns the bytes of our own handlers' messages; those of grpcio's handlers come decoded and count as 0."""
    return len(message) if isinstance(message, bytes) else 0
