"""The interceptor around every unary RPC: makes its ``Call``, turns exceptions into statuses, tells the observers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, cast

import grpc
from google.rpc import status_pb2

from gradserve.errors import Code, DeadlineExceeded
from gradserve_server.grpc_types import Context, MaybeHandler
from gradserve_server.scheduling.queue import Clock
from gradserve_server.status import failure_of, to_status
from gradserve_server.telemetry import Call, check_request_id, request_id_of, set_current_call

Behaviour = Callable[[bytes, Context], Awaitable[bytes]]


class CallObserver(Protocol):
    """Is told of every call when it has ended, well or not. Must not raise."""

    def call_ended(self, call: Call, cause: Exception | None) -> None:
        """Takes note of a call; ``cause`` is the exception whose text the caller was not shown."""
        ...


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of each unary RPC; streaming ones (health watching, reflection) pass as they are."""

    def __init__(self, observers: Sequence[CallObserver], clock: Clock, max_call_seconds: float) -> None:
        """Takes whoever is to be told of calls, the clock that times them, and how long one may take."""
        self._observers = observers
        self._clock = clock
        self._max_call_seconds = max_call_seconds
        self._under_way = 0
        self._begun = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_until_idle(self, quiet_seconds: float) -> None:
        """Waits until no call is under way and none has begun for a while: some may still be on their way through gRPC."""
        begun = -1
        while begun != self._begun or self._under_way:
            await self._idle.wait()
            begun = self._begun
            await asyncio.sleep(quiet_seconds)

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
            call = Call(
                service=service,
                method=method,
                request_id=request_id,
                clock=self._clock,
                started_at=self._clock(),
                request_bytes=_size(request),
            )
            limit = self._limit(call, context)
            set_current_call(call)
            self._begun += 1
            self._count(1)
            cause: Exception | None = None
            try:
                check_request_id(request_id)
                with limit:
                    response = await behaviour(request, context)
            except asyncio.CancelledError:
                call.code = Code.DEADLINE_EXCEEDED if _is_late(context) else Code.CANCELLED
                raise
            except grpc.aio.AbortError:  # a handler of grpcio's own, such as health, has answered
                call.code = Code[grpc.StatusCode(context.code()).name]
                raise
            except Exception as error:  # the last line of defence: whatever it is, the caller gets a status
                failure = failure_of(error, op=call.op)
                cause = error if failure.is_internal else None
                call.code, call.reason, call.error = failure.code, failure.reason, failure.text
                await context.abort(
                    grpc.StatusCode[failure.code.name], failure.text, _error_trailer(call, to_status(failure))
                )
                raise AssertionError("unreachable: abort raises") from error
            else:
                call.response_bytes = _size(response)
                context.set_trailing_metadata(_trailer(call))
                return response
            finally:
                self._count(-1)
                call.seconds = self._clock() - call.started_at
                for observer in self._observers:
                    observer.call_ended(call, cause)

        return wrapped

    def _limit(self, call: Call, context: Context) -> contextlib.AbstractContextManager[None]:
        """Notes the deadline of a call; returns what ends it then, if gRPC does not."""
        remaining = context.time_remaining()
        seconds = self._max_call_seconds if remaining is None else min(remaining, self._max_call_seconds)
        call.deadline = call.started_at + seconds
        return contextlib.nullcontext() if seconds == remaining else _ended_after(seconds)

    def _count(self, change: int) -> None:
        self._under_way += change
        if self._under_way:
            self._idle.clear()
        else:
            self._idle.set()


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Cancels what this task does within, after some time.

    Raises:
        DeadlineExceeded: It was cancelled for that (SERVER_DEADLINE).
    """
    task, is_over = asyncio.current_task(), False

    def end() -> None:
        nonlocal is_over
        is_over = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    except asyncio.CancelledError:
        if not is_over:
            raise
        raise DeadlineExceeded(
            f"the server lets no call take longer than {seconds:g} s (--max-call-seconds)", reason="SERVER_DEADLINE"
        ) from None
    finally:
        timer.cancel()


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


def _is_late(context: Context) -> bool:
    remaining = context.time_remaining()
    return remaining is not None and remaining <= 0
