"""The p50 of one small VJP call against a bare grpc.aio echo of the same bytes, interleaved in one run.

Absolute times mean little on a shared machine; the ratio of two medians of the same round means something. Both servers
run in processes of their own; one caller calls one, then the other, in turns.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np

from gradserve import Client, messages
from gradserve_server.testing import server_process

HERE = Path(__file__).parent
OP = "square_with_clipped_grad"


@contextlib.contextmanager
def echo_server() -> Iterator[str]:
    """Runs the echo server in a process of its own; yields its address."""
    process = subprocess.Popen([sys.executable, str(HERE / "echo_server.py")], text=True, stdout=subprocess.PIPE)
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.communicate()


def seconds_per_call(call: Callable[[], object], count: int) -> float:
    """Returns the median time of a call."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(vjp: Callable[[], object], echo: Callable[[], object], rounds: int, calls: int) -> list[float]:
    """Prints a line a round and returns the ratios of the rounds."""
    ratios = []
    for number in range(-1, rounds):  # the first round warms up and is left out
        order = (vjp, echo) if number % 2 else (echo, vjp)
        medians = {call: seconds_per_call(call, calls) for call in order}
        if number < 0:
            continue
        ratios.append(medians[vjp] / medians[echo])
        print(
            f"round {number + 1}: VJP {medians[vjp] * 1e6:.0f} us, echo {medians[echo] * 1e6:.0f} us, {ratios[-1]:.2f}"
        )
    return ratios


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind a round")
    options = parser.parse_args()
    x = {"x": np.array([[0.1, 0.2, 0.3]], dtype=np.float32)}
    dy = {"output": np.ones((1, 3), dtype=np.float32)}
    call = messages.OpCall(op=OP, inputs=x, output_gradients=dy)
    payload = messages.vjp_request(call, None).SerializeToString()
    with (
        server_process(str(HERE.parent / "examples" / "ops.py")) as server,
        echo_server() as echo_target,
        Client(server.target) as client,
        grpc.insecure_channel(echo_target) as channel,
    ):
        echo = channel.unary_unary("/benchmark.Echo/Echo")
        ratios = measure(lambda: client.vjp(OP, x, dy), lambda: echo(payload), options.rounds, options.calls)
    print(
        f"one VJP call of {len(payload)} bytes: {statistics.median(ratios):.2f} times the echo "
        f"(median of {len(ratios)} rounds of {options.calls} calls, {min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
