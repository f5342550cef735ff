"""The queue in front of a device: work waits here, first in, first out, until the device's thread takes it."""

import asyncio
import dataclasses
import queue
from collections.abc import Callable
from typing import Any

Clock = Callable[[], float]
"""Returns seconds from any fixed point; handed in, so that tests can turn it."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Work:
    """One call that waits for a device."""

    run: Callable[[], Any] | None
    """Does the work, on the device's thread; None once the caller no longer waits, so that its tensors can go."""
    loop: asyncio.AbstractEventLoop
    """Event loop of the caller."""
    future: "asyncio.Future[Any]"
    """Where the result goes; cancelled when the caller no longer waits."""
    queued_at: float
    """When it was put in, by the clock."""
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


class WorkQueue:
    """Hands work from the event loop to one thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()

    def put(self, work: Work) -> None:
        """Adds work at the end."""
        self._queue.put(work)

    def close(self) -> None:
        """Lets ``take`` return None once all work before this has been taken."""
        self._queue.put(None)

    def take(self) -> Work | None:
        """Waits for work whose caller still wants it; None if the queue is closed."""
        while True:
            work = self._queue.get()
            if work is None or not work.future.cancelled():
                return work
