"""Placement: a server with two logical CPUs computes each op where it was told to. TensorFlow's own log proves it."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.processes import run_server

from gradserve import Client
from gradserve_server.testing import ServerProcess, server_process

TWO_DEVICES = Path(__file__).with_name("ops_two_devices.py")
EXECUTED = re.compile(r"Executing op StatefulPartitionedCall in device \S*/device:(\w+:\d+)")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    shown = {"TF_CPP_MIN_LOG_LEVEL": "0"}  # where TensorFlow runs each op
    with server_process(str(TWO_DEVICES), env={**os.environ, **shown}) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def log_of_call(server: ServerProcess, client: Client, method: str, op: str) -> str:
    """Returns what the server wrote from before a call to the line that ends it."""
    before, request_id = len(server.log()), f"{method}-{op}"
    assert (
        getattr(client, method)(op, {"x": np.float32(3)}, request_id=request_id).output == 9.0
    )  # one RPC, and one line
    deadline = time.monotonic() + 5.0
    while request_id not in (written := server.log()[before:]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return written


PLACES = [("on_default", "cpu:0"), ("on_second", "cpu:1")]


@pytest.mark.parametrize(("op", "device"), PLACES)
def test_get_op_shows_the_device(client: Client, op: str, device: str) -> None:
    assert client.op(op).device == device


@pytest.mark.parametrize("method", ["forward", "vjp"])
@pytest.mark.parametrize(("op", "device"), PLACES)
def test_op_runs_on_its_device(server: ServerProcess, client: Client, method: str, op: str, device: str) -> None:
    assert EXECUTED.findall(log_of_call(server, client, method, op)) == [device.upper()]


def test_inputs_of_an_op_are_made_on_its_device(server: ServerProcess, client: Client) -> None:
    devices = re.findall(r"in device \S*/device:(\w+:\d+)", log_of_call(server, client, "vjp", "on_second"))
    assert set(devices) == {"CPU:1"}


def test_server_told_a_default_device_uses_it_for_ops_that_name_none() -> None:
    with server_process(str(TWO_DEVICES), "--device", "cpu:1") as server, Client(server.target) as client:
        assert {op.name: op.device for op in client.ops()} == {"on_default": "cpu:1", "on_second": "cpu:1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((TWO_DEVICES, "--device", "cpu:2"), "device 'cpu:2': there is no such device; wanted one of cpu:0, cpu:1"),
        ((Path(__file__).with_name("ops_no_such_device.py"),), "op 'on_ninth': NO_SUCH_DEVICE: device 'cpu:9'"),
    ],
)
def test_device_that_is_not_there_stops_the_start_with_status_2(arguments, said: str) -> None:
    done = run_server(*arguments)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
