"""Metrics: what a scrape of a live server says of calls that went well, and of those that did not."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import BEHAVIOUR
from tests.server.helpers import floats, scrape

from gradserve import Client
from gradserve.errors import GradserveError
from gradserve_server.metrics import Metrics, new_registry
from gradserve_server.telemetry import STAGES, Call
from gradserve_server.testing import RunningServer, running_server

OK = {"op": "square", "method": "Vjp", "code": "OK"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(str(BEHAVIOUR)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def samples(server: RunningServer, name: str) -> dict[frozenset[tuple[str, str]], float]:
    families = text_string_to_metric_families(scrape(server.metrics_url))
    return {frozenset(s.labels.items()): s.value for family in families for s in family.samples if s.name == name}


def value(server: RunningServer, name: str, **labels: str) -> float:
    """Returns the sum of the samples that have these labels."""
    wanted = labels.items()
    return sum(found for have, found in samples(server, name).items() if have >= frozenset(wanted))


def growth(server: RunningServer, call: Callable[[], Any], name: str, **labels: str) -> float:
    """Returns by how much a metric grew by a call, whether that fails or not. The call is counted as it ends."""
    before = value(server, name, **labels)
    with contextlib.suppress(GradserveError):
        call()
    deadline = time.monotonic() + 2.0
    while (grown := value(server, name, **labels) - before) == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    return grown


def test_metrics_count_a_call_by_op_version_method_and_code(server: RunningServer, client: Client) -> None:
    for method, call in (("Vjp", client.vjp), ("Forward", client.forward)):
        labels = {"op": "square", "version": "1", "method": method, "code": "OK"}
        assert (
            growth(server, lambda call=call: call("square", {"x": floats(3)}), "gradserve_requests_total", **labels)
            == 1
        )


def test_metrics_time_a_call_and_each_of_its_stages(server: RunningServer, client: Client) -> None:
    call = lambda: client.vjp("square", {"x": floats(3)})
    assert growth(server, call, "gradserve_request_duration_seconds_count", **OK) == 1
    for stage in STAGES:
        assert growth(server, call, "gradserve_stage_duration_seconds_count", **OK, stage=stage) == 1


def test_metrics_put_the_seconds_of_a_slow_op_into_compute(server: RunningServer, client: Client) -> None:
    inputs = {"seconds": np.float32(0.2), "number": np.int32(0)}
    name, labels = "gradserve_stage_duration_seconds_sum", {"op": "sleep", "method": "Forward", "stage": "compute"}
    assert growth(server, lambda: client.forward("sleep", inputs), name, **labels) >= 0.2


@pytest.mark.parametrize(
    ("op", "inputs", "code", "label"),
    [
        ("boom", {"x": floats(1)}, "INTERNAL", "boom"),
        ("take", {"table": floats(1), "index": np.int32(9)}, "INVALID_ARGUMENT", "take"),
        ("square", {"z": floats(1)}, "INVALID_ARGUMENT", "square"),
        ("record", {"since": np.int32(0)}, "FAILED_PRECONDITION", "record"),
        ("no_such_op", {"x": floats(1)}, "NOT_FOUND", "_other"),
    ],
)
def test_metrics_count_and_time_failures(server, client, op: str, inputs, code: str, label: str) -> None:
    labels = {"op": label, "method": "Vjp", "code": code}
    call = lambda: client.vjp(op, inputs)
    assert growth(server, call, "gradserve_requests_total", **labels) == 1
    assert growth(server, call, "gradserve_request_duration_seconds_count", **labels) == 1
    assert growth(server, call, "gradserve_stage_duration_seconds_count", **labels, stage="decode") == 1


def test_metrics_of_a_failure_in_the_op_time_the_stages_up_to_it(server: RunningServer, client: Client) -> None:
    for stage, expected in (("queue", 1), ("compute", 1)):
        labels = {"op": "boom", "stage": stage, "code": "INTERNAL"}
        call = lambda: client.vjp("boom", {"x": floats(1)})
        assert growth(server, call, "gradserve_stage_duration_seconds_count", **labels) == expected
    assert value(server, "gradserve_stage_duration_seconds_count", op="boom", stage="encode") == 0


def test_metrics_count_a_malformed_message(server: RunningServer) -> None:
    def call() -> None:
        with grpc.insecure_channel(server.target) as channel, contextlib.suppress(grpc.RpcError):
            channel.unary_unary("/gradserve.v1.GradientService/Vjp")(b"\xff", timeout=10)

    assert growth(server, call, "gradserve_requests_total", op="_other", code="INVALID_ARGUMENT") == 1


def test_metrics_count_a_call_whose_deadline_passed(server: RunningServer, client: Client) -> None:
    inputs = {"seconds": np.float32(0.5), "number": np.int32(0)}
    labels = {"op": "sleep", "method": "Forward", "code": "DEADLINE_EXCEEDED"}
    assert (
        growth(server, lambda: client.forward("sleep", inputs, timeout=0.1), "gradserve_requests_total", **labels) == 1
    )


def test_metrics_of_invented_names_gain_no_series(server: RunningServer, client: Client) -> None:
    growth(server, lambda: client.vjp("invented", {"x": floats(1)}), "gradserve_requests_total", code="NOT_FOUND")
    series = scrape(server.metrics_url).count("\n")
    for number in range(30):
        with pytest.raises(GradserveError):
            client.vjp(f"invented_{number}", {"x": floats(1)}, signature=f"key_{number}", request_id=f"id_{number}")
    assert growth(server, lambda: client.vjp("invented", {"x": floats(1)}), "gradserve_requests_total", op="_other")
    assert scrape(server.metrics_url).count("\n") == series
    assert "invented" not in scrape(server.metrics_url)


def test_metrics_of_invented_versions_and_signatures_gain_no_series(server: RunningServer, client: Client) -> None:
    def call(number: int) -> None:
        with contextlib.suppress(GradserveError):
            client.vjp("square", {"x": floats(1)}, version=number)
        with contextlib.suppress(GradserveError):
            client.vjp("square", {"x": floats(1)}, signature=f"key_{number}")

    growth(server, lambda: call(100), "gradserve_requests_total", code="NOT_FOUND", op="square")
    series = scrape(server.metrics_url).count("\n")
    growth(server, lambda: call(200), "gradserve_requests_total", code="NOT_FOUND", op="square")
    assert scrape(server.metrics_url).count("\n") == series


def test_metrics_of_a_ready_server_say_so(server: RunningServer) -> None:
    assert value(server, "gradserve_ready") == 1.0


def test_metrics_of_two_servers_in_one_process_are_apart(
    server: RunningServer, behaviour_server: RunningServer
) -> None:
    before = value(server, "gradserve_requests_total")
    with behaviour_server.client() as client:
        growth(
            behaviour_server, lambda: client.vjp("square", {"x": floats(3)}), "gradserve_requests_total", op="square"
        )
    assert value(server, "gradserve_requests_total") == before


def test_metrics_of_get_op_name_the_op_that_there_is(server: RunningServer, client: Client) -> None:
    labels = {"op": "boom", "method": "GetOp", "code": "OK"}
    assert growth(server, lambda: client.op("boom"), "gradserve_requests_total", **labels) == 1


def test_histogram_counts_a_time_in_each_bucket_whose_bound_it_does_not_exceed() -> None:
    registry = new_registry()
    metrics = Metrics(registry)
    for seconds in (5e-5, 1e-3, 1.1e-3, 61.0):
        call = Call(method="Vjp", request_id="id", clock=lambda: 0.0, started_at=0.0, op="square", seconds=seconds)
        metrics.calls_ended([(call, None)])
    labels = {"op": "square", "method": "Vjp", "code": "OK"}

    def sample(kind: str, **more: str) -> float | None:
        return registry.get_sample_value(f"gradserve_request_duration_seconds_{kind}", {**labels, **more})

    below = {bound: sample("bucket", le=bound) for bound in ("0.0001", "0.0005", "0.001", "0.0025", "60.0", "+Inf")}
    assert below == {"0.0001": 1, "0.0005": 1, "0.001": 2, "0.0025": 3, "60.0": 3, "+Inf": 4}
    assert sample("count") == 4
    assert sample("sum") == pytest.approx(61.00215)
