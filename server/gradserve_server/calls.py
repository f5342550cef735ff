"""``Calls``: what happens to every call, however it came: a limit in time, a status if it fails, observers that are told."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import grpc

from gradserve.errors import Code, DeadlineExceeded
from gradserve.messages import SERVICE
from gradserve_server.scheduling.work import Clock
from gradserve_server.status import Failure, failure_of
from gradserve_server.telemetry import Call, Ended, check_request_id, set_current_call


class CallObserver(Protocol):
    """Is told of every call once it has ended, well or not. Must not raise."""

    def calls_ended(self, ended: Sequence[Ended]) -> None:
        """Takes note of calls, in the order in which they ended."""
        ...


class CallFailed(Exception):
    """A call failed; ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Calls:
    """Runs calls and counts those that are under way."""

    def __init__(self, observers: Sequence[CallObserver], clock: Clock, max_call_seconds: float) -> None:
        """Takes whoever is to be told of calls, the clock that times them, and how long one may take."""
        self._observers = observers
        self._clock = clock
        self._max_call_seconds = max_call_seconds
        self._under_way = 0
        self._begun = 0
        self._ended: list[Ended] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_until_idle(self, quiet_seconds: float) -> None:
        """Waits until no call is under way and none has begun for a while: some may still be on their way through gRPC."""
        begun = -1
        while begun != self._begun or self._under_way:
            await self._idle.wait()
            begun = self._begun
            await asyncio.sleep(quiet_seconds)

    def begin(
        self,
        *,
        method: str,
        request_id: str,
        request_bytes: int,
        remaining: Callable[[], float | None],
        service: str = SERVICE,
    ) -> Call:
        """Returns a call that begins now; ``remaining`` gives the seconds that its caller leaves it, None for no limit."""
        now, timeout, limit = self._clock(), remaining(), self._max_call_seconds  # in this order no deadline is put off
        return Call(
            service=service,
            method=method,
            request_id=request_id,
            clock=self._clock,
            started_at=now,
            request_bytes=request_bytes,
            timeout=timeout,
            deadline=now + (limit if timeout is None else min(timeout, limit)),
        )

    async def run(self, call: Call, answer: Callable[[], Awaitable[bytes]], *, is_ended_by_grpc: bool) -> bytes:
        """Returns a call's response.

        Args:
            call: The call.
            answer: Makes the response.
            is_ended_by_grpc: Whether gRPC cancels this task when its caller's time is over.

        Raises:
            CallFailed: Whatever ``answer`` raised, as a caller may see it.
        """
        set_current_call(call)
        self._begun += 1
        self._count(1)
        cause: Exception | None = None
        try:
            check_request_id(call.request_id)
            with self._limit(call, is_ended_by_grpc):
                response = await answer()
        except asyncio.CancelledError:
            self._set_cancelled(call)
            raise
        except grpc.aio.AbortError:  # whoever raised it has told the caller, and this call
            raise
        except Exception as error:  # the last line of defence: whatever it is, the caller gets a status
            failure = failure_of(error, op=call.op)
            cause = error if failure.is_internal else None
            call.code, call.reason, call.error = failure.code, failure.reason, failure.text
            raise CallFailed(failure) from error
        else:
            call.response_bytes = len(response) if isinstance(response, bytes) else 0  # grpcio's own are no bytes yet
            return response
        finally:
            self._count(-1)
            call.seconds = self._clock() - call.started_at
            self._note(call, cause)

    async def run_together(
        self, calls: Sequence[Call], answer: Callable[[], Awaitable[Sequence[bytes] | None]]
    ) -> Sequence[bytes] | None:
        """Returns the responses of several calls; None if each has to run alone, and has not ended.

        Args:
            calls: The calls.
            answer: Makes the responses; it is cancelled when the deadline of the first of them passes.
        """
        self._begun += len(calls)
        self._count(len(calls))
        try:
            with _EndedAfter(min([call.deadline for call in calls]) - self._clock(), self._too_long):
                responses = await answer()
        except DeadlineExceeded:  # of one of them; whoever it is learns it alone
            return None
        finally:
            self._count(-len(calls))
        if responses is not None:
            now = self._clock()
            for call, response in zip(calls, responses, strict=True):
                call.response_bytes = len(response)
                call.seconds = now - call.started_at
                self._note(call, None)
        return responses

    def cancelled(self, call: Call) -> None:
        """Takes note of a call that its caller gave up before it ran alone."""
        self._set_cancelled(call)
        call.seconds = self._clock() - call.started_at
        self._note(call, None)

    def _set_cancelled(self, call: Call) -> None:
        is_late = call.timeout is not None and self._clock() >= call.started_at + call.timeout
        call.code = Code.DEADLINE_EXCEEDED if is_late else Code.CANCELLED

    def _note(self, call: Call, cause: Exception | None) -> None:
        """Has the observers told, once the response is on its way and with whatever else ends in this turn of the loop."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ended.append((call, cause))

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        for observer in self._observers:
            observer.calls_ended(ended)

    def _limit(self, call: Call, is_ended_by_grpc: bool) -> contextlib.AbstractContextManager[None]:
        """Returns what ends a call when it has taken too long, if gRPC does not."""
        timeout, left = call.timeout, call.deadline - self._clock()
        if timeout is None or timeout > self._max_call_seconds:
            return _EndedAfter(left, self._too_long)
        if is_ended_by_grpc:
            return contextlib.nullcontext()
        return _EndedAfter(left, lambda: DeadlineExceeded(f"the deadline passed, {timeout:g} s after the call came"))

    def _too_long(self) -> DeadlineExceeded:
        text = f"the server lets no call take longer than {self._max_call_seconds:g} s (--max-call-seconds)"
        return DeadlineExceeded(text, reason="SERVER_DEADLINE")

    def _count(self, change: int) -> None:
        self._under_way += change
        if self._under_way:
            self._idle.clear()
        else:
            self._idle.set()


class _EndedAfter:
    """A context that cancels what its task does within, after some time, and then raises an error instead."""

    __slots__ = ("_is_over", "_make_error", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float, make_error: Callable[[], DeadlineExceeded]) -> None:
        self._seconds = seconds
        self._make_error = make_error
        self._is_over = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._is_over and kind is asyncio.CancelledError:
            raise self._make_error() from None
