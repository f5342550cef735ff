"""Row limits: what a stack or a Jacobian may ask for, refused before it is computed as far as that can be known."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import ANY, SCALAR, VECTOR, floats, trace_one

from gradserve.errors import InvalidRequest, ResourceExhausted
from gradserve.tensors import Array
from gradserve_server.ops import Op
from gradserve_server.requests import EvaluationRequest
from gradserve_server.rows import Limits, Rows

LIMITS = Limits(max_rows=64, max_response_bytes=1000)
ROW = np.ones(5, np.float32)  # of 20 bytes


@pytest.fixture(scope="module")
def scaled() -> Op:
    """Its second input is of no use, and its variable is not trained by it alone."""
    weight, spare = tf.Variable(tf.ones(5), name="weight"), tf.Variable(tf.ones(10), name="spare")
    function = lambda x, u: x * weight + tf.reduce_sum(tf.stop_gradient(spare)) + tf.stop_gradient(tf.reduce_sum(u))
    return trace_one(function, inputs={"x": VECTOR, "u": ANY})


@pytest.fixture(scope="module")
def multiplied() -> Op:
    return trace_one(lambda x, y: x * y, inputs={"x": ANY, "y": ANY})


def rows_of(op: Op, *inputs: Array, limits: Limits = LIMITS, **asked: object) -> Rows:
    request = EvaluationRequest(op="probe", version=0, signature="", inputs={}, **asked)
    return Rows(op=op, inputs=inputs, request=request, limits=limits)


def refusal(check, *arguments: object) -> tuple[str, str, str]:
    with pytest.raises(ResourceExhausted) as raised:
        check(*arguments)
    return raised.value.reason, raised.value.facts["wanted"], raised.value.facts["got"]


def test_stack_of_the_largest_number_of_rows_passes_and_one_more_does_not(multiplied: Op) -> None:
    rows_of(multiplied, floats(1), floats(1), stack=64).check_stack()
    assert refusal(rows_of(multiplied, floats(1), floats(1), stack=65).check_stack) == ("TOO_MANY_ROWS", "64", "65")


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({"differentiate": ["x"]}, 50),
        ({}, 50),
        ({"variable_gradients": True}, 25),
        ({"zero_unconnected": True}, 41),
        ({"zero_unconnected": True, "variable_gradients": True}, 11),
    ],
    ids=str,
)
def test_stack_whose_response_would_be_too_large_is_refused(scaled: Op, asked: dict[str, object], most: int) -> None:
    rows_of(scaled, ROW, floats(1), stack=most, **asked).check_stack()
    reason, wanted, got = refusal(rows_of(scaled, ROW, floats(1), stack=most + 1, **asked).check_stack)
    assert (reason, wanted) == ("RESPONSE_TOO_LARGE", "1000")
    assert int(got) > 1000


def test_stack_counts_gradients_that_nobody_asked_for_four_times_less(multiplied: Op) -> None:
    asked = {"differentiate": ["x"]}  # whose gradient has 4 bytes, and that of the other 200
    rows_of(multiplied, np.float32(1)[...], np.ones(50, np.float32), stack=19, **asked).check_stack()
    too_many = rows_of(multiplied, np.float32(1)[...], np.ones(50, np.float32), stack=20, **asked)
    assert refusal(too_many.check_stack) == ("TOO_MANY_ROWS", "19", "20")


def test_stack_of_output_gradients_that_are_spread_over_large_outputs_is_refused(multiplied: Op) -> None:
    outputs = {"output": np.ones((10, 10), np.float32)}
    column, row = np.ones((10, 1), np.float32), np.ones(10, np.float32)
    rows_of(multiplied, column, row, stack=10).check_output_gradients(outputs)
    too_many = rows_of(multiplied, column, row, stack=11)
    too_many.check_stack()  # which does not know what the outputs will be
    assert refusal(too_many.check_output_gradients, outputs) == ("TOO_MANY_ROWS", "10", "11")


@pytest.mark.parametrize("inputs", [[(1,) * 32], [(2**20, 0), (2**25, 1, 1), (2**17, 1, 1, 1)]], ids=["rank", "size"])
def test_stack_of_a_shape_that_cannot_be_computed_is_refused(inputs: list[tuple[int, ...]]) -> None:
    op = trace_one(lambda x, y, z: x + y + z, inputs={"x": ANY, "y": ANY, "z": ANY})
    arrays = [np.broadcast_to(np.float32(1), shape) for shape in [*inputs, (), ()][:3]]
    limits = dataclasses.replace(LIMITS, max_response_bytes=2**40)
    with pytest.raises(InvalidRequest) as raised:
        rows_of(op, *arrays, stack=64, limits=limits).check_stack()
    assert raised.value.reason == "BAD_SHAPE"


@pytest.mark.parametrize(
    ("shape", "asked", "most"),
    [
        ((1,), {}, 15),  # as 15 unit output gradients of 15 elements, of up to 16 bytes each, are the most
        ((5,), {}, 15),
        ((25,), {}, 10),
        ((25,), {"zero_unconnected": True}, 9),
        ((1000,), {"differentiate": ["u"]}, 1),
        ((1001,), {"differentiate": ["u"]}, 0),
    ],
    ids=str,
)
def test_jacobian_has_as_many_rows_as_fit(shape: tuple[int, ...], asked: dict[str, object], most: int) -> None:
    op = trace_one(lambda x, u: x * 2.0 + tf.stop_gradient(u), inputs={"x": VECTOR, "u": SCALAR})
    rows = rows_of(op, np.ones(shape, np.float32), np.float32(1)[...], **asked)
    assert rows.most_of_jacobian() == most


@pytest.mark.parametrize(
    ("size", "max_rows", "reason", "wanted"),
    [(9, 8, "TOO_MANY_ROWS", "8"), (16, 64, "RESPONSE_TOO_LARGE", "1000"), (65, 64, "TOO_MANY_ROWS", "3")],
)
def test_jacobian_of_too_many_rows_is_refused(size: int, max_rows: int, reason: str, wanted: str) -> None:
    op = trace_one(tf.square, inputs={"x": VECTOR})
    x, limits = np.ones(size, np.float32), dataclasses.replace(LIMITS, max_rows=max_rows)
    assert refusal(rows_of(op, x, limits=limits).check_jacobian, {"output": x})[:2] == (reason, wanted)


def test_jacobian_of_small_inputs_and_large_outputs_is_refused_by_its_unit_output_gradients(multiplied: Op) -> None:
    rows = rows_of(multiplied, floats(1), floats(1))
    rows.check_jacobian({"output": np.ones(15, np.float32)})
    assert refusal(rows.check_jacobian, {"output": np.ones(16, np.float32)}) == ("TOO_MANY_ROWS", "15", "16")


@pytest.mark.parametrize(
    ("output", "given"), [((1,) * 20, (1,) * 13), ((2**20, 2**24, 0), (2**20,))], ids=["rank", "size"]
)
def test_jacobian_of_a_shape_that_no_tensor_has_is_refused(output: tuple, given: tuple, multiplied: Op) -> None:
    limits = dataclasses.replace(LIMITS, max_response_bytes=2**40)
    rows = rows_of(multiplied, np.broadcast_to(np.float32(1), given), floats(1), limits=limits)
    with pytest.raises(InvalidRequest, match="Jacobian of 'output' by 'x': ") as raised:
        rows.check_jacobian({"output": np.broadcast_to(np.float32(1), output)})
    assert raised.value.reason == "BAD_SHAPE"


@pytest.mark.parametrize(("most", "setting"), [(64, "--max-rows"), (19, "--max-message-bytes")])
def test_refusal_names_the_setting_that_would_help(most: int, setting: str, multiplied: Op) -> None:
    y = np.ones(1000 * 4 // (most * 4) - 1, np.float32)
    with pytest.raises(ResourceExhausted, match=f"raise {setting} of the server"):
        rows_of(multiplied, np.float32(1)[...], y, stack=most + 1, differentiate=["x"]).check_stack()
