"""Public case B21: what an op raises stays in the server's log, and the server goes on."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.processes import ServerProcess, server_process

from gradserve import Client
from gradserve.errors import Code, InvalidRequest, OpFailed

RAISING = {
    "raises_value_error": "ValueError: secret path /x",
    "raises_not_implemented": "NotImplementedError: secret path /x",
    "raises_memory_error": "MemoryError: secret path /x",
    "raises_stop_iteration": "StopIteration: secret path /x",
    "raises_system_exit": "SystemExit: secret path /x",
    "raises_textless": "TextlessError",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(str(Path(__file__).with_name("ops_b_failing.py"))) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def logged(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """Returns the log's line on a call; it may come shortly after the answer."""
    give_up_at = time.monotonic() + 10
    while time.monotonic() < give_up_at:
        for line in server.log().splitlines():
            if request_id in line:
                return json.loads(line)
        time.sleep(0.02)
    raise AssertionError(f"the log does not name {request_id}")


def assert_hidden(error: OpFailed, op: str) -> None:
    assert (error.code, error.reason) == (Code.INTERNAL, "OP_FAILED")
    assert str(error) == f"op '{op}' raised while it ran; the server's log has the cause under the request id"
    assert error.facts == {"op": op}


@pytest.mark.parametrize("method", ["forward", "vjp"])
@pytest.mark.parametrize("op", RAISING)
def test_B21_op_that_raises_is_named_and_its_text_stays_in_the_log(
    server: ServerProcess, client: Client, op: str, method: str
) -> None:
    request_id = f"B21-{method}-{op}"
    with pytest.raises(OpFailed) as caught:
        getattr(client, method)(op, {"x": np.float32([1, 2])}, request_id=request_id)
    assert_hidden(caught.value, op)
    assert caught.value.request_id == request_id
    line = logged(server, request_id)
    assert (line["level"], line["code"], line["op"]) == ("error", "INTERNAL", op)
    assert "Traceback (most recent call last)" in line["exception"]
    assert RAISING[op] in line["exception"]


def test_B21_gradient_function_that_raises_fails_the_backward_pass_alone(client: Client) -> None:
    assert client.forward("raises_backward", 3.0).output == 3.0
    with pytest.raises(OpFailed) as caught:
        client.vjp("raises_backward", 3.0)
    assert_hidden(caught.value, "raises_backward")


def test_B21_server_goes_on_after_every_failure(client: Client) -> None:
    for op in RAISING:
        with pytest.raises(OpFailed):
            client.vjp(op, 1.0)
        result = client.vjp("doubled", 3.0)
        assert (result.output, result.gradient) == (6.0, 2.0)


def test_B21_text_of_a_kernel_has_no_path_and_no_stack(client: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.forward("total", {"x": np.float32([1, 2]), "y": np.float32([1, 2, 3])})
    assert caught.value.reason == "VALUES_REFUSED"
    assert str(caught.value).endswith("a kernel refused the values: Incompatible shapes: [2] vs. [3]")
