"""Fixtures that many tests share: real servers on loopback, made once for each module of ops."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradserve import Client
from gradserve_server.testing import RunningServer, running_server

EXAMPLES = Path(__file__).parents[1] / "examples" / "ops.py"


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., RunningServer]]:
    """Returns a function that runs a server with modules and settings; equal ones share one for the whole session."""
    running: dict[str, RunningServer] = {}
    with contextlib.ExitStack() as stack:

        def start(*modules: Path | str, **settings: object) -> RunningServer:
            key = repr((modules, sorted(settings.items())))
            if key not in running:
                running[key] = stack.enter_context(running_server(*map(str, modules), **settings))
            return running[key]

        yield start


@pytest.fixture(scope="session")
def example_server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(EXAMPLES)


@pytest.fixture
def client(example_server: RunningServer) -> Iterator[Client]:
    with example_server.client() as client:
        yield client
