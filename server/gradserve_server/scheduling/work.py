"""Work: a call that waits for a device, what it asks, and how its result gets back to the event loop."""

import asyncio
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gradserve_server.scheduling.joining import Share

Clock = Callable[[], float]
"""Returns seconds from any fixed point; handed in, so that tests can turn it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a call asks of a queue."""

    group: Hashable = ""
    """No two calls of a group run at once: those of one op, and of ops that may share what they change."""
    kind: Hashable = ""
    """Calls of one kind take about as long as each other; empty for the server's own work."""
    calls: int = 1
    """How many calls it is: some are joined before they are queued."""
    size_bytes: int = 0
    """Bytes of the tensors that wait with it."""
    deadline: float = math.inf
    """When it is of no use any more, by the clock."""
    share: Share | None = None
    """Its form in which it can be joined with others; None if it runs alone."""
    is_bounded: bool = False
    """Whether calls of its kind cannot take much longer than they did, whatever values they bring."""


OWN_LOAD = Load()
"""The load of the server's own work with no op."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may wait for one device."""

    max_requests: int = 1024
    """Most calls."""
    max_bytes: int = 2**30
    """Most bytes of their tensors."""
    max_joined: int = 32
    """Most calls that run as one; 1 joins none."""
    max_wait_seconds: float = 8e-3
    """Longest that the oldest call waits for others to join it."""
    light_seconds: float = 0.0
    """Calls that take up to so long are light: the event loop runs them, which saves the way to a thread and back."""
    slow_seconds: float = math.inf
    """Ops with calls that take longer have a lane of their own, so that they do not hold up the others."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One call that waits for a device, or several that were joined before."""

    run: Callable[[], Any] | None
    """Does the work, on the device's thread; None once the caller no longer waits, so that its tensors can go."""
    loop: asyncio.AbstractEventLoop
    """Event loop of the caller."""
    future: "asyncio.Future[Any]"
    """Where the result goes; cancelled when the caller no longer waits."""
    load: Load
    """What it asks of the queue."""
    queued_at: float
    """When it was put in, by the clock."""
    is_slow: bool = False
    """Whether it waits in the lane of the slow ops."""
    expected_seconds: float = 0.0
    """How long it may run."""
    started_at: float = 0.0
    """When the device's thread took it."""
    finished_at: float = 0.0
    """When it was done."""

    @property
    def queue_seconds(self) -> float:
        """How long it waited."""
        return self.started_at - self.queued_at

    @property
    def compute_seconds(self) -> float:
        """How long it ran."""
        return self.finished_at - self.started_at


Outcome = tuple[Any, Exception | None]
"""A result, or the error in its place."""


def settle(works: Sequence[Work], outcomes: Sequence[Outcome], here: asyncio.AbstractEventLoop | None = None) -> None:
    """Hands results and errors to the callers; from any thread, or on the event loop ``here``."""
    for loop, pairs in itertools.groupby(zip(works, outcomes, strict=True), lambda pair: pair[0].loop):
        settled = [(work.future, outcome) for work, outcome in pairs]
        if loop is here:
            _hand_over(settled)
            continue
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_hand_over, settled)


def _hand_over(outcomes: Sequence[tuple["asyncio.Future[Any]", Outcome]]) -> None:
    """Sets results and errors, on the event loop, once for calls that ran as one: each such hand-over wakes it up."""
    for future, (result, error) in outcomes:
        if future.cancelled():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
