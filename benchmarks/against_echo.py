"""The server against a bare grpc.aio echo of the same bytes: one caller with small and large tensors, and many callers.

Many callers call it by unary RPCs and over the stream, the echo by unary RPCs alone.

Requests are encoded once and answers are not decoded, on both sides, so that the two servers are what differs. Each round
measures both, in turns; the ratio of a round counts, and of the rounds the median. Below 1 a server makes fewer calls per
second than the echo; above 1 a call takes longer than the echo's.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
from vjp_vs_echo import OP, echo_server

from gradserve import messages
from gradserve.aio_stream import AioStream
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


def cpu_seconds(pid: int) -> float:
    """Returns how much CPU time a process has used, by Linux's own count."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


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


async def run(target: str, pid: int, echo_target: str, options: argparse.Namespace) -> None:
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
        stream = AioStream(channel)

        async def by_stream(payload: bytes) -> bytes:
            answer = await stream.call("Vjp", payload, None, "")
            if answer.status:
                raise RuntimeError(f"a call failed: {answer.status!r}")
            return answer.response

        for callers in CALLERS:
            for kind, call in (("unary", calls[0]), ("stream", by_stream)):
                used: list[float] = []

                async def together(each: Call, callers: int = callers, used: list[float] = used) -> float:
                    before, started = cpu_seconds(pid), time.perf_counter()
                    rate = await calls_per_second(each, payload, callers, options.seconds)
                    if each is not calls[1]:
                        used.append((cpu_seconds(pid) - before) / (rate * (time.perf_counter() - started)))
                    return rate

                await compare(f"{callers} {kind}", "calls/s", together, [call, calls[1]], options.rounds)
                print(f"{'':12} {1e6 * statistics.median(used):.0f} us of server CPU a call")
        await stream.close()


def main() -> None:
    """Starts both servers and runs the workloads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long many callers call, each round")
    parser.add_argument("--deterministic", action="store_true", help="join no calls")
    options = parser.parse_args()
    arguments = ("--deterministic",) if options.deterministic else ()
    with server_process(str(OPS), *arguments) as server, echo_server() as echo_target:
        asyncio.run(run(server.target, server.process.pid, echo_target, options))


if __name__ == "__main__":
    main()
