"""Health: what a prober sees before, while and after the server answers calls."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.server.conftest import BEHAVIOUR
from tests.server.helpers import scrape

from gradserve import Client
from gradserve.errors import Unavailable
from gradserve.messages import SERVICE
from gradserve_server.testing import ServerProcess, running_server, server_process

Status = health_pb2.HealthCheckResponse
WAIT_TO_LOAD = Path(__file__).with_name("ops_wait_to_load.py")


def check(channel: grpc.Channel, service: str) -> int:
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


@pytest.fixture(scope="module")
def may_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("health") / "may_load"


@pytest.fixture(scope="module")
def loading(may_load: Path) -> Iterator[ServerProcess]:
    """A server that loads for as long as a file does not exist."""
    env = {**os.environ, "MAY_LOAD": str(may_load)}
    with server_process(str(WAIT_TO_LOAD), env=env, until="listening") as server:
        yield server


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_while_loading_is_not_serving(loading: ServerProcess, service: str) -> None:
    with grpc.insecure_channel(loading.target) as channel:
        assert check(channel, service) == Status.NOT_SERVING


def test_calls_while_loading_are_unavailable(loading: ServerProcess) -> None:
    with Client(loading.target) as client:
        for call in (client.ops, lambda: client.op("square"), lambda: client.vjp("square", 3.0)):
            with pytest.raises(Unavailable, match="warming up") as raised:
                call()
            assert raised.value.reason == "WARMING_UP"


def test_metrics_while_loading_say_not_ready(loading: ServerProcess) -> None:
    assert "gradserve_ready 0.0" in scrape(loading.metrics_url)


def test_watched_health_turns_to_serving_once_loaded(loading: ServerProcess, may_load: Path) -> None:
    with grpc.insecure_channel(loading.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=60)
        seen = [next(watch).status]
        may_load.touch()
        seen.append(next(watch).status)
        assert check(channel, "") == Status.SERVING
    assert seen == [Status.NOT_SERVING, Status.SERVING]
    assert "gradserve_ready 1.0" in scrape(loading.metrics_url)


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_once_ready_is_serving(channel: grpc.Channel, service: str) -> None:
    assert check(channel, service) == Status.SERVING


def test_health_of_an_unknown_service_is_not_found(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        check(channel, "no.such.Service")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_watch_of_an_unknown_service_says_service_unknown(channel: grpc.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service="no.such.Service")
    watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=10)
    assert next(watch).status == Status.SERVICE_UNKNOWN
    watch.cancel()


def test_watched_health_turns_to_not_serving_when_the_server_stops() -> None:
    with contextlib.ExitStack() as stack:
        with running_server(str(BEHAVIOUR)) as server:
            channel = stack.enter_context(grpc.insecure_channel(server.target))
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
            seen = [next(watch).status]
        seen += [answer.status for answer in watch_to_its_end(watch)]
    assert seen == [Status.SERVING, Status.NOT_SERVING]


def watch_to_its_end(watch: Iterator[Status]) -> Iterator[Status]:
    try:
        yield from watch
    except grpc.RpcError:  # the server has ended
        return
