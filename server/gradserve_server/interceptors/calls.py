"""The interceptor around every unary RPC: makes its ``Call``, and hands its outcome to gRPC."""

from collections.abc import Awaitable, Callable
from typing import cast

import grpc
from google.rpc import status_pb2

from gradserve.errors import Code
from gradserve_server.calls import CallFailed, Calls
from gradserve_server.grpc_types import Context, MaybeHandler
from gradserve_server.status import to_status
from gradserve_server.telemetry import Call, request_id_of

Behaviour = Callable[[bytes, Context], Awaitable[bytes]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of each unary RPC; streaming ones (health watching, reflection, our own) pass as they are."""

    def __init__(self, calls: Calls) -> None:
        """Takes what runs calls."""
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Returns the RPC's handler, wrapped."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        return grpc.unary_unary_rpc_method_handler(
            self._wrap(
                cast("Behaviour", handler.unary_unary),
                service,
                method,
                request_id_of(handler_call_details.invocation_metadata),
            ),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _wrap(self, behaviour: Behaviour, service: str, method: str, request_id: str) -> Behaviour:
        async def wrapped(request: bytes, context: Context) -> bytes:
            call = self._calls.begin(
                service=service,
                method=method,
                request_id=request_id,
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
                response = await self._calls.run(call, answer, is_ended_by_grpc=True)
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
