"""Dependence: what the gradients of VJP traces depend on, beside what TensorFlow makes of their second derivatives."""

import time

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import (
    calling_itself,
    chosen,
    custom,
    looped,
    nested,
    python,
    saved,
    two_from_python,
)
from tests.server.helpers import ANY, SCALAR, trace_one

from gradserve_server.autodiff.dependence import dependence_of

X, DY = 0, 1
CLEAR: frozenset[str] = frozenset()

square = custom(tf.square, lambda x, _, dy: dy * 2.0 * x)
exp_by_its_output = custom(tf.exp, lambda _, y, dy: dy * y)
python_square = custom(python(np.square), lambda x, _, dy: dy * 2.0 * x)
python_exp_by_its_output = custom(python(np.exp), lambda _, y, dy: dy * y)
python_in_the_rule = custom(tf.sin, lambda x, _, dy: dy * python(np.cos)(x))
python_of_dy = custom(tf.identity, lambda _, __, dy: python(np.cos)(dy))
round_identity = custom(tf.round, lambda _, __, dy: dy)
resize = lambda x: tf.image.resize(tf.reshape(x, [1, 2, 1, 1]), [2, 1])
fake_quant = lambda x: tf.quantization.fake_quant_with_min_max_vars(x, 0.0, 2.0)

DIFFERENTIATED = [  # by TensorFlow: the op, what its gradient is differentiated by, and the result, from 3 for each element
    (tf.square, X, [6, 6]),
    (square, X, [6, 6]),
    (square, DY, [1, 3]),
    (lambda x: 3.0 * x, DY, [3, 3]),
    (nested(square), X, [6, 6]),
    (saved(square), X, [6, 6]),
    (saved(square), DY, [1, 3]),
    (looped(lambda x: square(x) * 1.0), DY, [0.0625, 136.6875]),
    (looped(nested(square)), X, [2.625, 1913.625]),
    (looped(tf.square), X, [2.625, 1913.625]),
    (chosen(tf.square), X, [6, 6]),
    (lambda x: tf.map_fn(square, x), X, [6, 6]),
    (exp_by_its_output, X, 3 * np.exp([0.5, 1.5])),
    (python_exp_by_its_output, DY, np.exp([0.5, 1.5])),
    (python_in_the_rule, DY, np.cos([0.5, 1.5])),
    (lambda x: tf.square(python_square(x)), X, [9, 81]),
    (lambda x: tf.square(nested(python_square)(x)), X, [9, 81]),
    (nested(lambda x: tf.square(two_from_python(x)[0])), X, [9, 81]),
    (looped(python_square), X, [2.625, 1913.625]),
    (round_identity, DY, [1, 1]),
    (tf.function(square, jit_compile=True, autograph=False), X, [6, 6]),
    (lambda x: tf.nn.relu(x) * 1.0, X, [0, 0]),  # by its rule
    (lambda x: tf.nn.relu(x) * 1.0, DY, [1, 1]),
    (lambda x: tf.math.floormod(x, 1.0) * x, X, [6, 6]),
]

INDEPENDENT = [
    lambda x: 3.0 * x,
    round_identity,
    nested(round_identity),
    lambda x: tf.stop_gradient(x) * x,
    lambda x: tf.floor(x) * x,
    tf.cumsum,
    lambda x: tf.cast(tf.argmax(x), x.dtype) * x,
    lambda x: tf.cast(tf.cast(x, tf.int32), x.dtype) * x,
    resize,
    fake_quant,
]

BLOCKED = [  # with what TensorFlow gives: None, a part of a sum, zeros, or an error
    (python_in_the_rule, X, "PyFunc", [0, 0]),
    (nested(python_in_the_rule), X, "PyFunc", [0, 0]),
    (looped(python_in_the_rule), X, "PyFunc", [0, 0]),
    (saved(custom(tf.sin, lambda x, _, dy: dy * tf.unique(x)[0])), X, "Unique", LookupError),
    (python_exp_by_its_output, X, "PyFunc", [0, 0]),
    (nested(python_exp_by_its_output), X, "PyFunc", [0, 0]),
    (python_of_dy, DY, "PyFunc", None),
    (resize, DY, "ResizeBilinearGrad", None),
    (fake_quant, DY, "FakeQuantWithMinMaxVarsGradient", None),
    (lambda x: tf.image.resize(tf.reshape(x, [1, 2, 1, 1]), [2, 1], "bicubic"), DY, "ResizeBicubicGrad", LookupError),
    (lambda x: x[0] * tf.ensure_shape(tf.range(0.0, x[1], 0.5), [3]), X, "Range", [0, 0]),
    (lambda x: tf.ensure_shape(tf.py_function(tf.square, [x], x.dtype), x.shape), X, "EagerPyFunc", tf.errors.OpError),
    (tf.recompute_grad(lambda x: x**3), X, "IdentityN", NotImplementedError),
]


def vjp_trace(function):
    return trace_one(function, inputs={"x": tf.TensorSpec([2], tf.float32)}).program.vjp_trace


def second_derivative(trace, wrt):
    """Returns TensorFlow's gradient of the sum of the input gradient by x or dy, None or the class of what it raised."""

    @tf.function(autograph=False)
    def differentiated(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            gradient = trace(*inputs)[1]
        return tape.gradient(gradient, inputs[wrt])

    try:
        return differentiated(tf.constant([0.5, 1.5]), tf.fill(trace.outputs[0].shape.as_list(), 3.0))
    except Exception as error:
        return error


@pytest.mark.parametrize(("function", "wrt", "expected"), DIFFERENTIATED)
def test_blockers_of_what_tensorflow_differentiates_are_none_at_all(function, wrt, expected) -> None:
    trace = vjp_trace(function)
    assert dependence_of(trace).blockers(1, wrt) == CLEAR
    np.testing.assert_allclose(second_derivative(trace, wrt), expected, rtol=1e-5)


@pytest.mark.parametrize("function", INDEPENDENT)
def test_blockers_of_a_gradient_without_a_smooth_path_is_none(function) -> None:
    trace = vjp_trace(function)
    assert dependence_of(trace).blockers(1, X) is None
    by_tensorflow = second_derivative(trace, X)
    assert by_tensorflow is None or not np.any(by_tensorflow)


def test_blockers_of_a_rule_that_makes_something_of_zeros_is_none_where_tensorflow_is_wrong() -> None:
    trace = vjp_trace(python_of_dy)
    assert dependence_of(trace).blockers(1, X) is None
    np.testing.assert_array_equal(second_derivative(trace, X), [1, 1])  # cos(0): zeros are sent to the unused output


@pytest.mark.parametrize(("function", "wrt", "kind", "by_tensorflow"), BLOCKED)
def test_blockers_of_a_gradient_through_an_operation_without_a_rule_name_it(function, wrt, kind, by_tensorflow) -> None:
    trace = vjp_trace(function)
    assert dependence_of(trace).blockers(1, wrt) == {kind}
    found = second_derivative(trace, wrt)
    if isinstance(by_tensorflow, type):
        assert isinstance(found, by_tensorflow)
    elif by_tensorflow is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, by_tensorflow)


def test_blockers_of_outputs_and_inputs_are_kept_apart() -> None:
    op = trace_one(lambda x, y: (python_square(x) * y, x + tf.round(y)), inputs={"x": SCALAR, "y": SCALAR})
    dependence = dependence_of(op.program.forward_trace)
    assert [[dependence.blockers(o, i) for i in (0, 1)] for o in (0, 1)] == [[CLEAR, CLEAR], [CLEAR, None]]


def test_depends_of_a_step_or_a_shape_is_true_and_of_an_unused_input_false() -> None:
    op = trace_one(lambda x, y, _z: tf.round(x) * tf.zeros(tf.shape(y)), inputs={"x": ANY, "y": ANY, "_z": ANY})
    dependence = dependence_of(op.program.forward_trace)
    assert [dependence.depends(0, i) for i in range(3)] == [True, True, False]


def test_depends_of_a_choice_or_a_loop_holds_for_its_condition() -> None:
    op = trace_one(
        lambda x, n, c: tf.while_loop(
            lambda a: tf.reduce_sum(a) < n, lambda a: [tf.cond(c > 0, lambda: a * 2.0, lambda: a + 1.0)], [x]
        )[0],
        inputs={"x": SCALAR, "n": SCALAR, "c": SCALAR},
    )
    dependence = dependence_of(op.program.forward_trace)
    assert [dependence.depends(0, i) for i in range(3)] == [True, True, True]
    assert [dependence.blockers(0, i) for i in range(3)] == [CLEAR, None, None]


def test_blockers_in_a_loop_pass_from_variable_to_variable_over_its_rounds() -> None:
    def shifted(x, y, z):
        body = lambda i, _, b, c: (i + 1, b, python(np.sin)(c), c)
        return tf.while_loop(lambda i, *_: i < 3, body, [0, x, y, z])[1]

    op = trace_one(shifted, inputs={"x": SCALAR, "y": SCALAR, "z": SCALAR})
    dependence = dependence_of(op.program.forward_trace)
    assert [dependence.blockers(0, i) for i in range(3)] == [CLEAR, CLEAR, {"PyFunc"}]


def test_blockers_of_a_saved_model_without_its_rules_name_the_node_of_the_rule() -> None:
    trace = trace_one(nested(square), inputs={"x": ANY}).program.forward_trace
    graph_def = trace.graph.as_graph_def()
    for node in (node for function in graph_def.library.function for node in function.node_def):
        if node.op == "IdentityN":
            node.attr["_gradient_op_type"].s = b"CustomGradient-of-another-process"
    assert dependence_of(with_graph_def(trace, graph_def)).blockers(0, 0) == {"IdentityN"}


def with_graph_def(trace, graph_def):
    stand_in = calling_itself(trace)
    stand_in.graph.as_graph_def = lambda: graph_def
    return stand_in


def test_blockers_of_a_function_that_calls_itself_name_the_call() -> None:
    op = trace_one(nested(nested(square)), inputs={"x": SCALAR})
    assert dependence_of(calling_itself(op.program.forward_trace)).blockers(0, 0) == {"PartitionedCall"}


def test_dependence_of_seven_thousand_operations_is_not_quadratic() -> None:
    def long(x):
        for _ in range(1500):
            x = tf.sin(x)
        return x

    trace = trace_one(nested(long), inputs={"x": SCALAR}).program.vjp_trace
    start = time.monotonic()
    assert dependence_of(trace).blockers(1, X) == CLEAR
    assert time.monotonic() - start < 10.0  # 1 s; a quadratic walk takes minutes
