"""What the blocking client and its asyncio twin share: settings, the signatures fetched so far, pickling."""

from typing import Any, Final

from gradserve.errors import GradserveError
from gradserve.messages import OpCall
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult
from gradserve.transport import check_timeout


class _Default:
    """Stands for "the client's own timeout", since None means no deadline."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = _Default()
Timeout = float | None | _Default
"""Seconds; None for no deadline; DEFAULT for the client's own."""


class BaseClient:
    """State of a client. Its connection is made by the first call, and made anew after a fork or in an unpickled copy."""

    def __init__(self, target: str, *, timeout: float | None = 30.0) -> None:
        """Makes a client; the first call connects.

        Args:
            target: Address as gRPC names it, such as "localhost:50051".
            timeout: Deadline of each call in seconds, unless the call sets its own; None for no deadline.
        """
        self._target = target
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

    def _known_info(self, call: OpCall) -> OpInfo | None:
        return self._infos.get((call.op, call.version))

    def _learn(self, call: OpCall, info: OpInfo) -> OpInfo:
        return self._infos.setdefault((call.op, call.version), info)

    def _settle(self, call: OpCall, outcome: ForwardResult | GradserveError) -> None:
        """Forgets an op's signatures if another graph answered than the one they describe, or if the call failed."""
        info = self._known_info(call)
        if info is None:
            return
        if isinstance(outcome, GradserveError) or outcome.fingerprint != info.fingerprint:
            self._infos.pop((call.op, call.version), None)
