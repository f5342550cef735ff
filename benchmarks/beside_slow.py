"""What a lane for slow ops gains and costs: small calls beside calls of one slow op, with a lane and without.

Small calls come over the stream from many callers, slow ones by unary calls from a few, which compute in TensorFlow's own kernels
for about as many milliseconds as it says. "no slow calls" has the small ones alone.
"""

import argparse
import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable

import numpy as np
from clock import Figures, figures
from report import parser_of, print_table, write_json
from rounds import Measure, Result, interleave
from servers import HERE, SMALL, Call, request, server_calls

from gradserve import Client, aio
from gradserve_server.testing import ServerProcess, server_process

MODULE = str(HERE / "ops_busy.py")
NO_LANE = "no lane"
METRICS = ("calls_per_second", "p50_us", "p99_us", "slow_calls_per_second")
PROBED_ROUNDS = 2000


def rounds_per_millisecond(target: str) -> float:
    """Returns how many rounds of the slow op take a millisecond."""
    with Client(target) as client:
        times = []
        for _ in range(4):
            started = time.perf_counter()
            client.forward("busy", np.int32(PROBED_ROUNDS))
            times.append(time.perf_counter() - started)
    return PROBED_ROUNDS / (1e3 * min(times))


def measure_of_small(
    small: Call, slow: Callable[[], Awaitable[object]], slow_callers: int, options: argparse.Namespace
) -> Measure:
    """Returns what measures small calls, and counts slow ones.

    Args:
        small: Makes a small call.
        slow: Makes a slow call.
        slow_callers: How many make those.
        options: The command line.
    """
    payload = request(SMALL, "quick")

    async def measure() -> Figures:
        times: list[float] = []
        slow_calls = 0
        started = time.perf_counter()

        async def call_small() -> None:
            while not times or time.perf_counter() < started + options.seconds:
                before = time.perf_counter()
                await small(payload)
                times.append(time.perf_counter() - before)

        async def call_slow() -> None:
            nonlocal slow_calls
            while time.perf_counter() < started + options.seconds:
                await slow()
                slow_calls += 1

        small_ones = [call_small() for _ in range(options.callers)]
        await asyncio.gather(*small_ones, *(call_slow() for _ in range(slow_callers)))
        seconds = time.perf_counter() - started
        return {**figures(times, seconds), "slow_calls_per_second": slow_calls / seconds}

    return measure


async def run(servers: dict[str, ServerProcess], options: argparse.Namespace) -> list[Result]:
    """Measures all servers in turns, for each time that slow calls take."""
    results = []
    per_millisecond = rounds_per_millisecond(next(iter(servers.values())).target)
    async with contextlib.AsyncExitStack() as stack:
        calls = {
            name: (
                (await stack.enter_async_context(server_calls(server.target)))["stream"],
                await stack.enter_async_context(aio.Client(server.target)),
            )
            for name, server in servers.items()
        }
        for milliseconds in (0, *options.milliseconds):
            rounds, slow_callers = np.int32(per_millisecond * milliseconds), options.slow_callers if milliseconds else 0
            measures = {
                name: measure_of_small(small, functools.partial(client.forward, "busy", rounds), slow_callers, options)
                for name, (small, client) in calls.items()
            }
            name = f"slow calls of {milliseconds} ms" if milliseconds else "no slow calls"
            metrics = METRICS if milliseconds else METRICS[:-1]
            results.append(await interleave(name, measures, options.rounds, baseline=NO_LANE, metrics=metrics))
    return results


def main() -> None:
    """Starts the servers and runs the loads."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each contender is called, each round")
    parser.add_argument("--callers", type=int, default=16, help="how many make small calls")
    parser.add_argument("--slow-callers", type=int, default=2, help="how many make slow calls")
    parser.add_argument(
        "--milliseconds", nargs="+", type=int, default=[5, 30, 100], help="how long slow calls take, about"
    )
    parser.add_argument(
        "--lanes", nargs="+", type=int, default=[20], help="values of --slow-call-milliseconds, beside none"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        servers = {
            f"lane above {least} ms" if least else NO_LANE: stack.enter_context(
                server_process(MODULE, "--slow-call-milliseconds", str(least))
            )
            for least in (0, *options.lanes)
        }
        results = asyncio.run(run(servers, options))
    print_table(results)
    write_json(options.json, "beside_slow", results)


if __name__ == "__main__":
    main()
