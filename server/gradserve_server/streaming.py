"""The stream: frames of many calls in, frames of many answers out, over the same methods as the unary RPCs.

    frame -> calls, a task each, or one for those of one plan -> answers that wait -> frame

Calls of one frame that differ in the elements of their tensors alone are answered together, from their bytes to those of their
answers. Whatever happens to one of them (it is cancelled, its deadline passes, a kernel refuses it), each then goes on alone.

A frame has all answers that wait at that moment. No further call is begun and no frame read while many are under way, so that
HTTP/2's own flow control holds back whoever sends too many; answers that nobody takes count as under way.
"""

import asyncio
import collections
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import grpc
from google.protobuf.message import DecodeError

from gradserve.errors import Code, Unsupported, quote
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.wire import Piece, field_pieces
from gradserve_server.calls import CallFailed, Calls
from gradserve_server.grpc_types import Context
from gradserve_server.plans import Plan
from gradserve_server.status import to_status
from gradserve_server.telemetry import Call, is_request_id, request_id_of

Methods = Mapping[str, Callable[[bytes], Awaitable[bytes]]]
"""What answers a serialized request, by name of the method."""
MAX_CALLS = 1024
"""Most calls of one stream that are under way at once."""
_MAX_FRAME_BYTES = 2**22
"""A frame holds one answer, or several of up to so many bytes together."""
_OTHER = "StreamVjp"
"""Method of calls that name none that there is: what callers make up never becomes a label."""


class Together(Protocol):
    """Answers calls together."""

    max_together: int
    """Most calls that are answered together."""

    def plan_of(self, method: str, request: bytes) -> Plan | None:
        """Returns what requests that are answered together have in common; None if this one is answered alone."""
        ...

    async def answer_together(
        self, plan: Plan, calls: Sequence[Call], requests: Sequence[bytes]
    ) -> Sequence[bytes] | None:
        """Returns the responses to requests of one plan; None if each has to be answered alone."""
        ...


class Streams:
    """Serves ``StreamVjp``."""

    def __init__(self, calls: Calls, methods: Methods, max_bytes: int, together: Together) -> None:
        """Takes what runs calls, and how they are answered.

        Args:
            calls: Runs calls.
            methods: The methods that they may name.
            max_bytes: How many bytes of requests may be under way.
            together: Answers calls together.
        """
        self._calls = calls
        self._methods = methods
        self._max_bytes = max_bytes
        self._together = together

    async def serve(self, frames: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Yields frames of answers until the caller sends no more and every call has its answer."""
        stream = _Stream(self._calls, self._methods, self._max_bytes, self._together)
        reader = asyncio.ensure_future(stream.read(frames))
        reader.add_done_callback(lambda _: stream.changed.set())
        try:
            while not (reader.done() and stream.is_idle):
                await stream.changed.wait()
                stream.changed.clear()
                if reader.done() and (error := reader.exception()) is not None:
                    if not isinstance(error, _BadFrame):
                        raise error
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                while stream.answers:
                    yield stream.next_frame()
        finally:
            reader.cancel()
            stream.cancel_all()


class _BadFrame(Exception):
    """A frame that cannot be parsed, or with an id that is in use."""


class _Asked(NamedTuple):
    """A call of a stream."""

    id: int
    call: Call
    method: str
    request: bytes


class _Stream:
    """The calls of one stream."""

    def __init__(self, calls: Calls, methods: Methods, max_bytes: int, together: Together) -> None:
        self._calls = calls
        self._methods = methods
        self._max_bytes = max_bytes
        self._together = together
        self._tasks: dict[int, asyncio.Task[Any] | None] = {}
        """What answers each call; None for a moment, until all calls of its frame are known."""
        self._cancelled: set[int] = set()
        self._is_over = False
        self._bytes = 0
        self._room = asyncio.Event()
        self.answers: collections.deque[bytes] = collections.deque()
        """Serialized answers that wait for a frame."""
        self.changed = asyncio.Event()
        """Set when an answer has come, or the last call has ended."""

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way and no answer waits."""
        return not self._tasks and not self.answers

    async def read(self, frames: AsyncIterator[bytes]) -> None:
        """Begins the calls of each frame.

        Raises:
            _BadFrame: A frame is none, or uses an id twice.
        """
        async for data in frames:
            try:
                frame = pb.StreamVjpRequest.FromString(data)
            except DecodeError:
                raise _BadFrame("a frame must be a StreamVjpRequest: it could not be parsed as protobuf") from None
            for call_id in frame.cancelled_ids:
                if (task := self._tasks.get(call_id)) is not None:
                    self._cancelled.add(call_id)
                    task.cancel()
            planned: dict[Plan, list[_Asked]] = {}
            try:
                for streamed in frame.calls:
                    while len(self._tasks) + len(self.answers) >= MAX_CALLS or self._bytes > self._max_bytes:
                        self._begin_planned(planned)
                        self._room.clear()
                        await self._room.wait()
                    self._plan(self._asked(streamed), planned)
            finally:
                self._begin_planned(planned)

    def _plan(self, asked: _Asked, planned: dict[Plan, list[_Asked]]) -> None:
        """Begins a call, unless it is to be answered together with others of its frame."""
        is_usual = is_request_id(asked.call.request_id)
        plan = self._together.plan_of(asked.method, asked.request) if is_usual else None
        if plan is None:
            self._begin(asked)
        else:
            self._tasks[asked.id] = None
            planned.setdefault(plan, []).append(asked)

    def _begin_planned(self, planned: dict[Plan, list[_Asked]]) -> None:
        most = self._together.max_together
        for plan, asked in planned.items():
            for begin in range(0, len(asked), most):
                self._begin_together(plan, asked[begin : begin + most])
        planned.clear()

    def _asked(self, streamed: pb.StreamedCall) -> _Asked:
        if streamed.id in self._tasks:
            raise _BadFrame(f"calls under way must have ids of their own: got {streamed.id} twice")
        request = streamed.request
        timeout = streamed.timeout_microseconds * 1e-6 or None
        method = streamed.method
        call = self._calls.begin(
            method=method if method in self._methods else _OTHER,
            request_id=streamed.request_id or request_id_of(None),
            request_bytes=len(request),
            remaining=lambda: timeout,
        )
        self._bytes += len(request)
        return _Asked(streamed.id, call, method, request)

    def _begin(self, asked: _Asked) -> None:
        task = asyncio.ensure_future(self._answer(asked))
        self._tasks[asked.id] = task
        task.add_done_callback(functools.partial(self._end, asked))

    def _begin_together(self, plan: Plan, several: Sequence[_Asked]) -> None:
        if len(several) == 1:
            self._begin(several[0])
            return
        calls, requests = [asked.call for asked in several], [asked.request for asked in several]
        answer = functools.partial(self._together.answer_together, plan, calls, requests)
        task = asyncio.ensure_future(self._calls.run_together(calls, answer))
        for asked in several:
            self._tasks[asked.id] = task
        task.add_done_callback(functools.partial(self._end_together, several))

    def _end_together(self, several: Sequence[_Asked], task: "asyncio.Task[Sequence[bytes] | None]") -> None:
        """Keeps the answers of calls, or lets each go on alone."""
        error = None if task.cancelled() else task.exception()
        responses = None if task.cancelled() or error is not None else task.result()
        timing = several[0].call.timing()
        for number, asked in enumerate(several):
            if responses is not None:
                self._keep(asked, b"", responses[number], timing)
            elif self._is_over or asked.id in self._cancelled:
                self._calls.cancelled(asked.call)
            else:
                self._begin(asked)
                continue
            self._forget(asked)
        if error is not None:  # a fault of the server, which is not lost for not being any call's
            raise error

    async def _call(self, method: str, request: bytes) -> bytes:
        found = self._methods.get(method)
        if found is None:
            raise Unsupported(
                f"method: wanted one of {', '.join(self._methods)}, got {quote(method)}; others are calls of their own",
                reason="UNKNOWN_METHOD",
            )
        return await found(request)

    async def _answer(self, asked: _Asked) -> None:
        answer = functools.partial(self._call, asked.method, asked.request)
        try:
            response = await self._calls.run(asked.call, answer, is_ended_by_grpc=False)
        except CallFailed as failed:
            self._keep(asked, to_status(failed.failure).SerializeToString(), b"", asked.call.timing())
        else:
            self._keep(asked, b"", response, asked.call.timing())

    def _keep(self, asked: _Asked, status: bytes, response: bytes, timing: str) -> None:
        """Keeps an answer for the next frame."""
        call = asked.call
        request_id = "" if call.reason == "BAD_REQUEST_ID" else call.request_id
        head = pb.StreamedAnswer(id=asked.id, status=status, timing=timing, request_id=request_id)
        field = field_pieces(pb.StreamedAnswer.RESPONSE_FIELD_NUMBER, [response]) if response else []
        self.answers.append(b"".join([head.SerializeToString(), *field]))

    def _end(self, asked: _Asked, task: "asyncio.Task[None]") -> None:
        self._forget(asked)
        if not task.cancelled():
            task.result()
        elif asked.call.code is Code.OK:  # before its first step, so that nobody has taken note of it
            self._calls.cancelled(asked.call)

    def _forget(self, asked: _Asked) -> None:
        del self._tasks[asked.id]
        self._cancelled.discard(asked.id)
        self._bytes -= len(asked.request)
        self._room.set()
        self.changed.set()

    def next_frame(self) -> bytes:
        """Returns a frame of the answers that wait, as many as it may hold."""
        pieces: list[Piece] = []
        size = 0
        while self.answers and (not pieces or size + len(self.answers[0]) <= _MAX_FRAME_BYTES):
            answer = self.answers.popleft()
            size += len(answer)
            pieces += field_pieces(pb.StreamVjpResponse.ANSWERS_FIELD_NUMBER, [answer])
        self._room.set()
        return b"".join(pieces)

    def cancel_all(self) -> None:
        """Drops the calls that are under way: nobody waits for them any more."""
        self._is_over = True
        for task in {task for task in self._tasks.values() if task is not None}:
            task.cancel()
