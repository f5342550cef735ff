"""Queues under a clock that tests turn."""

import asyncio
import math
from typing import Any

from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import Load, Work


class Hands:
    """A clock that stands still until it is turned."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def work(clock: Hands, *, kind: str = "", seconds: float = math.inf, **load: Any) -> Work:
    """Returns work that is of use for so many seconds."""
    loop = asyncio.get_running_loop()
    asked = Load(kind=kind, deadline=clock() + seconds, **load)
    return Work(run=lambda: None, loop=loop, future=loop.create_future(), load=asked, queued_at=clock())


def teach(queue: WorkQueue, clock: Hands, seconds: float, **load: Any) -> None:
    """Lets a queue see calls that take so long."""
    for _ in range(40):
        queue.put(work(clock, **load))
        run(queue, clock, seconds)


def run(queue: WorkQueue, clock: Hands, seconds: float = 0.0, *, slow: bool = False) -> list[Work]:
    """Takes work and finishes it; returns it."""
    taken = queue.take(slow=slow)
    clock.seconds += seconds
    if taken:
        queue.finish(taken)
    return taken
