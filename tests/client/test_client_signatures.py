"""The signatures that a client fetched: used while they hold, forgotten when they may not."""

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradserve import Client, errors
from gradserve_server.testing import RunningServer, running_server

MODULE = """
import tensorflow as tf
from gradserve_server import op

@op(inputs={{{inputs}}}{options})
def scale({parameters}):
    return {factor} * x
"""
FLOAT32, FLOAT64 = '"x": tf.TensorSpec(None, tf.float32)', '"x": tf.TensorSpec(None, tf.float64)'
X = np.ones(2, np.float32)
CALLS = {
    "vjp": lambda client, inputs: client.vjp("scale", inputs).input_gradients,
    "jvp": lambda client, inputs: client.jvp("scale", inputs, inputs).output_tangents,
    "hvp": lambda client, inputs: client.hvp("scale", inputs, inputs).products,
    "jacobian": lambda client, inputs: client.jacobian("scale", inputs).jacobians["output"],
    "stacked vjp": lambda client, inputs: client.vjp("scale", inputs, [X[None]], stacked=True).input_gradients,
}


def get_op_calls(server: RunningServer) -> int:
    return calls_of(server, "GetOp")


def calls_of(server: RunningServer, method: str) -> int:
    with urllib.request.urlopen(server.metrics_url) as response:
        text = response.read().decode()
    return sum(
        int(float(n))
        for n in re.findall(rf'^gradserve_requests_total\{{.*method="{method}".*\}} (\S+)$', text, re.MULTILINE)
    )


def write_module(
    folder: Path, *, inputs: str = FLOAT32, parameters: str = "x", factor: str = "2.0", options: str = ""
) -> str:
    path = folder / f"ops_{abs(hash((inputs, factor, options)))}.py"
    path.write_text(MODULE.format(inputs=inputs, parameters=parameters, factor=factor, options=options))
    return str(path)


def port_of(server: RunningServer) -> int:
    return int(server.target.rsplit(":", 1)[1])


def test_signatures_are_fetched_once_for_many_calls(example_server: RunningServer, client: Client) -> None:
    before = get_op_calls(example_server)
    for value in range(5):
        client.vjp("square_with_grad", value, 1.0)
        client.forward("square_with_grad", value)
    assert get_op_calls(example_server) == before + 1


def test_signatures_are_fetched_for_each_version_asked_for(example_server: RunningServer, client: Client) -> None:
    before = get_op_calls(example_server)
    for version in (0, 1, 0, 1):
        client.forward("square_with_grad", 3.0, version=version)
    assert get_op_calls(example_server) == before + 2


def test_signatures_are_not_fetched_for_arrays_by_name(example_server: RunningServer, client: Client) -> None:
    before = get_op_calls(example_server)
    client.vjp("square_with_grad", {"x": X}, {"output": X})
    assert get_op_calls(example_server) == before


@pytest.mark.parametrize(
    "bad", [{"inputs": X.astype("i4")}, {"inputs": X, "output_gradients": X[:1]}, {"inputs": [X, X]}]
)
def test_signatures_are_forgotten_when_a_call_fails(
    example_server: RunningServer, client: Client, bad: dict[str, object]
) -> None:
    client.vjp("square_with_grad", X)
    before = get_op_calls(example_server)
    with pytest.raises(errors.InvalidRequest):
        client.vjp("square_with_grad", **bad)
    client.vjp("square_with_grad", X)
    assert get_op_calls(example_server) == before + 1


def test_signatures_are_forgotten_when_a_reply_has_another_fingerprint(tmp_path: Path) -> None:
    with running_server(write_module(tmp_path)) as old:
        client = old.client()
        first = client.forward("scale", 1.0)
    with running_server(write_module(tmp_path, factor="3.0"), port=port_of(old)) as new, client:
        second = client.forward("scale", 1.0)
        assert (first.output, second.output) == (2.0, 3.0)
        assert first.fingerprint != second.fingerprint
        assert get_op_calls(new) == 1
        client.forward("scale", 1.0)
        assert get_op_calls(new) == 1


def test_call_bound_by_old_signatures_is_bound_anew_and_sent_once_more(tmp_path: Path) -> None:
    x = f'"x": {FLOAT32[5:]}'
    y = f'"y": {FLOAT32[5:]}'
    with running_server(write_module(tmp_path, inputs=f"{x}, {y}", parameters="x, y")) as old:
        client = old.client()
        assert client.vjp("scale", [X, 3.0 * X]).status == {"x": "dense", "y": "unconnected"}
    with running_server(write_module(tmp_path, inputs=f"{y}, {x}", parameters="y, x"), port=port_of(old)), client:
        np.testing.assert_array_equal(client.forward("scale", [X, 3.0 * X]).output, 6.0 * X)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_bound_by_old_signatures_is_bound_anew_and_sent_once_more(tmp_path: Path, call: Callable) -> None:
    x, y = FLOAT32, f'"y": {FLOAT32[5:]}'
    swapped = {"inputs": f"{y}, {x}", "parameters": "y, x"}
    with running_server(write_module(tmp_path, inputs=f"{x}, {y}", parameters="x, y")) as old:
        client = old.client()
        call(client, [X, 3.0 * X])
    with running_server(write_module(tmp_path, **swapped), port=port_of(old)) as new, client:
        got = call(client, [X, 3.0 * X])
        wanted = call(new.client(), {"y": X, "x": 3.0 * X})
        assert list(got) == list(wanted)
        for name in got:
            np.testing.assert_array_equal(got[name], wanted[name])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_signatures_are_forgotten_when_any_call_fails(tmp_path: Path, call: Callable) -> None:
    with running_server(write_module(tmp_path)) as server, server.client() as client:
        client.forward("scale", X)
        with pytest.raises(errors.InvalidRequest):
            call(client, [X.astype("i4")])
        before = get_op_calls(server)
        call(client, [X])
        assert get_op_calls(server) == before + 1


@pytest.mark.parametrize(
    "change", [{"inputs": FLOAT64}, {"inputs": f'{FLOAT32}, "y": {FLOAT32[5:]}', "parameters": "x, y"}]
)
def test_signatures_of_an_op_that_changed_are_learnt_anew_after_one_error(
    tmp_path: Path, change: dict[str, str]
) -> None:
    inputs = [X.astype("f8")] if change["inputs"] == FLOAT64 else [X, X]
    with running_server(write_module(tmp_path)) as old:
        client = old.client()
        client.forward("scale", X)
    with running_server(write_module(tmp_path, **change), port=port_of(old)), client:
        with pytest.raises(errors.InvalidRequest):
            client.forward("scale", [X])
        np.testing.assert_array_equal(client.forward("scale", inputs).output, 2.0 * inputs[0])


@pytest.mark.parametrize(("options", "sent"), [("", 2), (", stateful=True", 1)])
def test_call_bound_by_old_signatures_is_sent_once_more_unless_the_op_is_stateful(
    tmp_path: Path, options: str, sent: int
) -> None:
    with running_server(write_module(tmp_path)) as old:
        client = old.client()
        client.forward("scale", 1.0)
    changed = write_module(tmp_path, factor="3.0", options=options)
    with running_server(changed, port=port_of(old)) as new, client:
        assert client.forward("scale", 1.0).output == 3.0
        assert calls_of(new, "Forward") == sent
