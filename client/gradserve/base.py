"""What the blocking client and its asyncio twin share: settings, pickling, and which RPCs a call needs.

``BaseClient`` yields RPCs and takes their results; the twins differ in how they send one.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from gradserve.errors import InvalidRequest, NotFound, OpContractError
from gradserve.messages import GET_OP, AnyForwardResult, Method, OpCall
from gradserve.op_info import OpInfo
from gradserve.transport import Budget, check_target, check_timeout
from gradserve.v1 import gradient_service_pb2 as pb


class _Default:
    """Stands for "the client's own timeout", since None means no deadline."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = _Default()
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

    def __init__(self, target: str, *, timeout: float | None = 30.0) -> None:
        """Makes a client; the first call connects.

        Args:
            target: Address as gRPC names it, such as "localhost:50051".
            timeout: Deadline of each call in seconds, unless the call sets its own; None for no deadline.

        Raises:
            InvalidRequest: The target names no port, or the timeout is not a positive number.
        """
        self._target = check_target(target)
        self._timeout = check_timeout(timeout)
        self._start()

    def _start(self) -> None:
        """Resets everything that belongs to one process; subclasses add their connection."""
        self._infos: dict[tuple[str, int], OpInfo] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Keeps the settings, not the connection."""
        return {"_target": self._target, "_timeout": self._timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the settings; the next call connects."""
        self.__dict__.update(state)
        self._start()

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._timeout if isinstance(timeout, _Default) else check_timeout(timeout)

    def _evaluation(
        self,
        method: Method[Any, Any, AnyForwardResult],
        call: OpCall,
        build: Callable[[OpCall, OpInfo | None], Message],
        timeout: Timeout,
        request_id: str | None,
    ) -> Generator["Rpc", Any, AnyForwardResult]:
        """Yields the RPCs that a call of an op needs, takes their results, and returns the last one.

        An op's signatures are fetched if the call needs them and they are not known. If another graph answers than the one
        that they describe, or the call fails as it may because of that, they are forgotten; and a call that was bound by
        old ones is bound and sent once more, since it may have been bound to other inputs than it means.
        """
        budget = Budget(self._seconds(timeout))
        key = (call.op, call.version)
        for is_last in (False, True):
            info, is_old = self._infos.get(key) if call.needs_info() else None, True
            if info is None and call.needs_info():
                wanted = pb.GetOpRequest(name=call.op, version=call.version)
                info, is_old = (yield Rpc(GET_OP, wanted, budget.remaining_seconds(), request_id)), False
                self._infos[key] = info
            try:
                request = build(call, info)
                result: AnyForwardResult = yield Rpc(method, request, budget.remaining_seconds(), request_id)
            except _MAY_BE_STALE:
                self._infos.pop(key, None)
                raise
            if info is None or info.fingerprint == result.fingerprint:
                break
            self._infos.pop(key, None)
            if is_last or not is_old or info.stateful:
                break
        return result
