"""Statuses: from whatever a handler raised to the code, reason and one line of text that the caller sees.

exception -> Failure -> google.rpc.Status -> trailing metadata
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from gradserve.errors import Code, GradserveError

MAX_TEXT_BYTES = 2048
"""gRPC turns longer text into RESOURCE_EXHAUSTED: it counts against the size of the headers."""
_MAX_FACT_BYTES = 256
_PATH = re.compile(r"(?<![\w:/])(?:/[\w.@+~-]+){2,}")  # no URL: there a colon, a slash or a word stands before it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a call failed, in public."""

    code: Code
    """Status code."""
    reason: str
    """Reason within the code, in UPPER_SNAKE_CASE."""
    text: str
    """One line, at most ``MAX_TEXT_BYTES`` of UTF-8, without paths or tracebacks."""
    facts: Mapping[str, str]
    """The facts of the text."""
    retry_after_seconds: float | None = None
    """After how many seconds another try makes sense; None if that is not known."""
    is_internal: bool
    """Whether the cause is hidden from the caller, so that the log must have it."""


def failure_of(error: Exception, *, op: str) -> Failure:
    """Returns what a caller sees of an exception.

    Args:
        error: What a handler raised.
        op: Name of the op, if the call got as far as finding it.
    """
    if isinstance(error, GradserveError):
        return Failure(
            code=error.code,
            reason=error.reason,
            text=_one_line(str(error)),
            facts=error.facts,
            retry_after_seconds=error.retry_after_seconds,
            is_internal=False,
        )
    if isinstance(error, DecodeError):
        return Failure(
            code=Code.INVALID_ARGUMENT,
            reason="MALFORMED_MESSAGE",
            text="the request is not a message of this method: it could not be parsed as protobuf",
            facts={},
            is_internal=False,
        )
    text = (
        f"op {op!r} raised while it ran; the server's log has the cause under the request id"
        if op
        else ("the server failed; its log has the cause under the request id")
    )
    reason = "OP_FAILED" if op else "SERVER_FAILED"
    return Failure(code=Code.INTERNAL, reason=reason, text=text, facts={"op": op} if op else {}, is_internal=True)


def to_status(failure: Failure) -> status_pb2.Status:
    """Returns the failure as gRPC's rich status.

    It has a ``google.rpc.ErrorInfo`` of the domain "gradserve", and a ``google.rpc.RetryInfo`` if another try makes sense.
    """
    facts = {key: _cut(value, _MAX_FACT_BYTES) for key, value in failure.facts.items()}
    info = error_details_pb2.ErrorInfo(reason=failure.reason, domain="gradserve", metadata=facts)
    details = [_packed(info)]
    if failure.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(round(failure.retry_after_seconds * 1e6))
        details.append(_packed(retry))
    return status_pb2.Status(code=failure.code.value, message=failure.text, details=details)


def _packed(message: Message) -> any_pb2.Any:
    detail = any_pb2.Any()
    detail.Pack(message)
    return detail


def hide_paths(text: str) -> str:
    """Returns text without the paths of files, which are no caller's business."""
    return _PATH.sub("(path)", text)


def _one_line(text: str) -> str:
    """Returns text in one line that a terminal shows as it is, and that fits into a header once gRPC has escaped it."""
    printable = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(text.split()))
    return _cut(printable, MAX_TEXT_BYTES)


def _cut(text: str, limit_bytes: int) -> str:
    """Returns text of at most ``limit_bytes`` as gRPC sends it: each byte that is not plain ASCII takes three."""
    text = text.encode(errors="replace").decode()  # lone surrogates, which cannot be sent, become "?"
    sizes = itertools.accumulate(_header_bytes(char) for char in text)
    fitting = sum(1 for size in sizes if size <= limit_bytes - 3)
    return text if sum(map(_header_bytes, text)) <= limit_bytes else f"{text[:fitting]}..."


def _header_bytes(char: str) -> int:
    return 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode())
