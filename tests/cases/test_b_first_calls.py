"""Public case B17: many first calls at once are all right, and no call makes a trace."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gradserve import Client, VjpResult
from gradserve_server.testing import RunningServer, running_server

AT_ONCE = 8


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A new server for each test, so that the calls are the first that it gets."""
    with running_server(str(Path(__file__).with_name("ops_b_first_calls.py"))) as server:
        yield server


def runs(server: RunningServer, name: str) -> int:
    with server.client() as client:
        return int(client.forward("runs", {"name": name}).output)


def call_at_once(server: RunningServer, op: str) -> list[VjpResult]:
    """Calls an op from several threads that start together, each with a client, a size and values of its own."""
    barrier = threading.Barrier(AT_ONCE)

    def call(number: int) -> VjpResult:
        with Client(server.target) as client:
            barrier.wait()
            return client.vjp(op, {"x": np.full(number + 1, number, np.float32)})

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(call, range(AT_ONCE)))


def assert_tripled(results: list[VjpResult]) -> None:
    assert [result.output.tolist() for result in results] == [[3.0 * k] * (k + 1) for k in range(AT_ONCE)]
    assert [result.gradient.tolist() for result in results] == [[3.0] * (k + 1) for k in range(AT_ONCE)]


def test_B17_eight_first_calls_at_once_share_one_forward_trace(server: RunningServer) -> None:
    assert_tripled(call_at_once(server, "tripled"))
    gradient_runs = runs(server, "tripled gradient")
    assert gradient_runs == 1  # the trace of both passes, which runs the forward code as well
    assert runs(server, "tripled") - gradient_runs == 1


def test_B17_op_that_makes_its_variable_on_its_first_call_makes_one(server: RunningServer) -> None:
    traced_before = runs(server, "scaled")
    assert_tripled(call_at_once(server, "scaled"))
    assert runs(server, "scaled") == traced_before
    assert runs(server, "variables") == 1
