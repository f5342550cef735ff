"""How long health checks take while a server is busy with large calls one after the other, against the echo under the same load.

Checks begin at fixed times, whether the last one was answered or not, and count from when they should have begun. The large
calls come from a process of their own.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator

import grpc
from clock import Figures, figures
from report import parser_of, print_table, write_json
from rounds import Measure, Result, interleave
from servers import CHANNEL_OPTIONS, ECHO_PATH, OPS, VJP_PATH, echo_server, request

from gradserve.messages import HEALTH_SERVICE
from gradserve_server.testing import server_process

CHECK_PATH = f"/{HEALTH_SERVICE}/Check"
PROCESSES = multiprocessing.get_context("spawn")
SECONDS_BETWEEN_CHECKS = 0.01


class Shared:
    """What the process that makes large calls shares with this one."""

    def __init__(self) -> None:
        """Wants no calls yet."""
        self.go = PROCESSES.Event()
        """Set while calls are wanted."""
        self.call = PROCESSES.Lock()
        """Held by each call."""
        self.made = PROCESSES.Value("i", 0)
        """How many calls were answered."""


class Load:
    """Large calls from a process of its own, while they are wanted."""

    def __init__(self, target: str, path: str, mib: int) -> None:
        """Starts the process.

        Args:
            target: Address of the server.
            path: Path of its method.
            mib: Size of x and of dy, in MiB.
        """
        self._shared = Shared()
        arguments = (target, path, mib, self._shared)
        self._process = PROCESSES.Process(target=call_again_and_again, args=arguments, daemon=True)
        self._process.start()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """Makes calls for as long as the context lasts, from the first that is answered until the last is."""
        before = self.made
        self._shared.go.set()
        while self.made == before:
            if not self._process.is_alive():
                raise RuntimeError("the process that makes large calls has ended")
            time.sleep(0.01)
        yield
        self._shared.go.clear()
        with self._shared.call:
            pass

    @property
    def made(self) -> int:
        """How many calls were answered."""
        return int(self._shared.made.value)

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def call_again_and_again(target: str, path: str, mib: int, shared: Shared) -> None:
    """Makes large calls one after the other, while they are wanted."""
    payload = request((mib, 2**18))
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        while shared.go.wait():
            with shared.call:
                send(payload)
                shared.made.value += 1


def measure_of(target: str, load: Load | None, seconds: float) -> Measure:
    """Returns what measures health checks.

    Args:
        target: Address of the server.
        load: What the server does meanwhile.
        seconds: For how long checks begin.
    """

    async def measure() -> Figures:
        if load is None:
            return {**await checks(target, seconds), "large_calls_per_second": 0.0}
        with load.under_way():
            before, started = load.made, time.perf_counter()
            found = await checks(target, seconds)
            return {**found, "large_calls_per_second": (load.made - before) / (time.perf_counter() - started)}

    return measure


async def checks(target: str, seconds: float) -> Figures:
    """Checks health at fixed times; returns the figures of the checks."""
    times = []
    async with grpc.aio.insecure_channel(target) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK_PATH)

        async def one(begin: float) -> None:
            await check(b"")
            times.append(time.perf_counter() - begin)

        await check(b"")  # connects
        started = time.perf_counter()
        tasks = []
        for number in range(max(1, int(seconds / SECONDS_BETWEEN_CHECKS))):
            begin = started + number * SECONDS_BETWEEN_CHECKS
            await asyncio.sleep(max(0.0, begin - time.perf_counter()))
            tasks.append(asyncio.ensure_future(one(begin)))
        await asyncio.gather(*tasks)
    return figures(times, time.perf_counter() - started)


async def run(target: str, echo_target: str, options: argparse.Namespace) -> list[Result]:
    """Measures checks of both servers in turns, first without large calls, then beside them."""
    alone = {
        "server": measure_of(target, None, options.seconds),
        "echo": measure_of(echo_target, None, options.seconds),
    }
    results = [await interleave("checks alone", alone, options.rounds, baseline="echo", metrics=("p50_us", "p99_us"))]
    load, echo_load = Load(target, VJP_PATH, options.mib), Load(echo_target, ECHO_PATH, options.mib)
    try:
        beside = {
            "server": measure_of(target, load, options.seconds),
            "echo": measure_of(echo_target, echo_load, options.seconds),
        }
        name = f"checks beside calls of {2 * options.mib} MiB"
        metrics = ("p50_us", "p99_us", "large_calls_per_second")
        results.append(await interleave(name, beside, options.rounds, baseline="echo", metrics=metrics))
    finally:
        load.end()
        echo_load.end()
    return results


def main() -> None:
    """Starts both servers and the loads."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each contender is checked, each round")
    parser.add_argument(
        "--mib", type=int, default=31, help="size of x and of dy of a large call, in MiB; 31 is the most"
    )
    options = parser.parse_args()
    with server_process(str(OPS)) as server, echo_server() as (echo_target, _):
        results = asyncio.run(run(server.target, echo_target, options))
    print_table(results)
    write_json(options.json, "health_beside_large", results)


if __name__ == "__main__":
    main()
