"""What both clients need of gRPC: channel options, metadata, and a failed RPC turned into a ``GradserveError``."""

import math
import time
from collections.abc import Iterable
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from gradserve.errors import Code, GradserveError, InvalidRequest, error_for_code
from gradserve.messages import new_request_id
from gradserve.methods import Trailer
from gradserve.v1 import gradient_service_pb2 as pb

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),  # the server's limit decides; gRPC's default of 4 MiB is one small image
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else the new channel of a forked child finds its parent's connection
]

_STATUS_DETAILS = "grpc-status-details-bin"
_MAX_REQUEST_ID = 128
_REMEDIES = {
    Code.DEADLINE_EXCEEDED: "give the call a longer timeout",
    Code.RESOURCE_EXHAUSTED: "send less, or raise --max-message-bytes of the server",
    Code.UNAVAILABLE: "is a server running there, and is the target right?",
}


Metadata = Iterable[tuple[str, str | bytes]]


def check_timeout(timeout: float | None) -> float | None:
    """Returns the timeout in seconds, None for no deadline.

    Raises:
        InvalidRequest: It is not a positive number.
    """
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise InvalidRequest(f"timeout: wanted seconds above 0, or None for no deadline, got {timeout!r}")
    return timeout


def check_target(target: str) -> str:
    """Returns the target.

    Raises:
        InvalidRequest: It names no port, for which gRPC would take 443.
    """
    if not isinstance(target, str) or ":" not in target:
        raise InvalidRequest(f"target: wanted HOST:PORT, such as 'localhost:50051', got {target!r}")
    return target


class Budget:
    """The time that a call may take, shared by the RPCs that it needs."""

    def __init__(self, seconds: float | None) -> None:
        """Starts the clock; None is no limit."""
        self._ends_at = None if seconds is None else time.monotonic() + seconds

    def remaining_seconds(self) -> float | None:
        """Returns what is left; never 0 or less, so that gRPC itself reports the deadline as passed."""
        return None if self._ends_at is None else max(self._ends_at - time.monotonic(), 1e-6)


def request_metadata(request_id: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call with that id, or with a new one.

    Raises:
        InvalidRequest: The id is not 1 to 128 printable ASCII characters.
    """
    if request_id is None:
        request_id = new_request_id()
    elif not (0 < len(request_id) <= _MAX_REQUEST_ID and request_id.isascii() and request_id.isprintable()):
        raise InvalidRequest(f"request_id: wanted 1 to {_MAX_REQUEST_ID} printable ASCII characters")
    return (("x-request-id", request_id),)


def read_trailer(metadata: Metadata | None) -> Trailer:
    """Returns the text entries of trailing metadata."""
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def error_of_rpc(error: grpc.RpcError, metadata: tuple[tuple[str, str], ...]) -> GradserveError:
    """Returns the error that a failed RPC stands for, with the reason and facts of its ``google.rpc.ErrorInfo``.

    Args:
        error: What either kind of channel raised.
        metadata: What ``request_metadata`` returned for the call.
    """
    trailer = dict(tuple(cast("Metadata", error.trailing_metadata() or ())))  # the keys() of grpcio 1.78 are pairs
    request_id = str(trailer.get("x-request-id", dict(metadata)["x-request-id"]))
    return _error(Code[error.code().name], error.details() or "", trailer.get(_STATUS_DETAILS), request_id)


def error_of_answer(answer: pb.StreamedAnswer) -> GradserveError:
    """Returns the error that a failed call of a stream stands for."""
    status = status_pb2.Status.FromString(answer.status)
    return _error(Code(status.code), status.message, answer.status, answer.request_id)


def trailer_of_answer(answer: pb.StreamedAnswer) -> Trailer:
    """Returns what would be the trailing metadata of a call of a stream, were it an RPC of its own."""
    return {"x-request-id": answer.request_id, "gradserve-timing": answer.timing}


def _error(code: Code, text: str, status: str | bytes | None, request_id: str) -> GradserveError:
    info, retry_after_seconds = _details(status)
    text = " ".join((text or "the server gave no reason").split())
    if not info.reason and code in _REMEDIES:  # gRPC's own failure, not the server's
        text = f"{text}; {_REMEDIES[code]}"
    return error_for_code(
        code,
        text,
        reason=info.reason,
        facts=dict(info.metadata),
        request_id=request_id,
        retry_after_seconds=retry_after_seconds,
    )


def _details(details: str | bytes | None) -> tuple[error_details_pb2.ErrorInfo, float | None]:
    """Returns the ``ErrorInfo`` and the seconds of the ``RetryInfo`` in a serialized ``google.rpc.Status``.

    Where there is none to read, an empty ``ErrorInfo``, and None.
    """
    info, retry, seconds = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), None
    if not isinstance(details, bytes):
        return info, None
    try:
        for detail in status_pb2.Status.FromString(details).details:
            if detail.Unpack(retry):
                seconds = retry.retry_delay.ToTimedelta().total_seconds()
            else:
                detail.Unpack(info)
    except (DecodeError, OverflowError):  # a proxy may put its own bytes there; the code and text still stand
        return error_details_pb2.ErrorInfo(), None
    return info, seconds
