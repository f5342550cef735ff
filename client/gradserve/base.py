"""What the blocking client and its asyncio twin share: settings, pickling, and which RPCs a call needs.

``BaseClient`` yields RPCs and takes their results; the twins differ in how they send one.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, Literal, NamedTuple, get_args

from google.protobuf.message import Message

from gradserve.errors import InvalidRequest, NotFound, OpContractError
from gradserve.messages import OpCall
from gradserve.methods import GET_OP, AnyResult, Method, Result
from gradserve.op_info import OpInfo
from gradserve.streamed_calls import MOST_BYTES, STREAMED_METHODS
from gradserve.transport import Budget, check_target, check_timeout, error_of_answer, trailer_of_answer
from gradserve.v1 import gradient_service_pb2 as pb


class _Default:
    """Stands for "the client's own timeout", since None means no deadline."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = _Default()
Transport = Literal["unary", "stream"]
Timeout = float | None | _Default
"""Seconds; None for no deadline; DEFAULT for the client's own."""


_MAY_BE_STALE = (InvalidRequest, NotFound, OpContractError)
"""What a call may fail with because it was bound by signatures that the server no longer has."""


class Rpc(NamedTuple):
    """One RPC to send."""

    method: Method[Any, Any, Any]
    """Which."""
    request: Message
    """Its message."""
    timeout: Timeout = DEFAULT
    """Its deadline."""
    request_id: str | None = None
    """Its id, None for a new one."""


class BaseClient:
    """State of a client. Its connection is made by the first call, and made anew after a fork or in an unpickled copy."""

    def __init__(self, target: str, *, timeout: float | None = 30.0, transport: Transport = "unary") -> None:
        """Makes a client; the first call connects.

        Args:
            target: Address as gRPC names it, such as "localhost:50051".
            timeout: Deadline of each call in seconds, unless the call sets its own; None for no deadline.
            transport: "unary" for an RPC a call; "stream" to send calls that are made at the same time in frames over one
                stream, which costs client and server less where many callers share a client. If the stream breaks, calls that
                were sent fail with ``Unavailable``, as it is not known whether they ran; the next call opens another.

        Raises:
            InvalidRequest: The target names no port, the timeout is not a positive number, or there is no such transport.
        """
        if transport not in get_args(Transport):
            raise InvalidRequest(f"transport: wanted 'unary' or 'stream', got {transport!r}")
        self._transport = transport
        self._target = check_target(target)
        self._timeout = check_timeout(timeout)
        self._start()

    def _start(self) -> None:
        """Resets everything that belongs to one process; subclasses add their connection."""
        self._infos: dict[tuple[str, int], OpInfo] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Keeps the settings, not the connection."""
        return {"_target": self._target, "_timeout": self._timeout, "_transport": self._transport}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the settings; the next call connects."""
        self.__dict__.update(state)
        self._start()

    def _to_stream(self, method: Method[Any, Any, Any], request: Message) -> bytes | None:
        """Returns the serialized request of a call that goes over the stream; None if it is an RPC of its own."""
        is_streamed = self._transport == "stream" and method.name in STREAMED_METHODS
        return request.SerializeToString() if is_streamed and request.ByteSize() <= MOST_BYTES else None

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._timeout if isinstance(timeout, _Default) else check_timeout(timeout)

    def _evaluation(
        self,
        method: Method[Any, Any, AnyResult],
        call: OpCall,
        build: Callable[[OpCall, OpInfo | None], Message],
        timeout: Timeout,
        request_id: str | None,
    ) -> Generator["Rpc", Any, AnyResult]:
        """Yields the RPCs that a call of an op needs, takes their results, and returns the last one.

        An op's signatures are fetched if the call needs them and they are not known. A call that was bound by known ones may
        mean other inputs than it was bound to, if another graph answers than the one that they describe: it is bound and
        sent once more, unless the op is stateful.
        """
        budget = Budget(self._seconds(timeout))

        def bound_by(info: OpInfo | None) -> Rpc:
            return Rpc(method, build(call, info), budget.remaining_seconds(), request_id)

        needs_info = call.needs_info()
        info = self._infos.get((call.op, call.version)) if needs_info else None
        is_known = info is not None
        if needs_info and info is None:
            info = yield from self._fetch_info(call, budget, request_id)
        result: AnyResult = yield from self._send(call, bound_by, info)
        if is_known and info is not None and info.fingerprint != result.fingerprint:
            info = yield from self._fetch_info(call, budget, request_id)
            if not info.stateful:
                result = yield from self._send(call, bound_by, info)
        return result

    def _fetch_info(self, call: OpCall, budget: Budget, request_id: str | None) -> Generator["Rpc", Any, OpInfo]:
        wanted = pb.GetOpRequest(name=call.op, version=call.version)
        info: OpInfo = yield Rpc(GET_OP, wanted, budget.remaining_seconds(), request_id)
        self._infos[call.op, call.version] = info
        return info

    def _send(
        self, call: OpCall, bound_by: Callable[[OpInfo | None], "Rpc"], info: OpInfo | None
    ) -> Generator["Rpc", Any, Any]:
        """Binds a call and sends it; forgets the signatures that it was bound by if it may have failed for them."""
        try:
            result = yield bound_by(info)
        except _MAY_BE_STALE:
            self._infos.pop((call.op, call.version), None)
            raise
        return result


def result_of_answer(method: Method[Any, Any, Result], answer: pb.StreamedAnswer) -> Result:
    """Returns the result of a call of a stream.

    Raises:
        GradserveError: The call failed.
    """
    if answer.status:
        raise error_of_answer(answer)
    return method.to_result(method.response_type.FromString(answer.response), trailer_of_answer(answer))
