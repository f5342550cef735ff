"""Faults that show only at a call: whose they are, and that the server goes on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradserve import Client
from gradserve.errors import InvalidRequest, OpContractError, ResourceExhausted
from gradserve_server.testing import RunningServer

OPS = Path(__file__).with_name("ops_faulty.py")
X = np.ones((2, 3), np.float32)


@pytest.fixture
def client(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS, max_message_bytes=1_000_000).client() as client:
        yield client
        assert client.vjp("doubled", X).gradient is not None


@pytest.mark.parametrize("op", ["negative_row", "reshaping_rule"])
def test_rule_that_fails_where_forward_does_not_is_the_fault_of_the_op(client: Client, op: str) -> None:
    with pytest.raises(OpContractError) as raised:
        client.vjp(op, X)
    assert raised.value.reason == "GRADIENT_RULE_FAILED"
    np.testing.assert_array_equal(client.forward(op, X).output, X)


def test_output_of_another_shape_than_promised_is_the_fault_of_the_op(client: Client) -> None:
    for call in (client.forward, client.vjp):
        with pytest.raises(OpContractError, match=r"wanted \(5,\), got \(2, 3\)") as raised:
            call("promises_five", X)
        assert raised.value.reason == "OUTPUT_SHAPE_MISMATCH"


def test_output_gradient_that_no_kernel_can_spread_is_of_the_wrong_shape_like_any_other(client: Client) -> None:
    x = np.ones((2,) * 8, np.float32)
    with pytest.raises(InvalidRequest) as raised:
        client.vjp("doubled", {"x": x}, {"output": np.ones((2, 1) * 4, np.float32)})
    assert raised.value.reason == "SHAPE_MISMATCH"


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("product_of_three", {"x": (2**30, 1, 1, 0), "y": (1, 2**30, 1, 0), "z": (1, 1, 2**30, 0)}),
        ("product_of_three", {"x": (2**10, 1, 1, 0), "y": (1, 2**10, 1, 0), "z": (1, 1, 2**10, 0)}),
        ("cube_of_pairs", {"x": (2**30, 0)}),
        ("product_of_three", {"x": (2**17, 1, 1, 1), "y": (2**16, 1, 1), "z": (1, 2**30, 0)}),
    ],
)
def test_empty_tensors_whose_sizes_would_overflow_together_are_refused(client: Client, op: str, shapes: dict) -> None:
    with pytest.raises(InvalidRequest, match="shapes must not overflow when they are combined") as raised:
        client.forward(op, {name: np.empty(shape, np.float32) for name, shape in shapes.items()})
    assert raised.value.reason == "BAD_SHAPE"


def test_empty_tensors_of_usual_sizes_are_served(client: Client) -> None:
    assert client.forward("cube_of_pairs", np.empty((2**10, 0), np.float32)).output.shape == (2**10,) * 3 + (0,)


def test_response_above_the_limit_is_refused_with_both_sizes(client: Client) -> None:
    with pytest.raises(ResourceExhausted, match="wanted at most 1000000 bytes, got 1000004") as raised:
        client.forward("zeros", {"size": np.int32(250_001)})
    assert raised.value.reason == "RESPONSE_TOO_LARGE"
    assert client.forward("zeros", {"size": np.int32(250_000)}).output.shape == (250_000,)


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": 2.0, "state": {"h": 3.0, "c": [4.0, 5.0]}},
        [2.0, {"h": 3.0, "c": [4.0, 5.0]}],
        {"x": 2.0, "state/h": 3.0, "state/c/0": 4.0, "state/c/1": 5.0},
    ],
    ids=["nested", "by position", "joined"],
)
def test_nested_inputs_take_python_numbers_in_every_form(client: Client, inputs: object) -> None:
    assert client.forward("nested", inputs).output == 546.0
