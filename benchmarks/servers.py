"""The servers of the benchmarks, each in a process of its own, and the ways to call them with bytes that are encoded once."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
from clock import Figures, figures_of_tasks
from rounds import Measure

from gradserve import messages
from gradserve.aio_stream import AioStream

HERE = Path(__file__).parent
OPS = HERE.parent / "examples" / "ops.py"
OP = "square_with_clipped_grad"
ECHO_PATH = "/benchmark.Echo/Echo"
VJP_PATH = f"/{messages.SERVICE}/Vjp"
SMALL = (1, 16)
"""Shape of x and of dy where many callers call at once."""
CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

Call = Callable[[bytes], Awaitable[object]]
"""Sends an encoded request and waits for the answer, which is not decoded."""


@functools.lru_cache(maxsize=8)
def request(shape: tuple[int, ...], op: str = OP) -> bytes:
    """Returns an encoded ``VjpRequest``: random numbers for x, and ones for dy.

    Args:
        shape: Shape of both.
        op: Name of the op, whose input is called x.
    """
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    call = messages.OpCall(op=op, inputs={"x": x}, output_gradients={"output": np.ones_like(x)})
    return messages.vjp_request(call, None).SerializeToString()


@contextlib.contextmanager
def echo_server() -> Iterator[tuple[str, int]]:
    """Runs a bare echo; yields its address and the id of its process."""
    command = [sys.executable, str(HERE / "echo_server.py")]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def echo_call(target: str) -> AsyncIterator[Call]:
    """Yields the way to call the echo."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ECHO_PATH)
        yield call


@contextlib.asynccontextmanager
async def server_calls(target: str) -> AsyncIterator[dict[str, Call]]:
    """Yields the ways to call a server, "unary" and "stream", over one channel."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        stream = AioStream(channel)

        async def call_by_stream(payload: bytes) -> bytes:
            answer = await stream.call("Vjp", payload, None, "")
            if answer.status:
                raise RuntimeError(f"a call failed: {answer.status!r}")
            return answer.response

        unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(VJP_PATH)
        yield {"unary": unary, "stream": call_by_stream}
        await stream.close()


def measure_of(call: Callable[[], Awaitable[object]], pid: int, callers: int, seconds: float) -> Measure:
    """Returns what measures some tasks that call a server again and again, with the CPU time of its process.

    Args:
        call: Makes one call.
        pid: Id of the server's process.
        callers: How many tasks.
        seconds: For how long they call.
    """

    async def measure() -> Figures:
        before = cpu_seconds(pid)
        figures = await figures_of_tasks(call, callers, seconds)
        return {**figures, "cpu_us": 1e6 * (cpu_seconds(pid) - before) / figures["calls"]}

    return measure


def cpu_seconds(pid: int) -> float:
    """Returns how much CPU time a process and those that it started have used, by Linux's own count."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
            used[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = [pid]
    for parent in family:
        family += children.get(parent, [])
    return sum(used[each] for each in family)
