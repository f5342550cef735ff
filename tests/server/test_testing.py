"""What authors of ops import in their tests: servers that start, answer, and leave nothing behind."""

import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.server.conftest import BEHAVIOUR

from gradserve_server.ops import OpLoadError
from gradserve_server.testing import running_server, server_process

EXITS = Path(__file__).with_name("ops_exits.py")


def threads_of_servers() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(("device-", "gradserve-", "load")))


def test_running_server_answers_and_leaves_no_thread_of_its_own() -> None:
    before = threads_of_servers()
    with running_server(str(BEHAVIOUR)) as server, server.client() as client:
        assert client.vjp("square", 3.0).gradient == 6.0
        port = int(server.target.rsplit(":", 1)[1])
    assert threads_of_servers() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_running_server_of_a_bad_module_raises_its_load_error() -> None:
    before = threads_of_servers()
    with pytest.raises(OpLoadError, match="only runs on Sundays"), running_server(str(EXITS)):
        pytest.fail("the server started")
    assert threads_of_servers() == before


def test_running_server_takes_settings_by_name_and_refuses_unknown_ones() -> None:
    with pytest.raises(ValueError, match="prot"), running_server(prot=1):
        pytest.fail("the server started")


def test_server_process_that_cannot_start_says_why() -> None:
    with pytest.raises(TimeoutError, match="only runs on Sundays"), server_process(str(EXITS)):
        pytest.fail("the server started")


def test_running_server_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_MAX_MESSAGE_BYTES", "10")
    monkeypatch.setenv("GRADSERVE_NO_SUCH_SETTING", "x")
    with running_server(str(BEHAVIOUR)) as server, server.client() as client:
        assert client.vjp("square", {"x": np.float32(3)}).gradient == 6.0
