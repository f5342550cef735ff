"""Public cases A50, B14 and B15: what must not grow with calls, and calls that end before their answer."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from tensorflow.python.framework import ops as tensorflow_ops

from gradserve import Client, messages
from gradserve.errors import DeadlineExceeded
from gradserve_server.testing import RunningServer, ServerProcess, server_process


def test_A50_calls_of_many_shapes_leave_traces_and_registered_gradients_as_they_were(
    example_server: RunningServer,
) -> None:
    def call(size: int) -> None:
        x = np.ones((size, size % 3 + 1), np.float32)
        assert client.vjp("square_with_grad", x, 0.5 * x).gradient.tolist() == x.tolist()
        client.vjp("square_with_grad", float(size))

    with example_server.client() as client:
        call(1)
        before = client.op("square_with_grad").traces, len(tensorflow_ops.gradient_registry.list())
        for size in range(2, 60):
            call(size)
        assert (client.op("square_with_grad").traces, len(tensorflow_ops.gradient_registry.list())) == before


@pytest.fixture(scope="module")
def slow_server() -> Iterator[ServerProcess]:
    with server_process("tests.support.ops_slow") as server:
        yield server


@pytest.fixture
def slow(slow_server: ServerProcess) -> Iterator[Client]:
    with Client(slow_server.target) as client:
        client.op("sleep")
        yield client


def sleep_inputs(seconds: float) -> dict[str, np.ndarray]:
    return {"seconds": np.float64(seconds)[...], "useful_until": np.float64(0)[...]}


def begun(client: Client) -> int:
    return int(client.forward("counted", np.float32(0)).output[0])


def test_B14_deadline_that_passes_during_compute_ends_the_call_and_drops_what_waited_behind_it(slow: Client) -> None:
    before = begun(slow)
    with ThreadPoolExecutor(2) as pool:
        computing = pool.submit(slow.forward, "sleep", sleep_inputs(1.0), timeout=0.3)
        time.sleep(0.1)
        waiting = pool.submit(slow.forward, "sleep", sleep_inputs(0.0), timeout=0.3)
        for call in (computing, waiting):
            with pytest.raises(DeadlineExceeded):
                call.result()
    assert begun(slow) == before + 1


def test_B15_cancelled_call_ends_at_once_and_frees_its_place(slow: Client, slow_server: ServerProcess) -> None:
    before = begun(slow)
    request = messages.forward_request(messages.OpCall(op="sleep", inputs=sleep_inputs(0.6)), None)
    with grpc.insecure_channel(slow_server.target) as channel:
        send = channel.unary_unary(f"/{messages.SERVICE}/Forward")
        calls = [send.future(request.SerializeToString()) for _ in range(3)]
        time.sleep(0.2)
        for call in calls:
            assert call.cancel()
            assert call.code() is grpc.StatusCode.CANCELLED
        assert begun(slow) == before + 1  # the first ran to its end, the others never
