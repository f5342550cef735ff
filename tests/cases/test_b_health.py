"""Public case B19: health while ops are loading, after a failed start, and while a server stops."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradserve import Client
from gradserve.errors import NotFound, Unavailable
from gradserve.messages import SERVICE
from gradserve_server.testing import ServerProcess, server_process

OPS = Path(__file__).with_name("ops_b_gated.py")
X = {"x": np.float32(3)}


@contextlib.contextmanager
def starting_server(gates: Path) -> Iterator[ServerProcess]:
    """Runs a server that listens and whose module waits at the gate ``import``."""
    environment = {**os.environ, "GATES": str(gates)}
    with server_process(str(OPS), env=environment, until="listening") as server:
        wait_until((gates / "import.waiting").exists)
        try:
            yield server
        finally:
            server.process.kill()  # it may be at a gate for good


@contextlib.contextmanager
def ready_server(gates: Path) -> Iterator[ServerProcess]:
    """Runs a server that is ready."""
    (gates / "import").touch()
    with starting_server(gates) as server:
        server.wait_for("ready")
        yield server


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not come true"
        time.sleep(0.01)


def healths(client: Client) -> set[str]:
    """Returns the health of the server as a whole and of its service."""
    return {client.health(), client.health(SERVICE)}


def test_B19_health_turns_to_serving_once_the_ops_are_loaded(tmp_path: Path) -> None:
    with starting_server(tmp_path) as server, Client(server.target) as client:
        assert healths(client) == {"NOT_SERVING"}
        (tmp_path / "import").touch()
        server.wait_for("ready")
        assert healths(client) == {"SERVING"}


def test_B19_calls_while_ops_are_loading_are_unavailable(tmp_path: Path) -> None:
    with starting_server(tmp_path) as server, Client(server.target) as client:
        attempts = [
            client.ops,
            lambda: client.op("doubled_after_gate"),
            lambda: client.forward("doubled_after_gate", X),
            lambda: client.vjp("doubled_after_gate", X),
        ]
        for attempt in attempts:
            with pytest.raises(Unavailable, match="warming up") as caught:
                attempt()
            assert caught.value.reason == "WARMING_UP"


def test_B19_unknown_service_is_not_found(tmp_path: Path) -> None:
    with starting_server(tmp_path) as server, Client(server.target) as client:
        with pytest.raises(NotFound):
            client.health("no.such.Service")
        (tmp_path / "import").touch()
        server.wait_for("ready")
        with pytest.raises(NotFound):
            client.health("no.such.Service")


def test_B19_failed_start_never_turns_to_serving(tmp_path: Path) -> None:
    with starting_server(tmp_path) as server:
        seen = watch_until_end(server, lambda: (tmp_path / "import").write_text("fail"))
        assert server.process.wait(60) == 2
        assert set(seen) == {health_pb2.HealthCheckResponse.NOT_SERVING}
        assert "RuntimeError: the model file is damaged" in server.log()
        assert '"ready"' not in server.log()


def watch_until_end(server: ServerProcess, after_first: Callable[[], object]) -> list[int]:
    """Returns every health that a watcher is sent; calls ``after_first`` once it was sent one."""
    seen = []
    with grpc.insecure_channel(server.target) as channel:
        stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        with contextlib.suppress(grpc.RpcError):  # a watch ends with the connection only
            for response in stream:
                seen.append(response.status)
                if len(seen) == 1:
                    after_first()
        assert stream.code() == grpc.StatusCode.UNAVAILABLE
    return seen


def test_B19_health_is_not_serving_while_a_call_under_way_finishes(tmp_path: Path) -> None:
    with ready_server(tmp_path) as server, Client(server.target) as client, ThreadPoolExecutor(1) as thread:
        under_way = thread.submit(client.vjp, "doubled_after_gate", X)
        wait_until((tmp_path / "call.waiting").exists)
        server.process.terminate()
        wait_until(lambda: healths(client) == {"NOT_SERVING"})
        with pytest.raises(Unavailable) as caught:
            client.forward("doubled_after_gate", X)
        assert caught.value.reason == "DRAINING"
        (tmp_path / "call").touch()
        assert under_way.result(60).output == 6.0
        assert server.process.wait(60) == 0


def test_B19_watchers_are_told_of_the_stop_and_do_not_delay_it(tmp_path: Path) -> None:
    with ready_server(tmp_path) as server:
        seen = watch_until_end(server, server.process.terminate)
        assert server.process.wait(25) == 0  # the grace period is 30 seconds
        statuses = health_pb2.HealthCheckResponse
        assert seen == [statuses.SERVING, statuses.NOT_SERVING]
