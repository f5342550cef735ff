"""The blocking client's connection: closed and used again, pickled, forked, shared between threads."""

import concurrent.futures
import contextlib
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradserve import Client, errors
from gradserve_server.testing import RunningServer

OPS = Path(__file__).with_name("ops_slow.py")


def test_close_then_call_connects_anew(client: Client) -> None:
    for _ in range(3):
        assert client.vjp("square_with_grad", 3.0).gradient == 6.0
        client.close()
    client.close()


def test_close_before_any_call_does_nothing(example_server: RunningServer) -> None:
    client = example_server.client()
    client.close()
    assert client._channel is None
    assert client.health() == "SERVING"
    client.close()


def test_context_closes_the_connection(example_server: RunningServer) -> None:
    with example_server.client() as client:
        client.health()
        assert client._channel is not None
    assert client._channel is None


def test_close_fails_calls_under_way_with_cancelled(serve: Callable[..., RunningServer]) -> None:
    client = serve(OPS).client()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.forward, "sleep", {"seconds": np.float32(0.6)}, request_id="cut")
        time.sleep(0.2)
        client.close()
        with pytest.raises(errors.Cancelled) as caught:
            call.result(timeout=10)
    assert caught.value.request_id == "cut"


def call_until(done: threading.Event, client: Client) -> None:
    while not done.is_set():
        with contextlib.suppress(errors.Cancelled):
            client.health()


def test_close_in_one_thread_never_breaks_another_but_by_cancelled(example_server: RunningServer) -> None:
    client, done = example_server.client(), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call_until, done, client) for _ in range(4)]
        for _ in range(100):
            client.close()
            time.sleep(0.002)
        done.set()
        assert [call.exception(timeout=10) for call in calls] == [None] * 4
    client.close()


def test_threads_sharing_a_client_each_get_their_own_answer(client: Client) -> None:
    def gradient(value: float) -> float:
        return float(client.vjp("square_with_grad", value).gradient)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(gradient, range(200))) == [2.0 * value for value in range(200)]


@pytest.mark.parametrize("connected", [False, True])
def test_pickled_client_connects_anew_with_the_same_settings(example_server: RunningServer, connected: bool) -> None:
    with example_server.client(timeout=12.5) as client:
        if connected:
            client.vjp("square_with_grad", 3.0)
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy._timeout == 12.5
            assert copy.vjp("square_with_grad", 3.0).gradient == 6.0
        assert client.vjp("square_with_grad", 3.0).gradient == 6.0


FORK = """
import os, sys
from gradserve import Client

client = Client(sys.argv[1])
assert client.vjp("square_with_grad", 3.0).gradient == 6.0
child = os.fork()
assert client.vjp("square_with_grad", 4.0).gradient == 8.0
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_client_used_after_a_fork_connects_anew_in_the_child(example_server: RunningServer) -> None:
    command = [sys.executable, "-c", FORK, example_server.target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
