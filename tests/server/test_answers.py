"""Answers: what a program returned gets its names and statuses, and is compared with what the op promised."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import INDEX, SCALAR, VECTOR, floats, trace_one

from gradserve.errors import InvalidRequest, OpContractError
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server import answers
from gradserve_server.ops import Op
from gradserve_server.requests import EvaluationRequest

DENSE, UNCONNECTED = pb.GRADIENT_STATUS_DENSE, pb.GRADIENT_STATUS_UNCONNECTED
INTEGER = pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE
INPUTS = [floats(1, 2, 3), np.int32(1)[...], np.float32(2)[...]]
OUTPUTS = {"y": floats(1, 2), "n": np.int32([3]), "z": np.float32(4)[...]}
WRONG = {
    "wrong shape": np.ones((7, 7), np.float32),
    "wrong rank": np.ones((), np.float32),
    "wrong dtype": np.ones(3, np.float64),
}


@pytest.fixture(scope="module")
def op() -> Op:
    def function(x, i, scale):
        return {"y": x[:2] * scale, "n": tf.reshape(i, [1]), "z": scale}

    return trace_one(function, inputs={"x": tf.TensorSpec([3], tf.float32), "i": INDEX, "scale": SCALAR})


def request(**asked: object) -> EvaluationRequest:
    return EvaluationRequest(op="probe", version=0, signature="", inputs={}, **asked)


def statuses(named) -> list:
    return [gradient.status for gradient in named.values()]


def test_name_outputs_gives_them_in_the_order_of_the_signature(op: Op) -> None:
    assert list(answers.name_outputs(op, list(OUTPUTS.values()))) == ["y", "n", "z"]


@pytest.mark.parametrize("shape", [(3,), (), (2, 1)])
def test_name_outputs_of_another_shape_than_was_promised_blames_the_op(op: Op, shape: tuple[int, ...]) -> None:
    with pytest.raises(OpContractError, match=r"output 'y'.*the fault is in the op") as raised:
        answers.name_outputs(op, [np.ones(shape, np.float32), OUTPUTS["n"], OUTPUTS["z"]])
    assert raised.value.reason == "OUTPUT_SHAPE_MISMATCH"


@pytest.mark.parametrize(("stack", "shape"), [(0, (2,)), (1, (1, 2)), (5, (5, 2))])
def test_check_output_gradient_shapes_wants_the_leading_axis_of_a_stack(stack: int, shape: tuple[int, ...]) -> None:
    good = {"y": np.ones(shape, np.float32)}
    answers.check_output_gradient_shapes(request(output_gradients=good, stack=stack), OUTPUTS, "probe")
    for wrong in [(*shape, 1), shape[1:], (*shape[:-1], 3)]:
        bad = {"y": np.ones(wrong, np.float32)}
        with pytest.raises(InvalidRequest, match="output gradient 'y'") as raised:
            answers.check_output_gradient_shapes(request(output_gradients=bad, stack=stack), OUTPUTS, "probe")
        assert raised.value.reason == "SHAPE_MISMATCH"


def test_check_output_gradient_shapes_says_how_often_the_shape_is_wanted() -> None:
    bad = request(output_gradients={"y": floats(1, 2)}, stack=5)
    with pytest.raises(InvalidRequest, match=r"wanted \(5, 2\), 5 times the shape of the output, got \(2,\)"):
        answers.check_output_gradient_shapes(bad, OUTPUTS, "probe")


def test_name_output_tangents_passes_over_outputs_that_have_none_by_their_dtype(op: Op) -> None:
    named = answers.name_output_tangents(op, OUTPUTS, [floats(5, 6), None], request())
    assert statuses(named) == [DENSE, INTEGER, UNCONNECTED]
    assert named["y"].array.tolist() == [5, 6]


def test_name_products_passes_over_inputs_that_have_none_by_their_dtype(op: Op) -> None:
    named = answers.name_products(op, INPUTS, [None, None, np.float32(5)[...]], request())
    assert statuses(named) == [UNCONNECTED, INTEGER, DENSE]


def test_name_jacobians_has_an_entry_for_each_differentiable_output_and_each_input(op: Op) -> None:
    rows = [[np.ones((2, 3), np.float32), None, floats(7, 8)], [None, None, floats(1)]]
    named = answers.name_jacobians(op, INPUTS, OUTPUTS, rows, request())
    assert list(named) == [(output, name) for output in ("y", "z") for name in ("x", "i", "scale")]
    assert statuses(named) == [DENSE, INTEGER, DENSE, UNCONNECTED, INTEGER, DENSE]
    shapes = {pair: gradient.array.shape for pair, gradient in named.items() if gradient.array is not None}
    assert shapes == {("y", "x"): (2, 3), ("y", "scale"): (2,), ("z", "scale"): ()}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        (lambda op, bad: answers.name_output_tangents(op, OUTPUTS, [bad, None], request()), "output 'y'"),
        (lambda op, bad: answers.name_products(op, INPUTS, [bad, None, None], request()), "input 'x'"),
        (
            lambda op, bad: answers.name_jacobians(
                op, INPUTS, OUTPUTS, [[bad, None, None], [None] * 3], request(differentiate=["scale"])
            ),
            "input 'x'",
        ),
        (lambda op, bad: answers.name_input_gradients(op, INPUTS, [bad, INPUTS[2]], request()), "input 'x'"),
        (lambda op, bad: answers.name_input_gradients(op, INPUTS, [bad, floats(1)], request(stack=1)), "input 'x'"),
    ],
    ids=["tangents", "products", "jacobians", "gradients", "stacked"],
)
def test_what_does_not_fit_its_place_blames_the_op_even_if_it_was_not_asked_for(
    op: Op, name, place: str, wrong
) -> None:
    with pytest.raises(OpContractError, match=f"{place} in its (shape|dtype): .*the fault is in the op") as raised:
        name(op, wrong)
    assert raised.value.reason in ("GRADIENT_SHAPE_MISMATCH", "GRADIENT_DTYPE_MISMATCH")


def test_stacked_gradient_of_a_variable_of_another_shape_blames_the_op() -> None:
    weight = tf.Variable([1.0, 2.0], name="weight")
    op = trace_one(lambda x: x * tf.reduce_sum(weight), inputs={"x": VECTOR})
    good = np.ones((3, 2), np.float32)
    asked = request(stack=3, variable_gradients=True)
    assert answers.name_variable_gradients(op, [good, good], asked)["weight"].array is good
    for bad in (good[:2], good.T, good[0], good.astype("f8")):
        with pytest.raises(OpContractError, match="variable 'weight' in its"):
            answers.name_variable_gradients(op, [good, bad], asked)
