"""A server of ``ops_behaviour`` for the tests of this folder, raw channels to it, a device, and a clock."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.server.queues import Hands

from gradserve_server.scheduling.device import Device
from gradserve_server.testing import RunningServer

BEHAVIOUR = Path(__file__).with_name("ops_behaviour.py")


@pytest.fixture(scope="session")
def behaviour_server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(BEHAVIOUR)


@pytest.fixture
def channel(behaviour_server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(behaviour_server.target) as channel:
        yield channel


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    device = Device("cpu:0", clock=time.perf_counter)
    yield device
    device.close(10.0)


@pytest.fixture
def clock() -> Hands:
    return Hands()
