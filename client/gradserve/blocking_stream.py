"""The stream of the blocking client: threads add calls, gRPC's thread takes frames, and one thread reads answers."""

import concurrent.futures
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from gradserve.errors import DeadlineExceeded, GradserveError, Unavailable
from gradserve.streamed_calls import STREAM_PATH, NotSent, StreamedCalls, error_of_end
from gradserve.v1 import gradient_service_pb2 as pb

_Future = concurrent.futures.Future[pb.StreamedAnswer]


class BlockingStream:
    """One stream; once it is over, a client makes another."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Opens the stream."""
        self._calls: StreamedCalls[_Future] = StreamedCalls()
        self._changed = threading.Condition()
        self.is_over = False
        """Whether it takes no more calls."""
        self._is_closed = False
        open_stream: Any = channel.stream_stream(STREAM_PATH)
        self._rpc = open_stream(self._frames())
        self._reader = threading.Thread(target=self._read, name="gradserve-stream", daemon=True)
        self._reader.start()

    def call(self, method: str, request: bytes, timeout: float | None, request_id: str) -> pb.StreamedAnswer:
        """Makes a call and waits for its answer.

        Raises:
            NotSent: The stream was over before the call was sent.
            DeadlineExceeded: The deadline passed.
            Unavailable: The stream broke.
        """
        future: _Future = concurrent.futures.Future()
        with self._changed:
            if self.is_over:
                raise NotSent
            call_id = self._calls.add(method, request, timeout, request_id, future)
            self._changed.notify_all()
        try:
            return future.result(timeout)
        except (TimeoutError, concurrent.futures.TimeoutError):
            raise DeadlineExceeded(
                f"the deadline passed, {timeout:g} s after the call was made; give the call a longer timeout",
                request_id=request_id,
            ) from None
        finally:
            with self._changed:
                self._calls.drop(call_id)
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the stream, which fails the calls under way with ``Cancelled``."""
        self.abandon()
        self._reader.join()

    def abandon(self) -> None:
        """Does the same, but does not wait for it."""
        self._is_closed = True
        self._rpc.cancel()

    def _frames(self) -> Iterator[bytes]:
        """Yields a frame of all calls that wait, whenever some do, to the thread of gRPC's that sends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_over or self._calls.has_frame)
                if self.is_over:
                    return
                frame = self._calls.next_frame()
            yield frame

    def _read(self) -> None:
        error: GradserveError | None = Unavailable("the server ended the stream", reason="STREAM_BROKEN")
        try:
            for frame in self._rpc:
                with self._changed:
                    answers = self._calls.take(frame)
                for future, answer in answers:
                    future.set_result(answer)
        except (grpc.RpcError, DecodeError) as raised:
            error = None if self._is_closed else error_of_end(raised)
        self._rpc.cancel()  # it goes on, if it was a frame that failed
        with self._changed:
            self.is_over = True
            told = self._calls.end(error)
            self._changed.notify_all()
        for future, failure in told:
            future.set_exception(failure)
