"""Clients of real servers, one for each module of ops of the public cases."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradserve import Client
from gradserve_server.testing import RunningServer

OPS = Path(__file__).parent / "ops"


@pytest.fixture
def values(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS / "values.py").client() as client:
        yield client


@pytest.fixture
def surrogates(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS / "surrogates.py").client() as client:
        yield client


@pytest.fixture
def variables(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS / "variables.py").client() as client:
        yield client


@pytest.fixture
def derivatives(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS / "derivatives.py").client() as client:
        yield client


@pytest.fixture(scope="session")
def requests_server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(OPS / "requests.py")


@pytest.fixture
def requests(requests_server: RunningServer) -> Iterator[Client]:
    with requests_server.client() as client:
        yield client
