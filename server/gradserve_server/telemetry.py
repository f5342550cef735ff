"""``Call``: what is known of the RPC under way, for whoever reports on it (metrics, logs, the timing trailer)."""

import contextvars
import dataclasses
import math
import random
import re
from collections.abc import Iterable

from gradserve.errors import Code, InvalidRequest
from gradserve.messages import SERVICE
from gradserve_server.scheduling.work import Clock

_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")
_IDS = random.Random()  # noqa: S311  # its own, which no op can seed; an id names a call, and guards nothing
STAGES = ("decode", "queue", "compute", "encode")
"""The stages of a request, in order."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Call:
    """One RPC, from its first byte to its last. Whoever handles it fills it in."""

    method: str
    """Name of the RPC, such as "Vjp"."""
    request_id: str
    """Id in logs and errors; the caller's, or one made up."""
    clock: Clock
    """Times the stages."""
    started_at: float
    """When the handler began, by the clock."""
    timeout: float | None = None
    """Seconds that its caller gives it; None if that is no matter."""
    deadline: float = math.inf
    """When its answer is of no use any more, by the clock."""
    service: str = SERVICE
    """Full name of its service."""
    request_bytes: int = 0
    """Size of the request message."""
    response_bytes: int = 0
    """Size of the response message."""
    op: str = ""
    """Name of the op, once it is found in the registry: never a name that a caller made up."""
    version: int = 0
    """Version of the op, once it is found."""
    stages: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds by stage."""
    code: Code = Code.OK
    """How it ended."""
    reason: str = ""
    """Why it failed, in UPPER_SNAKE_CASE."""
    error: str = ""
    """Text of the failure, as the caller saw it."""
    seconds: float = 0.0
    """How long it took, once it has ended."""

    def found(self, op: str, version: int) -> None:
        """Notes the op that the registry has for this call."""
        self.op, self.version = op, version

    def stage(self, name: str) -> "_Stage":
        """Returns a context that times a stage, whether it ends well or not."""
        return _Stage(self, name)

    def timing(self) -> str:
        """Returns the trailer ``gradserve-timing``, in the form of HTTP's Server-Timing."""
        return ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in self.stages.items())


class _Stage:
    """A stage of a call while it lasts; a generator's context takes four times as long."""

    __slots__ = ("_call", "_name", "_started_at")

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self._name = name

    def __enter__(self) -> None:
        self._started_at = self._call.clock()

    def __exit__(self, *_: object) -> None:
        self._call.stages[self._name] = self._call.clock() - self._started_at


Ended = tuple[Call, Exception | None]
"""A call that has ended, and the exception whose text its caller was not shown."""
_current: contextvars.ContextVar[Call] = contextvars.ContextVar("gradserve_call")


def current_call() -> Call:
    """Returns the call that this task handles.

    Raises:
        LookupError: This task handles none.
    """
    return _current.get()


def set_current_call(call: Call) -> None:
    """Makes this the call that the task handles; gRPC gives each RPC a task of its own."""
    _current.set(call)


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the ``x-request-id`` of a call's metadata, or a new one if there is none."""
    for key, value in metadata or ():
        if key == "x-request-id":
            return value if isinstance(value, str) else value.decode("latin-1")
    return f"{_IDS.getrandbits(128):032x}"


def is_request_id(request_id: str) -> bool:
    """Whether an id belongs in a log: it is 1 to 128 printable ASCII characters."""
    return _REQUEST_ID.fullmatch(request_id) is not None


def check_request_id(request_id: str) -> None:
    """Refuses an id that does not belong in a log.

    Raises:
        InvalidRequest: It is not 1 to 128 printable ASCII characters (BAD_REQUEST_ID).
    """
    if not is_request_id(request_id):
        raise InvalidRequest(
            f"metadata x-request-id: wanted 1 to 128 printable ASCII characters, got {len(request_id)}",
            reason="BAD_REQUEST_ID",
        )
