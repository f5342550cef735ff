"""The error tree: what a call can fail with, the same classes on the server that raises and the client that receives.

    bytes -> message -> arrays -> op -> outputs and gradients -> message -> bytes

``InvalidRequest`` comes from the first two arrows, ``NotFound`` and ``OpContractError`` from finding and calling the op,
``OpFailed`` from the op's own code, ``Unavailable`` and ``DeadlineExceeded`` from the wire around all of them.
"""

import enum
from collections.abc import Mapping


class Code(enum.Enum):
    """gRPC's status codes, by their names and numbers (https://grpc.io/docs/guides/status-codes/)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GradserveError(Exception):
    """A call failed. ``str()`` is one line: the rule, the place, what was wanted, what was got, the remedy.

    Attributes:
        code: The status code; fixed by the class, except on this base class.
        reason: The reason within the code, in UPPER_SNAKE_CASE, such as "SHAPE_MISMATCH".
        facts: The facts of the text as a mapping of strings, such as {"input": "x", "wanted": "(3,)", "got": "(4,)"}.
        request_id: The id under which the server logged the call; None if the error arose before a call was sent.
        retry_after_seconds: After how many seconds the same call may well succeed; None if the server does not say so.
    """

    code: Code = Code.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        facts: Mapping[str, str] | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason or self.code.name
        self.facts = dict(facts or {})
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(GradserveError):
    """The request is wrong: names, dtype, rank, shape, byte count, or values that a kernel refuses."""

    code = Code.INVALID_ARGUMENT


class NotFound(GradserveError):
    """There is no such op, version or signature."""

    code = Code.NOT_FOUND


class OpContractError(GradserveError):
    """The op breaks its contract (count, shape or dtype of its gradients), or could not be loaded."""

    code = Code.FAILED_PRECONDITION


class Unsupported(GradserveError):
    """A capability or a kind of tensor that is not served, or a derivative that TensorFlow has no rule for."""

    code = Code.UNIMPLEMENTED


class ResourceExhausted(GradserveError):
    """Too large, or too many at once."""

    code = Code.RESOURCE_EXHAUSTED


class DeadlineExceeded(GradserveError):
    """The deadline passed before the answer came."""

    code = Code.DEADLINE_EXCEEDED


class Cancelled(GradserveError):
    """The call was cancelled."""

    code = Code.CANCELLED


class Unauthenticated(GradserveError):
    """No credentials, or bad ones."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(GradserveError):
    """The credentials do not allow this call."""

    code = Code.PERMISSION_DENIED


class Unavailable(GradserveError):
    """The server cannot be reached, is warming up, or is stopping."""

    code = Code.UNAVAILABLE


class OpFailed(GradserveError):
    """The op's own code raised; the server's log has the traceback under the request id."""

    code = Code.INTERNAL


_CLASS_BY_CODE: dict[Code, type[GradserveError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        NotFound,
        OpContractError,
        Unsupported,
        ResourceExhausted,
        DeadlineExceeded,
        Cancelled,
        Unauthenticated,
        PermissionDenied,
        Unavailable,
        OpFailed,
    )
}


def error_for_code(
    code: Code,
    message: str,
    *,
    reason: str,
    facts: Mapping[str, str],
    request_id: str | None,
    retry_after_seconds: float | None = None,
) -> GradserveError:
    """Returns an error of the class that stands for ``code``; of the base class, with that code, where none does."""
    error_class = _CLASS_BY_CODE.get(code, GradserveError)
    error = error_class(
        message,
        reason=reason or code.name,
        facts=facts,
        request_id=request_id,
        retry_after_seconds=retry_after_seconds,
    )
    error.code = code
    return error


def quote(name: str) -> str:
    """Returns a caller's name as it may stand in one line of text: quoted, escaped, at most 64 characters of it."""
    return ascii(name if len(name) <= 64 else name[:61] + "...")


def quote_all(names: list[str]) -> str:
    """Returns several names as they may stand in one line of text; the first eight and a count if there are more."""
    shown = ", ".join(quote(name) for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
