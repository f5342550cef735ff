"""What it costs to host many ops: the calls per second of servers with 1, 100 and 1,000 ops, against that with the fewest.

"all called": callers go round through all ops of a server. Only calls of one op can be joined into one, so that with joining
on this measures the loss of joining too; ``join no calls`` leaves hosting alone. "first called": all callers call one op, while the
others are only hosted.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from report import parser_of, print_table, write_json
from rounds import Measure, Result, interleave
from servers import HERE, SMALL, Call, measure_of, request, server_calls

from gradserve_server.testing import ServerProcess, server_process

MODULE = str(HERE / "ops_many.py")
START_SECONDS = 900
"""Tracing and checking 1,000 ops takes minutes."""
MODES = {"join no calls": ["--deterministic"], "join calls": []}


def round_robin(call: Call, payloads: Sequence[bytes]) -> Callable[[], Awaitable[object]]:
    """Returns what makes a call of the next payload, and begins anew after the last."""
    following = itertools.cycle(payloads)
    return lambda: call(next(following))


@contextlib.contextmanager
def servers_of(counts: Sequence[int], arguments: Sequence[str]) -> Iterator[dict[int, ServerProcess]]:
    """Runs a server for each number of ops; yields them by that number, and prints how long each took to start."""
    with contextlib.ExitStack() as stack:
        servers: dict[int, ServerProcess] = {}
        for count in counts:
            started = time.perf_counter()
            env = {**os.environ, "BENCHMARK_OPS": str(count)}
            servers[count] = stack.enter_context(server_process(MODULE, *arguments, env=env, until="listening"))
            servers[count].wait_for("ready", START_SECONDS)
            print(f"{count} ops: ready {time.perf_counter() - started:.1f} s after the start", flush=True)
        yield servers


async def run(mode: str, servers: dict[int, ServerProcess], options: argparse.Namespace) -> list[Result]:
    """Measures unary calls and the stream of all servers in turns."""
    measures: dict[str, dict[str, Measure]] = {"unary": {}, "stream": {}}
    async with contextlib.AsyncExitStack() as stack:
        for count, server in servers.items():
            payloads = [request(SMALL, f"square_{number}") for number in range(count)]
            for way, call in (await stack.enter_async_context(server_calls(server.target))).items():
                for name, some in (("all", payloads), ("first", payloads[:1])):
                    measures[way][f"{count} ops, {name} called"] = measure_of(
                        round_robin(call, some), server.process.pid, options.callers, options.seconds
                    )
        baseline = f"{min(servers)} ops, all called"
        return [
            await interleave(f"{way}, {mode}", of_way, options.rounds, baseline=baseline, metrics=("calls_per_second",))
            for way, of_way in measures.items()
        ]


def main() -> None:
    """Runs the benchmark, without joining and with it."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each contender is called, each round")
    parser.add_argument("--callers", type=int, default=64, help="how many call at once")
    parser.add_argument("--ops", nargs="+", type=int, default=[1, 100, 1000], help="how many ops the servers host")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES], help="whether the servers join calls")
    options = parser.parse_args()
    results: list[Result] = []
    for mode in options.modes:
        with servers_of(options.ops, MODES[mode]) as servers:
            found = asyncio.run(run(mode, servers, options))
        print_table(found)
        results += found
    write_json(options.json, "hosted_ops", results)


if __name__ == "__main__":
    main()
