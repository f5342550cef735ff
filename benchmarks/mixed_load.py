"""How long small calls take beside large ones: 9 of 10 calls are small, 1 has 1 MiB of x and of dy, from callers that draw lots.

The times are those of the small calls alone, compared twice: with the echo under the same mixed load; and with calls of one
medium size, all of them, whose bytes are the mean of the mixed ones, so that a call carries the same bytes on both sides.
"""

import argparse
import asyncio
import contextlib
import random
import time

from clock import Figures, figures
from report import parser_of, print_table, write_json
from rounds import Measure, Result, interleave
from servers import OPS, SMALL, Call, echo_call, echo_server, request, server_calls

from gradserve.streamed_calls import MOST_BYTES
from gradserve_server.testing import server_process

LARGE = (1024, 256)
SHARE_OF_LARGE = 0.1
METRICS = ("p50_us", "p99_us", "mib_per_second")


def medium_shape() -> tuple[int, int]:
    """Returns the shape of x and dy for requests of the mean size."""
    mean_bytes = (1 - SHARE_OF_LARGE) * len(request(SMALL)) + SHARE_OF_LARGE * len(request(LARGE))
    return (1, round(mean_bytes / 8))  # x and dy have 4 bytes for each element


def measure_of_small(small: Call, large: Call, payloads: tuple[bytes, bytes], options: argparse.Namespace) -> Measure:
    """Returns what measures the small ones of mixed calls.

    Args:
        small: Makes a small call.
        large: Makes a large call.
        payloads: What each sends; twice the same where calls are not mixed.
        options: The command line.
    """

    async def measure() -> Figures:
        lots = random.Random(0)  # noqa: S311  # so that each round draws the same
        times: list[float] = []
        sent_bytes = 0
        started = time.perf_counter()

        async def call_again_and_again() -> None:
            nonlocal sent_bytes
            while not times or time.perf_counter() < started + options.seconds:
                is_large = lots.random() < SHARE_OF_LARGE
                before = time.perf_counter()
                await (large if is_large else small)(payloads[is_large])
                sent_bytes += len(payloads[is_large])
                if not is_large:
                    times.append(time.perf_counter() - before)

        await asyncio.gather(*(call_again_and_again() for _ in range(options.callers)))
        seconds = time.perf_counter() - started
        return {**figures(times, seconds), "mib_per_second": sent_bytes / 2**20 / seconds}

    return measure


async def run(target: str, echo_target: str, options: argparse.Namespace) -> list[Result]:
    """Measures all loads in turns."""
    mixed, medium = (request(SMALL), request(LARGE)), request(medium_shape())
    async with contextlib.AsyncExitStack() as stack:
        calls = await stack.enter_async_context(server_calls(target))
        echo = await stack.enter_async_context(echo_call(echo_target))
        measures = {"echo, mixed": measure_of_small(echo, echo, mixed, options)}
        for way, call in calls.items():
            # The client sends a request that is too large for the stream as an RPC of its own.
            large = calls["unary"] if len(mixed[1]) > MOST_BYTES else call
            measures[f"{way}, mixed"] = measure_of_small(call, large, mixed, options)
            measures[f"{way}, all medium"] = measure_of_small(call, call, (medium, medium), options)
        whole = await interleave("all", measures, options.rounds, baseline="echo, mixed", metrics=METRICS)
    against = [
        ("small calls among large, against the echo's", "echo, mixed", [f"{way}, mixed" for way in calls]),
        *(
            (
                f"small calls among large, {way}, against calls of {len(medium) // 1024} KiB",
                f"{way}, all medium",
                [f"{way}, mixed"],
            )
            for way in calls
        ),
    ]
    return [whole.part(title, baseline, contenders) for title, baseline, contenders in against]


def main() -> None:
    """Starts both servers and runs the loads."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each contender is called, each round")
    parser.add_argument("--callers", type=int, default=32, help="how many call at once")
    options = parser.parse_args()
    with server_process(str(OPS)) as server, echo_server() as (echo_target, _):
        results = asyncio.run(run(server.target, echo_target, options))
    print_table(results)
    write_json(options.json, "mixed_load", results)


if __name__ == "__main__":
    main()
