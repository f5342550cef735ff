"""Rows per second against the rows of a request and the most calls that the server joins, against a server that joins none."""

import argparse
import asyncio
import contextlib
import functools

from clock import Figures
from report import parser_of, print_table, write_json
from rounds import Measure, Result, interleave
from servers import OPS, SMALL, Call, measure_of, request, server_calls

from gradserve_server.testing import ServerProcess, server_process


def measure_rows(call: Call, rows: int, pid: int, options: argparse.Namespace) -> Measure:
    """Returns what measures callers whose requests have so many rows."""
    payload = request((rows, *SMALL[1:]))
    measure_calls = measure_of(functools.partial(call, payload), pid, options.callers, options.seconds)

    async def measure() -> Figures:
        figures = await measure_calls()
        return {**figures, "rows_per_second": rows * figures["calls_per_second"]}

    return measure


async def run(servers: dict[int, ServerProcess], options: argparse.Namespace) -> list[Result]:
    """Measures all servers in turns, for each number of rows and each transport."""
    results = []
    async with contextlib.AsyncExitStack() as stack:
        calls = {most: await stack.enter_async_context(server_calls(each.target)) for most, each in servers.items()}
        for way in ("unary", "stream"):
            for rows in options.rows:
                measures = {
                    f"joins {most}": measure_rows(calls[most][way], rows, server.process.pid, options)
                    for most, server in servers.items()
                }
                name = f"{way}, {rows} rows a request"
                baseline = f"joins {min(servers)}"
                results.append(
                    await interleave(name, measures, options.rounds, baseline=baseline, metrics=("rows_per_second",))
                )
    return results


def main() -> None:
    """Starts a server for each setting and runs the workloads."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each contender is called, each round")
    parser.add_argument("--callers", type=int, default=64, help="how many call at once")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 256], help="rows of a request")
    parser.add_argument("--joined", nargs="+", type=int, default=[1, 8, 32], help="most calls that run as one")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        servers = {
            most: stack.enter_context(server_process(str(OPS), "--max-batch-calls", str(most)))
            for most in options.joined
        }
        results = asyncio.run(run(servers, options))
    print_table(results)
    write_json(options.json, "batch_size", results)


if __name__ == "__main__":
    main()
