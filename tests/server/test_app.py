"""The whole server as an operator sees it: starts that fail, signals, and what its ports answer."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.server.conftest import BEHAVIOUR
from tests.server.helpers import scrape
from tests.support.processes import run_server

from gradserve import Client
from gradserve.errors import OpContractError, Unavailable
from gradserve.messages import HEALTH_SERVICE, SERVICE
from gradserve_server.testing import RunningServer, ServerProcess, running_server, server_command, server_process

HERE = Path(__file__).parent


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that someone else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def run(*arguments: str | int) -> "subprocess.CompletedProcess[str]":
    """Runs a server on ports of one's own choice."""
    command = [part for part in server_command() if part not in ("--port", "--metrics-port", "0")]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def test_start_on_a_port_in_use_is_refused_in_one_line(taken: int) -> None:
    done = run("any.py", "--port", taken, "--metrics-port", 0)
    assert done.returncode == 2
    assert done.stderr == f"gradserve-server: cannot listen on 127.0.0.1:{taken}: Address already in use\n"


def test_start_on_a_metrics_port_in_use_is_refused_in_one_line(taken: int) -> None:
    done = run("any.py", "--port", 0, "--metrics-port", taken)
    assert done.returncode == 2
    assert done.stderr == f"gradserve-server: cannot serve /metrics on 127.0.0.1:{taken}: Address already in use\n"


def test_start_on_a_host_that_is_none_is_refused_in_one_line() -> None:
    done = run("any.py", "--host", "nowhere.invalid", "--port", 0, "--metrics-port", 0)
    assert done.returncode == 2
    assert done.stderr.startswith("gradserve-server: cannot listen on nowhere.invalid:0: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("ops_twice.py", ["op 'twice'", "DUPLICATE_NAME", "is registered twice"]),
        ("ops_exits.py", ["ops_exits.py", "IMPORT_FAILED", "SystemExit: this module only runs on Sundays"]),
    ],
)
def test_start_with_a_bad_module_ends_with_status_2_and_one_message(module: str, said: list[str]) -> None:
    done = run_server(HERE / module)
    message = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert message.startswith("gradserve-server: module ")
    assert all(part in message for part in said)
    assert "Traceback" not in done.stderr


def test_start_with_traceback_asked_for_shows_it_above_the_message() -> None:
    done = run_server(HERE / "ops_exits.py", "--traceback")
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert "raise SystemExit" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("gradserve-server: module ")


def test_start_told_to_skip_bad_ops_lists_them_and_answers_for_them(serve) -> None:
    modules = [HERE / name for name in ("ops_no_such_device.py", "ops_exits.py", "ops_behaviour.py")]
    with serve(*modules, bad_ops="skip").client() as client:
        failures = {op.name: op.failure for op in client.ops() if op.failure}
        assert list(failures) == ["on_ninth"]
        assert failures["on_ninth"].startswith("NO_SUCH_DEVICE: device 'cpu:9'")
        with pytest.raises(OpContractError, match="could not be loaded") as raised:
            client.vjp("on_ninth", {"x": np.float32(1)})
        assert raised.value.reason == "OP_NOT_LOADED"
        assert client.vjp("square", 3.0).gradient == 6.0


@contextlib.contextmanager
def call_under_way(server: ServerProcess, seconds: float) -> "Iterator[concurrent.futures.Future[float]]":
    """Has a call sleep on the server's device."""
    with Client(server.target) as client, concurrent.futures.ThreadPoolExecutor() as pool:
        assert client.health() == "SERVING"  # connected, so that the call is there at once
        inputs = {"seconds": np.float32(seconds), "number": np.int32(0)}
        call = pool.submit(lambda: float(client.forward("sleep", inputs).output))
        time.sleep(0.5)
        yield call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_a_call_under_way_finish_and_ends_with_status_0(number: signal.Signals) -> None:
    with server_process(str(BEHAVIOUR)) as server, call_under_way(server, 2.0) as call:
        server.process.send_signal(number)
        server.wait_for("stopping")
        with Client(server.target) as late, pytest.raises(Unavailable):
            late.vjp("square", {"x": np.float32(3)})
        assert not call.done()
        assert call.result(timeout=30) == 2.0
        assert server.process.wait(timeout=30) == 0
        assert server.wait_for("stopped")["level"] == "info"
    assert "Traceback" not in server.log()


def test_signal_ends_calls_that_outlast_the_grace_period() -> None:
    with server_process(str(BEHAVIOUR), "--grace-seconds", "0.2") as server, call_under_way(server, 4.0) as call:
        server.process.terminate()
        assert isinstance(call.exception(timeout=30), Unavailable)  # had it been waited for, it would have ended well
        assert server.process.wait(timeout=30) == 0


def test_signal_while_loading_ends_soon_with_status_0(tmp_path: Path) -> None:
    env = {**os.environ, "MAY_LOAD": str(tmp_path / "never")}
    with server_process(str(HERE / "ops_wait_to_load.py"), env=env, until="listening") as server:
        while not (tmp_path / "never.waiting").exists():
            time.sleep(0.05)
        assert server.stop(timeout=10.0) == 0
    assert '"ready"' not in server.log()
    assert "Traceback" not in server.log()


def services(target: str) -> set[str]:
    """Returns the names that reflection lists."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=10)
    return {service.name for service in answer.list_services_response.service}


def test_reflection_lists_the_services(behaviour_server: RunningServer) -> None:
    assert services(behaviour_server.target) == {SERVICE, HEALTH_SERVICE, "grpc.reflection.v1alpha.ServerReflection"}


def test_reflection_describes_the_service_for_clients_without_its_proto(behaviour_server: RunningServer) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
    with grpc.insecure_channel(behaviour_server.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=10)
    assert b"VjpRequest" in answer.file_descriptor_response.file_descriptor_proto[0]


def test_reflection_turned_off_is_unimplemented(serve) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        services(serve(BEHAVIOUR, reflection=False).target)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_metrics_port_given_is_the_one_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running_server(str(BEHAVIOUR), metrics_port=port) as server:
        assert server.metrics_url == f"http://127.0.0.1:{port}/metrics"
        assert "gradserve_ready 1.0" in scrape(server.metrics_url)
    with contextlib.suppress(OSError):
        scrape(server.metrics_url)
        pytest.fail("the port of /metrics is still open")


def test_server_without_modules_answers_with_no_ops(serve) -> None:
    with serve().client() as client:
        assert (client.ops(), client.health()) == ([], "SERVING")


def test_message_beyond_the_limit_is_resource_exhausted(serve) -> None:
    with serve(BEHAVIOUR, max_message_bytes=10_000).client() as client:
        assert client.vjp("square", {"x": np.ones(1000, np.float32)}).gradient.shape == (1000,)
        with pytest.raises(Exception, match="larger than max") as raised:
            client.vjp("square", {"x": np.ones(10_000, np.float32)})
    assert raised.value.code.name == "RESOURCE_EXHAUSTED"


def test_host_may_be_an_ipv6_address(serve) -> None:
    server = serve(BEHAVIOUR, host="::1")
    with Client(server.target.replace("127.0.0.1", "[::1]")) as client:
        assert client.vjp("square", 3.0).gradient == 6.0


def test_server_whose_log_nobody_reads_any_more_still_answers_and_ends_with_status_0() -> None:
    process = subprocess.Popen(server_command(str(BEHAVIOUR)), stderr=subprocess.PIPE, text=True)
    listening = next(json.loads(line) for line in process.stderr if '"listening"' in line)
    assert any('"ready"' in line for line in process.stderr)
    process.stderr.close()
    with Client(f"127.0.0.1:{listening['port']}") as client:
        assert client.vjp("square", {"x": np.float32(3)}).gradient == 6.0
    process.terminate()
    assert process.wait(timeout=30) == 0
