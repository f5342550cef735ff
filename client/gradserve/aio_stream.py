"""The stream of the asyncio client: a task that sends frames, and one that reads answers."""

import asyncio
import contextlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from gradserve.errors import DeadlineExceeded, GradserveError, Unavailable
from gradserve.streamed_calls import STREAM_PATH, NotSent, StreamedCalls, error_of_end
from gradserve.v1 import gradient_service_pb2 as pb

_Future = asyncio.Future[pb.StreamedAnswer]


class AioStream:
    """One stream, in one event loop; once it is over, a client makes another."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Opens the stream."""
        self._calls: StreamedCalls[_Future] = StreamedCalls()
        self._has_frame = asyncio.Event()
        self.is_over = False
        """Whether it takes no more calls."""
        self._is_closed = False
        self._rpc: Any = channel.stream_stream(STREAM_PATH)()
        self._writer = asyncio.ensure_future(self._write())
        self._reader = asyncio.ensure_future(self._read())

    async def call(self, method: str, request: bytes, timeout: float | None, request_id: str) -> pb.StreamedAnswer:
        """Makes a call and waits for its answer; raises as ``BlockingStream.call`` does."""
        if self.is_over:
            raise NotSent
        loop = asyncio.get_running_loop()
        future: _Future = loop.create_future()

        def end() -> None:
            if not future.done():
                text = f"the deadline passed, {timeout:g} s after the call was made; give the call a longer timeout"
                future.set_exception(DeadlineExceeded(text, request_id=request_id))

        timer = None if timeout is None else loop.call_later(timeout, end)
        call_id = self._calls.add(method, request, timeout, request_id, future)
        self._has_frame.set()
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            self._calls.drop(call_id)
            if self._calls.has_frame:
                self._has_frame.set()

    async def close(self) -> None:
        """Ends the stream, which fails the calls under way with ``Cancelled``."""
        self._is_closed = True
        self._rpc.cancel()
        await asyncio.wait([self._reader, self._writer])

    async def _write(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader tells why
            while not self.is_over:
                await self._has_frame.wait()
                self._has_frame.clear()
                while self._calls.has_frame and not self.is_over:
                    await self._rpc.write(self._calls.next_frame())

    async def _read(self) -> None:
        error: GradserveError | None = Unavailable("the server ended the stream", reason="STREAM_BROKEN")
        try:
            while (frame := await self._rpc.read()) is not grpc.aio.EOF:
                for future, answer in self._calls.take(frame):
                    if not future.done():
                        future.set_result(answer)
        except (grpc.RpcError, DecodeError) as raised:
            error = None if self._is_closed else error_of_end(raised)
        except asyncio.CancelledError:  # raised by gRPC when the stream or its channel is closed here
            error = None
        self._rpc.cancel()  # it goes on, if it was a frame that failed
        self.is_over = True
        self._has_frame.set()
        for future, failure in self._calls.end(error):
            if not future.done():
                future.set_exception(failure)
