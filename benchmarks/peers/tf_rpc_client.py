"""The client of TensorFlow's RPC server. Its calls begin at once and are waited for later, so that one thread is many callers."""

import collections
import sys
import time

import child
from clock import figures
from op import FLOATS, tf


def connect() -> object:
    """Returns a client."""
    address = f"localhost:{sys.argv[1]}"
    return tf.distribute.experimental.rpc.Client.create("grpc", address=address, name="peer", timeout_in_ms=30000)


def run(x: child.Array, dy: child.Array, callers: int, seconds: float) -> "dict[str, float]":
    """Keeps as many calls under way as there are callers, and waits for the oldest."""
    args = [tf.constant(x), tf.constant(dy)]
    under_way: collections.deque = collections.deque()
    times = []

    def begin() -> None:
        under_way.append((time.perf_counter(), client.call("vjp", args=args, output_specs=[FLOATS, FLOATS])))

    started = time.perf_counter()
    for _ in range(callers):
        begin()
    while under_way:
        began, answer = under_way.popleft()
        answer.get_value()
        now = time.perf_counter()
        times.append(now - began)
        if now < started + seconds:
            begin()
    return figures(times, time.perf_counter() - started)


client = connect()
child.serve(run)
