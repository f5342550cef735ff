"""Times what callers do in one round. It needs the standard library alone: clients of peers run it in their own environments."""

import asyncio
import concurrent.futures
import statistics
import time
from collections.abc import Awaitable, Callable

Figures = dict[str, float]
"""What one round measured, by name; the unit stands in the name."""


async def figures_of_tasks(call: Callable[[], Awaitable[object]], callers: int, seconds: float) -> Figures:
    """Lets so many tasks call for some seconds, each making its next call when it has its answer.

    Args:
        call: Makes one call.
        callers: How many tasks.
        seconds: After how long no further call begins; each task makes one at least.

    Returns:
        Those of ``figures``.
    """
    times: list[float] = []
    started = time.perf_counter()

    async def call_again_and_again() -> None:
        now = started
        while True:
            before = now
            await call()
            now = time.perf_counter()
            times.append(now - before)
            if now > started + seconds:
                return

    await asyncio.gather(*(call_again_and_again() for _ in range(callers)))
    return figures(times, time.perf_counter() - started)


def figures_of_threads(calls: list[Callable[[], object]], seconds: float) -> Figures:
    """Does the same as ``figures_of_tasks`` for blocking calls, each made by a thread of its own."""
    times: list[float] = []
    started = time.perf_counter()

    def call_again_and_again(call: Callable[[], object]) -> None:
        now = started
        while now <= started + seconds:
            before = now
            call()
            now = time.perf_counter()
            times.append(now - before)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(call_again_and_again, calls))  # raises what a thread raised
    return figures(times, time.perf_counter() - started)


def figures(times: list[float], seconds: float) -> Figures:
    """Returns the figures of a round.

    Args:
        times: How long each of its calls took, in seconds.
        seconds: How long it took as a whole.
    """
    return {
        "calls": len(times),
        "calls_per_second": len(times) / seconds,
        "p50_us": 1e6 * statistics.median(times),
        "p99_us": 1e6 * percentile(times, 99),
    }


def percentile(times: list[float], percent: float) -> float:
    """Returns the least of the times that so many percent of them do not exceed."""
    in_order = sorted(times)
    return in_order[min(len(in_order) - 1, int(len(in_order) * percent / 100))]
