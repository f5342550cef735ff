"""Requests as raw bytes, past every check of the client."""

import dataclasses
from collections.abc import Sequence

import grpc
from google.rpc import error_details_pb2, status_pb2

from gradserve.errors import Code
from gradserve.messages import SERVICE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """How a call ended."""

    code: Code
    text: str = ""
    reason: str = ""
    response: bytes = b""


def send(
    channel: grpc.Channel, method: str, request: bytes, metadata: Sequence[tuple[str, str | bytes]] = ()
) -> Answer:
    """Sends bytes to a method of the service."""
    call = channel.unary_unary(f"/{SERVICE}/{method}")  # no serializers: bytes in, bytes out
    try:
        return Answer(code=Code.OK, response=call(request, timeout=30, metadata=metadata))
    except grpc.RpcError as error:
        return Answer(code=Code[error.code().name], text=error.details() or "", reason=_reason(error))


def _reason(error: grpc.RpcError) -> str:
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        return ""
    info = error_details_pb2.ErrorInfo()
    status_pb2.Status.FromString(details).details[0].Unpack(info)
    return info.reason
