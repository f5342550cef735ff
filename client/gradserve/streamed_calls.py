"""The calls of one stream, without I/O: which wait to be sent, and which for their answers. Both clients drive one.

calls that wait -> frame -> server -> frame -> answers, each to whoever made the call
"""

import copy
import itertools
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError

from gradserve.errors import Cancelled, Code, GradserveError, Unavailable
from gradserve.messages import SERVICE
from gradserve.transport import error_of_rpc
from gradserve.v1 import gradient_service_pb2 as pb

STREAM_PATH = f"/{SERVICE}/StreamVjp"
STREAMED_METHODS = frozenset(("Forward", "Vjp", "Jvp", "Hvp", "Jacobian"))
MOST_BYTES = 2**18
"""A larger request is an RPC of its own: frames would save it little, and it would hold up the small ones."""
_MAX_FRAME_BYTES = 2**22

Waiter = TypeVar("Waiter")
"""Whoever waits for an answer: a future of either kind."""


class StreamedCalls(Generic[Waiter]):
    """Knows the calls of one stream; not safe to share between threads without a lock."""

    def __init__(self) -> None:
        """Knows no calls yet."""
        self._ids = itertools.count(1)
        self._unsent: dict[int, pb.StreamedCall] = {}
        self._cancelled: list[int] = []
        self._waiting: dict[int, tuple[Waiter, str]] = {}

    def add(self, method: str, request: bytes, timeout: float | None, request_id: str, waiter: Waiter) -> int:
        """Adds a call to the next frame; returns its id.

        Args:
            method: Name of the RPC.
            request: Its message, serialized.
            timeout: Its deadline in seconds, None for none.
            request_id: Its id in logs.
            waiter: Who is to be told.
        """
        call_id = next(self._ids)
        self._waiting[call_id] = (waiter, request_id)
        self._unsent[call_id] = pb.StreamedCall(
            id=call_id,
            method=method,
            request=request,
            timeout_microseconds=0 if timeout is None else max(1, round(timeout * 1e6)),
            request_id=request_id,
        )
        return call_id

    def drop(self, call_id: int) -> None:
        """Forgets a call that nobody waits for any more, and lets the server know if it has not answered."""
        if self._waiting.pop(call_id, None) is not None and self._unsent.pop(call_id, None) is None:
            self._cancelled.append(call_id)

    @property
    def has_frame(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._unsent or self._cancelled)

    def next_frame(self) -> bytes:
        """Returns a frame of what waits to be sent, as much as it may hold."""
        frame, size = pb.StreamVjpRequest(cancelled_ids=self._cancelled), 0
        self._cancelled.clear()
        taken: list[pb.StreamedCall] = []
        for call in self._unsent.values():
            size += len(call.request)
            if taken and size > _MAX_FRAME_BYTES:
                break
            taken.append(call)
        frame.calls.extend(taken)
        for call in taken:
            del self._unsent[call.id]
        return frame.SerializeToString()

    def take(self, frame: bytes) -> list[tuple[Waiter, pb.StreamedAnswer]]:
        """Returns the answers of a frame, each with who waits for it; those that nobody waits for are left out.

        Raises:
            DecodeError: It is no frame.
        """
        answers = pb.StreamVjpResponse.FromString(frame).answers
        found = [(self._waiting.pop(answer.id, None), answer) for answer in answers]
        return [(waiting[0], answer) for waiting, answer in found if waiting is not None]

    def end(self, error: GradserveError | None) -> list[tuple[Waiter, GradserveError]]:
        """Forgets all calls, since the stream is over; returns who waits, and what to tell them.

        Calls that were not sent have not run, which they are told by ``NotSent``, so that they can be sent on another stream.

        Args:
            error: Why it is over; None if the client was closed.
        """
        told = [
            (waiter, self._told(call_id, error, request_id)) for call_id, (waiter, request_id) in self._waiting.items()
        ]
        self._unsent.clear()
        self._cancelled.clear()
        self._waiting.clear()
        return told

    def _told(self, call_id: int, error: GradserveError | None, request_id: str) -> GradserveError:
        """Returns what a call is told of the end: a stream that breaks says nothing of the calls that it carries."""
        told: GradserveError
        if error is None:
            told = Cancelled("the client was closed while the call was under way")
        elif call_id in self._unsent:
            told = NotSent()
        elif error.code in (Code.UNAVAILABLE, Code.UNIMPLEMENTED, Code.INVALID_ARGUMENT):
            told = copy.copy(error)
        else:
            text = f"the stream broke, and it is not known whether the call ran: {error}"
            told = Unavailable(text, reason="STREAM_BROKEN")
        told.request_id = request_id
        return told


class NotSent(Unavailable):
    """The stream was over before the call was sent."""

    def __init__(self) -> None:
        super().__init__("the stream was over before the call was sent", reason="STREAM_BROKEN")


def error_of_end(error: grpc.RpcError | DecodeError) -> GradserveError:
    """Returns why a stream is over that failed, or whose frames cannot be read."""
    if isinstance(error, DecodeError):
        return Unavailable("the server sent a frame that cannot be parsed as protobuf", reason="STREAM_BROKEN")
    return error_of_rpc(error, (("x-request-id", ""),))
