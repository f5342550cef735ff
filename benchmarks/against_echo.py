"""The server against a bare grpc.aio echo of the same bytes: one caller with small and large tensors, and many callers.

Requests are encoded once and answers are not decoded, on both sides, so that the two servers are what differs. Each round
measures both, in turns; the ratio of a round counts, and of the rounds the median. Below 1 a server makes fewer calls per
second than the echo; above 1 a call takes longer than the echo's.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
from vjp_vs_echo import OP, echo_server

from gradserve import messages
from gradserve_server.testing import server_process

OPS = Path(__file__).parent.parent / "examples" / "ops.py"
SERIAL = {"12 B": ((1, 3), 400), "4 KB": ((1, 1000), 400), "1 MiB": ((1024, 256), 30), "16 MiB": ((1024, 4096), 6)}
"""Shape of x and of dy, and how many calls a round makes."""
CALLERS = (1, 16, 64)
SHAPE_OF_CALLERS = (1, 16)
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

Call = Callable[[bytes], Awaitable[bytes]]


def request(shape: tuple[int, ...]) -> bytes:
    """Returns an encoded ``VjpRequest`` for random numbers."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    call = messages.OpCall(op=OP, inputs={"x": x}, output_gradients={"output": np.ones_like(x)})
    return messages.vjp_request(call, None).SerializeToString()


async def seconds_per_call(call: Call, payload: bytes, count: int) -> float:
    """Returns the median time of a call, one after the other."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await call(payload)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def calls_per_second(call: Call, payload: bytes, callers: int, seconds: float) -> float:
    """Returns how many calls so many callers make, each sending its next one when it has its answer."""
    done, started = 0, time.perf_counter()

    async def call_again_and_again() -> None:
        nonlocal done
        while time.perf_counter() < started + seconds:
            await call(payload)
            done += 1

    await asyncio.gather(*(call_again_and_again() for _ in range(callers)))
    return done / (time.perf_counter() - started)


async def compare(
    name: str, unit: str, measure: Callable[[Call], Awaitable[float]], calls: list[Call], rounds: int
) -> None:
    """Prints the ratio of what is measured of the server to what is measured of the echo."""
    pairs = []
    for number in range(-1, rounds):  # the first round warms up and is left out
        order = calls if number % 2 else calls[::-1]
        found = {call: await measure(call) for call in order}
        pairs.append([found[call] for call in calls])
    ratios = [server / echo for server, echo in pairs[1:]]
    server, echo = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(
        f"{name:12} server {server:10.1f} {unit}, echo {echo:10.1f} {unit}, ratio {statistics.median(ratios):5.2f} ({spread})"
    )


async def run(target: str, echo_target: str, options: argparse.Namespace) -> None:
    """Runs all workloads."""
    async with (
        grpc.aio.insecure_channel(target, options=OPTIONS) as channel,
        grpc.aio.insecure_channel(echo_target, options=OPTIONS) as echo_channel,
    ):
        calls = [
            channel.unary_unary(f"/{messages.SERVICE}/Vjp"),
            echo_channel.unary_unary("/benchmark.Echo/Echo"),
        ]
        for name, (shape, count) in SERIAL.items():
            payload = request(shape)

            async def serial(call: Call, payload: bytes = payload, count: int = count) -> float:
                return 1e6 * await seconds_per_call(call, payload, count)

            await compare(name, "us", serial, calls, options.rounds)
        payload = request(SHAPE_OF_CALLERS)
        for callers in CALLERS:

            async def together(call: Call, callers: int = callers) -> float:
                return await calls_per_second(call, payload, callers, options.seconds)

            await compare(f"{callers} callers", "calls/s", together, calls, options.rounds)


def main() -> None:
    """Starts both servers and runs the workloads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long many callers call, each round")
    parser.add_argument("--deterministic", action="store_true", help="join no calls")
    options = parser.parse_args()
    arguments = ("--deterministic",) if options.deterministic else ()
    with server_process(str(OPS), *arguments) as server, echo_server() as echo_target:
        asyncio.run(run(server.target, echo_target, options))


if __name__ == "__main__":
    main()
