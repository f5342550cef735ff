"""Random shapes: a server answers calls that differ in nothing but shapes, and its memory and traces stay what they were.

``python -m tests.support.random_shapes 100000`` makes so many calls and fails if memory or traces grew.
"""

import argparse
import asyncio
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tests.support.calls_of_shapes import Call, draw_call

from gradserve import Client, aio
from gradserve_server.testing import ServerProcess, server_process

OPS = "tests.support.ops_of_shapes"
COUNTER = "functions"
"""The op that counts what TensorFlow has traced."""
CALLERS = 64
"""Half of them make unary calls, half of them share a stream."""
FIRST_SHARE = 0.1
"""After this part of 100,000 calls caches are full, and memory must grow no more."""
MOST_GROWTH_BYTES = 20 * 10**6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a server holds while it is idle."""

    resident_bytes: int
    """Memory of its process."""
    traces: int
    """Functions that TensorFlow has traced."""

    def __str__(self) -> str:
        return f"{self.resident_bytes / 1e6:.1f} MB, {self.traces} functions"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a server held before any call, after the first of them, and after all."""

    calls: int
    """How many calls were made."""
    shapes: int
    """How many of them differed in op, kind or shapes."""
    usages: Sequence[Usage]
    """Before any call, after the first part of them, and then at equal distances."""

    @property
    def growth_bytes(self) -> int:
        """By how much memory grew after the first part of the calls."""
        return self.usages[-1].resident_bytes - self.usages[1].resident_bytes

    @property
    def new_traces(self) -> int:
        """How many functions were traced for any of the calls."""
        return self.usages[-1].traces - self.usages[0].traces

    def shortfalls(self, most_growth_bytes: int = MOST_GROWTH_BYTES) -> list[str]:
        """Returns what grew that should not have; empty if nothing did."""
        found = []
        if self.growth_bytes > most_growth_bytes:
            found.append(f"memory grew by {self.growth_bytes} bytes, wanted at most {most_growth_bytes}")
        if self.new_traces:
            found.append(f"{self.new_traces} functions were traced for calls, wanted none")
        return found

    def __str__(self) -> str:
        first = round(self.calls * FIRST_SHARE)
        steps = np.linspace(first, self.calls, len(self.usages) - 1, dtype=int).tolist()
        usages = [f"{calls:8} calls: {usage}" for calls, usage in zip([0, *steps], self.usages, strict=True)]
        return "\n".join([f"{self.calls} calls, {self.shapes} of them different", *usages])


def survey(server: ServerProcess, count: int, seed: int = 0, looks: int = 1) -> Survey:
    """Makes so many random calls of all ops of a server.

    Args:
        server: The server, which has the op that counts.
        count: How many calls.
        seed: Seed of the calls.
        looks: How often to look at what the server holds, after the first part of the calls.

    Raises:
        AssertionError: An answer has a wrong shape.
        GradserveError: A call failed.
    """
    rng, seen, first = np.random.default_rng(seed), set[str](), round(count * FIRST_SHARE)
    ops = asyncio.run(_ops(server.target))

    def calls(number: int) -> Iterator[Call]:
        for _ in range(number):
            call = draw_call(ops, rng)
            seen.add(str(call))
            yield call

    usages = [_usage(server)]
    ends = [0, *np.linspace(first, count, looks + 1, dtype=int).tolist()]
    for begin, end in itertools.pairwise(ends):
        asyncio.run(_send_all(server.target, calls(end - begin)))
        usages.append(_usage(server))
    return Survey(calls=count, shapes=len(seen), usages=usages)


async def _ops(target: str) -> list[str]:
    async with aio.Client(target) as client:
        return [info.name for info in await client.ops() if info.name != COUNTER]


def _usage(server: ServerProcess) -> Usage:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    with Client(server.target) as client:
        traces = int(client.forward(COUNTER, np.float32(0)).output)
    return Usage(resident_bytes=1024 * int(line.split()[1]), traces=traces)


async def _send_all(target: str, calls: Iterator[Call]) -> None:
    """Makes calls over both transports, so many at once."""

    async def keep_calling(client: aio.Client) -> None:
        for call in calls:
            await call.send(client)

    async with aio.Client(target) as unary, aio.Client(target, transport="stream") as stream:
        await asyncio.gather(*(keep_calling(client) for client in [unary, stream] * (CALLERS // 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes calls of random shapes, and looks at what the server keeps.")
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with server_process(OPS) as server:
        found = survey(server, arguments.count, arguments.seed, looks=9)
    print(found)
    faults = found.shortfalls()
    if faults:
        sys.exit("\n".join(faults))
    print(f"memory grew by {found.growth_bytes / 1e6:.1f} MB after the first {FIRST_SHARE:.0%} of the calls")


if __name__ == "__main__":
    main()
