"""The server, and TensorFlow's own RPC server, against a bare grpc.aio echo: one caller with small and large tensors, many callers.

Requests to the server and to the echo are encoded once, answers are not decoded, and both are called from this process, so
that the two servers are what differs. Peers are called by clients of their own, in processes of their own, which encode and
decode. Below 1 a server makes fewer calls per second than the echo; above 1 a call takes longer than the echo's.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
from pathlib import Path

from peer_processes import Peer, peers
from report import parser_of, print_table, write_json
from rounds import Measure, Result, interleave
from servers import OPS, SMALL, echo_call, echo_server, measure_of, request, server_calls

from gradserve.streamed_calls import MOST_BYTES
from gradserve_server.testing import server_process

SERIAL = {"12 B": (1, 3), "4 KB": (1, 1000), "1 MiB": (1024, 256), "16 MiB": (1024, 4096)}
"""Shape of x and of dy, by the size of each."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What callers do in one round."""

    name: str
    shape: tuple[int, ...]
    callers: int
    metric: str


def workloads_of(options: argparse.Namespace) -> list[Workload]:
    """Returns the workloads that were asked for."""
    serial = [Workload(name=name, shape=SERIAL[name], callers=1, metric="p50_us") for name in options.serial]
    together = [
        Workload(name=f"{callers} caller{'s' * (callers > 1)}", shape=SMALL, callers=callers, metric="calls_per_second")
        for callers in options.callers
    ]
    return serial + together


async def run(
    server: tuple[str, int], echo: tuple[str, int], others: dict[str, Peer], options: argparse.Namespace
) -> list[Result]:
    """Runs all workloads.

    Args:
        server: Address of the server and id of its process.
        echo: The same of the echo.
        others: The peers, by name.
        options: The command line.
    """
    results = []
    async with server_calls(server[0]) as calls, echo_call(echo[0]) as call_echo:
        for workload in workloads_of(options):
            payload = request(workload.shape)
            ways = {way: (call, server[1]) for way, call in calls.items()} | {"echo": (call_echo, echo[1])}
            if len(payload) > MOST_BYTES:
                del ways["stream"]  # the client sends so large a request as an RPC of its own
            measures: dict[str, Measure] = {
                name: measure_of(functools.partial(call, payload), pid, workload.callers, options.seconds)
                for name, (call, pid) in ways.items()
            }
            for name, peer in others.items():
                measures[name] = peer.measure_of(workload.shape, workload.callers, options.seconds)
            metrics = (workload.metric,)
            results.append(await interleave(workload.name, measures, options.rounds, baseline="echo", metrics=metrics))
    return results


def main() -> None:
    """Starts all servers and runs the workloads."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each contender is called, each round")
    parser.add_argument("--serial", nargs="*", choices=list(SERIAL), default=list(SERIAL), help="sizes for one caller")
    parser.add_argument("--callers", nargs="*", type=int, default=[1, 16, 64], help="how many call at once")
    parser.add_argument("--deterministic", action="store_true", help="join no calls")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="add the peers that peers/setup installed there")
    options = parser.parse_args()
    arguments = ["--deterministic"] if options.deterministic else []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_process(str(OPS), *arguments))
        echo = stack.enter_context(echo_server())
        others = stack.enter_context(peers(options.peers))
        results = asyncio.run(run((server.target, server.process.pid), echo, others, options))
    print_table(results)
    write_json(options.json, "against_echo", results)


if __name__ == "__main__":
    main()
