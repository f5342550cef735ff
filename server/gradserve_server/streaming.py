"""The stream: frames of many calls in, frames of many answers out, over the same methods as the unary RPCs.

    frame -> calls, a task each -> answers that wait -> frame

A frame has all answers that wait at that moment. No further call is begun and no frame read while many are under way, so that
HTTP/2's own flow control holds back whoever sends too many; answers that nobody takes count as under way.
"""

import asyncio
import collections
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import grpc
from google.protobuf.message import DecodeError

from gradserve.errors import Unsupported, quote
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.wire import Piece, field_pieces
from gradserve_server.calls import CallFailed, Calls
from gradserve_server.grpc_types import Context
from gradserve_server.status import to_status
from gradserve_server.telemetry import Call, request_id_of

Methods = Mapping[str, Callable[[bytes], Awaitable[bytes]]]
"""What answers a serialized request, by name of the method."""
MAX_CALLS = 1024
"""Most calls of one stream that are under way at once."""
_MAX_FRAME_BYTES = 2**22
"""A frame holds one answer, or several of up to so many bytes together."""
_OTHER = "StreamVjp"
"""Method of calls that name none that there is: what callers make up never becomes a label."""


class Streams:
    """Serves ``StreamVjp``."""

    def __init__(self, calls: Calls, methods: Methods, max_bytes: int) -> None:
        """Takes what runs calls, the methods that they may name, and how many bytes of requests may be under way."""
        self._calls = calls
        self._methods = methods
        self._max_bytes = max_bytes

    async def serve(self, frames: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Yields frames of answers until the caller sends no more and every call has its answer."""
        stream = _Stream(self._calls, self._methods, self._max_bytes)
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


class _Stream:
    """The calls of one stream."""

    def __init__(self, calls: Calls, methods: Methods, max_bytes: int) -> None:
        self._calls = calls
        self._methods = methods
        self._max_bytes = max_bytes
        self._tasks: dict[int, asyncio.Task[None]] = {}
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
                if call_id in self._tasks:
                    self._tasks[call_id].cancel()
            for streamed in frame.calls:
                while len(self._tasks) + len(self.answers) >= MAX_CALLS or self._bytes > self._max_bytes:
                    self._room.clear()
                    await self._room.wait()
                self._begin(streamed)

    def _begin(self, streamed: pb.StreamedCall) -> None:
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
        task = asyncio.ensure_future(self._answer(streamed.id, call, functools.partial(self._call, method, request)))
        self._tasks[streamed.id] = task
        task.add_done_callback(functools.partial(self._end, streamed.id, len(request)))

    async def _call(self, method: str, request: bytes) -> bytes:
        found = self._methods.get(method)
        if found is None:
            raise Unsupported(
                f"method: wanted one of {', '.join(self._methods)}, got {quote(method)}; others are calls of their own",
                reason="UNKNOWN_METHOD",
            )
        return await found(request)

    async def _answer(self, call_id: int, call: Call, answer: Callable[[], Awaitable[bytes]]) -> None:
        try:
            response = await self._calls.run(call, answer, is_ended_by_grpc=False)
        except CallFailed as failed:
            status, response = to_status(failed.failure).SerializeToString(), b""
        else:
            status = b""
        request_id = "" if call.reason == "BAD_REQUEST_ID" else call.request_id
        head = pb.StreamedAnswer(id=call_id, status=status, timing=call.timing(), request_id=request_id)
        field = field_pieces(pb.StreamedAnswer.RESPONSE_FIELD_NUMBER, [response]) if response else []
        self.answers.append(b"".join([head.SerializeToString(), *field]))

    def _end(self, call_id: int, request_bytes: int, task: "asyncio.Task[None]") -> None:
        del self._tasks[call_id]
        self._bytes -= request_bytes
        self._room.set()
        self.changed.set()
        if not task.cancelled():
            task.result()

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
        for task in self._tasks.values():
            task.cancel()
