"""Stacked VJPs and Jacobians of ops of many kinds: each row is what a tape gives for it alone."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import identity_by
from tests.server.helpers import ANY, VECTOR, floats, one, trace_one
from tests.server.product_ops import CASES, GRID, assert_agrees, draw_like, pulled, record

WAYS = pytest.mark.parametrize("vectorise", [True, False], ids=["together", "row by row"])
EVERY_CASE = pytest.mark.parametrize("name", CASES)


def rows_by_tape(case, stacks):
    """Returns, for each connected input, the gradient of each row alone."""
    gradients = []
    for row in zip(*stacks, strict=True):
        tape, inputs, outputs = record(case)
        sources = [tensor for tensor in inputs if tensor.dtype != tf.int32]
        found = tape.gradient(outputs, sources, output_gradients=[tf.constant(dy) for dy in row])
        gradients.append([tf.convert_to_tensor(gradient).numpy() for gradient in found if gradient is not None])
    return [np.stack(rows) for rows in zip(*gradients, strict=True)]


@WAYS
@EVERY_CASE
@pytest.mark.parametrize("stack", [1, 3])
def test_stacked_vjp_gives_each_row_as_a_tape_does(name: str, stack: int, vectorise: bool) -> None:
    case = CASES[name]
    _, _, targets = record(case)
    stacks = draw_like(targets, stack=stack)
    outputs, gradients = pulled(name, vectorise=vectorise).program.stacked_vjp(case.inputs, stacks, stack)
    wanted = rows_by_tape(case, stacks)
    assert len(gradients) == len(wanted)
    for got, rows in zip(gradients, wanted, strict=True):
        assert_agrees(got, rows)
    assert [output.shape for output in outputs if output.dtype != np.int32] == [target.shape for target in targets]


@WAYS
@EVERY_CASE
def test_jacobian_is_that_of_a_tape_and_none_where_that_is(name: str, vectorise: bool) -> None:
    case = CASES[name]
    tape, inputs, targets = record(case, persistent=True)
    _, jacobians = pulled(name, vectorise=vectorise).program.jacobian(case.inputs, 100)
    assert len(jacobians) == len(targets)
    for target, by_input in zip(targets, jacobians, strict=True):
        for tensor, got in zip(inputs, by_input, strict=True):
            wanted = None if tensor.dtype == tf.int32 else tape.jacobian(target, tensor)
            shaped = wanted if wanted is None else tf.reshape(wanted, [target.shape.num_elements(), *tensor.shape])
            assert_agrees(got, shaped)


@WAYS
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 3), (0,), (2, 0), (0, 3), (1,) * 12])
def test_stacked_products_of_an_input_of_any_rank_take_each_rank(shape: tuple[int, ...], vectorise: bool) -> None:
    program, x = pulled("number", vectorise=vectorise).program, np.full(shape, 3, np.float32)
    (gradient,) = program.stacked_vjp([x], [np.full((2, *shape), 5, np.float32)], 2)[1]
    np.testing.assert_array_equal(gradient, np.full((2, *shape), 30, np.float32), strict=True)
    ((jacobian,),) = program.jacobian([x], 100)[1]
    np.testing.assert_array_equal(jacobian, 6 * np.eye(x.size, dtype=np.float32).reshape(x.size, *shape), strict=True)


@WAYS
def test_jacobian_of_more_rows_than_may_be_has_none(vectorise: bool) -> None:
    outputs, ((rows,),) = pulled("number", vectorise=vectorise).program.jacobian([GRID], 5)
    assert (outputs[0].shape, rows.shape) == ((2, 3), (0, 2, 3))


@WAYS
@pytest.mark.parametrize(("max_bytes", "count"), [(4 * 24, 4), (4 * 24 - 1, 1)])
def test_stacked_vjp_of_more_bytes_than_may_be_has_one_row(max_bytes: int, count: int, vectorise: bool) -> None:
    program = pulled("number", vectorise=vectorise).program
    for upstream in (one(), np.ones((4, *GRID.shape), np.float32)):
        outputs, (rows,) = program.stacked_vjp([GRID], [upstream], 4, max_bytes=max_bytes)
        assert (outputs[0].shape, rows.shape) == (GRID.shape, (count, *GRID.shape))


@pytest.mark.parametrize("stack", [1, 31, 32, 33, 64, 100])
def test_stack_of_any_number_of_rows_is_pulled_back_whole_and_in_order(stack: int) -> None:
    dy = draw_like([GRID], stack=stack)
    for name in ("number", "compiled"):
        together, alone = (
            pulled(name, vectorise=vectorise).program.stacked_vjp([GRID], dy, stack)[1][0]
            for vectorise in (True, False)
        )
        assert together.shape == (stack, *GRID.shape)
        assert_agrees(together, alone)


@WAYS
def test_stacked_vjp_spreads_a_number_over_all_rows_of_its_output(vectorise: bool) -> None:
    case = CASES["several"]
    total = floats(1, 0, -2)
    gradients = pulled("several", vectorise=vectorise).program.stacked_vjp(case.inputs, [one() * 0, total], 3)[1]
    slope = 3 * np.cos(GRID)
    np.testing.assert_allclose(gradients[0], [slope, 0 * slope, -2 * slope], rtol=1e-6)
    np.testing.assert_array_equal(gradients[1], floats(0, 0, 0), strict=True)


@WAYS
@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (lambda dy: dy + 1.0, [[4, 5], [1.25, 1]]),
        (lambda _: tf.constant([2.0, 4.0]), [[2, 4], [2, 4]]),
        (lambda dy: tf.clip_by_norm(dy, 0.5), [[0.3, 0.4], [0.25, 0]]),
        (tf.sign, [[1, 1], [1, 0]]),
        (lambda dy: dy / tf.reduce_max(dy), [[0.75, 1], [1, 0]]),
    ],
    ids=["affine", "without dy", "clipped norm (A02)", "sign", "by its largest element"],
)
def test_stacked_vjp_hands_the_rule_one_row_at_a_time(rule, wanted: list, vectorise: bool) -> None:
    program = trace_one(identity_by(rule), inputs={"x": VECTOR}).program
    program.__dict__["vectorises"] = vectorise
    dy = np.float32([[3, 4], [0.25, 0]])
    (gradient,) = program.stacked_vjp([floats(1, 2)], [dy], 2)[1]
    np.testing.assert_allclose(gradient, np.float32(wanted), rtol=1e-6)


@WAYS
def test_stacked_vjp_gives_variables_a_leading_axis_too(vectorise: bool) -> None:
    weight, table = tf.Variable([2.0, 3.0], name="weight"), tf.Variable(tf.ones([3, 2]), name="table")
    function = lambda x: x * weight + tf.gather(table, [2, 0])
    program = trace_one(function, inputs={"x": tf.TensorSpec([2, 2], tf.float32)}).program
    program.__dict__["vectorises"] = vectorise
    x, dy = np.float32([[1, 2], [3, 4]]), np.float32([[[1, 0], [0, 0]], [[1, 1], [1, 1]]])
    (dx, *by_variable) = program.stacked_vjp([x], [dy], 2, with_variables=True)[1]
    np.testing.assert_array_equal(dx, dy * [2, 3])
    np.testing.assert_array_equal(by_variable[0], [[1, 0], [4, 6]])
    np.testing.assert_array_equal(by_variable[1], [[[0, 0], [0, 0], [1, 0]], [[1, 1], [0, 0], [1, 1]]])


@WAYS
def test_stacked_products_of_inputs_without_a_gradient_have_none(vectorise: bool) -> None:
    program = trace_one(lambda x: tf.stop_gradient(x) * 2.0, inputs={"x": ANY}).program
    program.__dict__["vectorises"] = vectorise
    assert program.stacked_vjp([floats(1)], [np.ones((2, 1), np.float32)], 2)[1] == []
    assert program.jacobian([floats(1)], 10)[1] == [[None]]
