"""The connection of the blocking client: made by the first call, shared between threads, made anew after a fork."""

import os
import threading
import weakref
from collections.abc import Generator
from typing import Any, TypeVar, cast

import grpc

from gradserve.base import DEFAULT, BaseClient, Rpc, Timeout, result_of_answer
from gradserve.blocking_stream import BlockingStream
from gradserve.errors import Cancelled, GradserveError
from gradserve.methods import Method, Request, Response, Result
from gradserve.streamed_calls import NotSent
from gradserve.transport import CHANNEL_OPTIONS, error_of_rpc, read_trailer, request_metadata

Entered = TypeVar("Entered", bound="BlockingClient")


class BlockingClient(BaseClient):
    """Sends RPCs and waits for them; ``gradserve.Client`` adds the calls."""

    def _start(self) -> None:
        super()._start()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stream: BlockingStream | None = None
        self._abandon = weakref.finalize(self, lambda: None)

    def __enter__(self: Entered) -> Entered:
        """Returns the client itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection, which fails the calls under way with ``Cancelled``; a later call connects anew."""
        with self._lock:
            stream, self._stream = self._stream, None
            channel, self._channel = self._channel, None
        if stream is not None:
            stream.close()
        if channel is not None:
            channel.close()

    def _run(self, steps: Generator[Rpc, Any, Result]) -> Result:
        """Sends the RPCs that a generator of the base class yields, and returns what it returns."""
        try:
            rpc = next(steps)
            while True:
                try:
                    result = self._call(*rpc)
                except GradserveError as error:
                    rpc = steps.throw(error)
                else:
                    rpc = steps.send(result)
        except StopIteration as end:
            return cast("Result", end.value)

    def _call(
        self,
        method: Method[Request, Response, Result],
        request: Request,
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> Result:
        metadata = request_metadata(request_id)
        data = self._to_stream(method, request)
        if data is not None:
            return self._call_in_stream(method, data, self._seconds(timeout), metadata[0][1])
        send = self._connect().unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        try:
            response, rpc = send.with_call(request, timeout=self._seconds(timeout), metadata=metadata)
        except grpc.RpcError as error:
            raise error_of_rpc(error, metadata) from None
        except ValueError as error:  # gRPC's own, if another thread closed the channel before the call began
            raise _not_begun(error, metadata[0][1]) from None
        return method.to_result(response, read_trailer(rpc.trailing_metadata()))

    def _call_in_stream(
        self, method: Method[Request, Response, Result], data: bytes, timeout: float | None, request_id: str
    ) -> Result:
        while True:
            try:
                answer = self._open_stream().call(method.name, data, timeout, request_id)
            except NotSent:
                continue
            except ValueError as error:  # as for an RPC of its own
                raise _not_begun(error, request_id) from None
            return result_of_answer(method, answer)

    def _open_stream(self) -> BlockingStream:
        channel = self._connect()
        with self._lock:
            if self._stream is None or self._stream.is_over:
                self._stream = BlockingStream(channel)
                self._abandon.detach()
                self._abandon = weakref.finalize(self, self._stream.abandon)  # its thread would keep it for ever
                self._abandon.atexit = False
            return self._stream

    def _connect(self) -> grpc.Channel:
        if self._pid != os.getpid():  # a fork copies the connection but not the threads that drive it
            self._start()
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._target, options=CHANNEL_OPTIONS)
            return self._channel


def _not_begun(error: ValueError, request_id: str) -> Cancelled:
    return Cancelled(f"the call could not begin: {error}", request_id=request_id)
