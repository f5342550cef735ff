"""The own derivative: values against plain TensorFlow, wherever a custom rule may hide, and the ops that have none."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from tests.conftest import EXAMPLES
from tests.server.derivative_ops import calling_itself, chosen, custom, looped, nested, python, saved
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, trace_one

from gradserve_server.autodiff.own_derivative import NoOwnDerivative, trace_own_vjp


def ten(_x, _y, dy):
    return dy * tf.cast(10.0, dy.dtype)


square = custom(tf.square, ten)
WEIGHTS = tf.Variable([3.0, 4.0])
TABLE = tf.constant([5.0, 6.0])


@tf.custom_gradient
def weighted(x):
    return x * WEIGHTS * TABLE, lambda dy, variables: (dy * 100.0, [dy for _ in variables])


@tf.custom_gradient
def ignoring(x, _unused):
    return tf.square(x), lambda dy: (dy, dy)


def own(function, **inputs):
    """Returns the own VJP of an op, by default of one input ``x``."""
    op = trace_one(function, inputs=inputs or {"x": ANY})
    return trace_own_vjp(op.program.forward_trace, device="cpu:0")


def own_gradient(function, x, dy):
    (gradient,) = own(function, x=tf.TensorSpec(None, x.dtype)).trace(x, dy)
    return gradient


def plain_gradient(function, x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x, output_gradients=dy)


@pytest.mark.parametrize(
    ("function", "undecorated"),
    [
        (square, tf.square),
        (nested(square), tf.square),
        (lambda x: nested(square)(x) * square(nested(square)(x)), lambda x: x**6),
        (custom(lambda x: square(x) * x, ten), lambda x: x**3),
        (looped(lambda x: square(nested(square)(x)) / 9.0), looped(lambda x: x**4 / 9.0)),
        (nested(looped(square)), lambda x: x**8),
        (chosen(square), tf.square),
        (chosen(nested(chosen(square))), tf.square),
        (looped(chosen(square)), lambda x: x**8),
        (weighted, lambda x: x * WEIGHTS * TABLE),
        (nested(weighted), lambda x: x * WEIGHTS * TABLE),
        (saved(square), tf.square),
        (saved(lambda x: nested(square)(x) * chosen(square)(x)), lambda x: x**4),
        (lambda x: tf.map_fn(square, x), tf.square),
        (tf.function(square, jit_compile=True, autograph=False), tf.square),
        (tf.recompute_grad(square), tf.square),
        (lambda x: tf.gather(square(x), [0, 0]), lambda x: tf.gather(x * x, [0, 0])),
    ],
)
def test_own_vjp_of_a_decorated_function_is_that_of_the_undecorated_one(function, undecorated) -> None:
    x, dy = tf.constant([0.5, 1.5]), tf.constant([2.0, -3.0])
    op = trace_one(function, inputs={"x": tf.TensorSpec([2], tf.float32)})
    (gradient,) = trace_own_vjp(op.program.forward_trace, device="cpu:0").trace(x, dy)
    np.testing.assert_allclose(gradient, plain_gradient(undecorated, x, dy), rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64, tf.complex64, tf.complex128])
def test_own_vjp_in_other_dtypes_keeps_the_dtype(dtype) -> None:
    x, dy = tf.cast([0.5, 1.5], dtype), tf.cast([2.0, -3.0], dtype)
    if dtype.is_complex:
        x, dy = x + tf.cast(1j, dtype), dy * tf.cast(2j, dtype)
    gradient = own_gradient(square, x, dy)
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient, plain_gradient(tf.square, x, dy))


def test_own_vjp_of_a_broadcast_product_sums_over_the_broadcast_axis() -> None:
    product = tf.custom_gradient(lambda x, y: (x * y, lambda dz: (dz, dz)))
    vjp = own(product, x=ANY, y=ANY)
    dx, dy = vjp.trace(tf.ones([2, 3]), tf.constant([1.0, 2.0, 3.0]), tf.ones([2, 3]))
    np.testing.assert_array_equal(dx, [[1, 2, 3], [1, 2, 3]])
    np.testing.assert_array_equal(dy, [2, 2, 2])


@pytest.mark.parametrize(
    "step",
    [
        tf.round,
        tf.sign,
        tf.floor,
        lambda x: tf.cast(x > 0.2, x.dtype),
        tf.stop_gradient,
        nested(tf.round),
        tf.zeros_like,
    ],
)
def test_own_vjp_of_a_step_with_a_smooth_rule_is_zeros(step) -> None:
    gradient = own_gradient(custom(step, ten), tf.constant([0.5, 1.5]), tf.ones([2]))
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_own_vjp_of_an_input_that_is_not_used_leaves_it_out() -> None:
    vjp = own(tf.function(ignoring, autograph=False), x=ANY, _unused=ANY)
    assert vjp.connected == (0,)
    np.testing.assert_array_equal(vjp.trace(tf.constant([3.0]), tf.constant([1.0]), tf.ones([1])), [[6.0]])


def test_own_vjp_of_arguments_that_are_not_smooth_sends_them_no_zeros() -> None:
    x = tf.constant([0.0])
    gradient = own_gradient(lambda x: ignoring(x, tf.sqrt(x))[...], x, tf.ones([1]))
    np.testing.assert_array_equal(gradient, [0.0])  # zeros sent through the square root would be 0 * inf


def test_own_vjp_of_integer_inputs_and_outputs_takes_and_returns_gradients_of_floats_alone() -> None:
    vjp = own(lambda i, x: (tf.shape(x), square(x)[i], x + 1.0), i=INDEX, x=VECTOR)
    assert vjp.connected == (1,)
    gradients = vjp.trace(tf.constant(1), tf.constant([1.0, 2.0]), tf.constant(1.0), tf.constant([10.0, 20.0]))
    np.testing.assert_array_equal(gradients, [[10.0, 24.0]])


def test_own_vjp_of_the_stable_softplus_is_not_nan_for_large_inputs() -> None:
    spec = importlib.util.spec_from_file_location("examples_ops", EXAMPLES)
    examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(examples)
    gradient = own_gradient(examples.log1p_exp.function, tf.constant([-100.0, 0.0, 100.0]), tf.ones([3]))
    np.testing.assert_allclose(gradient, [0.0, SLOPE_AT_A_TIE, 1.0], atol=1e-6)


SLOPE_AT_A_TIE = 1.0  # TensorFlow gives max(x, 0) the slope 1 and |x| the slope 0 there, where the sum has slope 1/2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (custom(python(np.square), ten), "PyFunc"),
        (lambda x: python(np.square)(x) + x, "PyFunc"),
        (nested(custom(python(np.square), ten)), "PyFunc"),
        (looped(custom(python(np.square), ten)), "PyFunc"),
        (custom(lambda x: tf.raw_ops.PreventGradient(input=x), ten), "PreventGradient"),
        (custom(lambda x: tf.unique(x)[0], ten), "Unique"),
        (lambda x: tf.range(0.0, x[0] + x[1]) * x[1], "Range"),
        (lambda x: tf.math.betainc(x, x, x), "Betainc"),
        (lambda x: tf.shape(x) + 1, "none of its outputs is of a floating-point"),
    ],
)
def test_own_vjp_of_an_op_without_one_says_why(function, reason) -> None:
    with pytest.raises(NoOwnDerivative, match=reason) as caught:
        own(function, x=tf.TensorSpec([2], tf.float32))
    assert "\n" not in caught.value.reason


def test_own_vjp_of_a_rule_that_raises_says_what_in_one_line_without_paths() -> None:
    with pytest.raises(NoOwnDerivative, match="not implemented") as caught:
        own(custom(lambda x: tf.linalg.qr(x, full_matrices=True)[1], ten), x=tf.TensorSpec([3, 2], tf.float32))
    assert "\n" not in caught.value.reason
    assert "/" not in caught.value.reason


def test_own_vjp_of_a_function_that_calls_itself_says_so() -> None:
    op = trace_one(nested(nested(square)), inputs={"x": SCALAR})
    with pytest.raises(NoOwnDerivative, match="calls itself"):
        trace_own_vjp(calling_itself(op.program.forward_trace), device="cpu:0")


def test_own_vjp_traced_twice_gives_the_same_and_leaves_the_op_as_it_was() -> None:
    op = trace_one(looped(nested(square)), inputs={"x": VECTOR})
    x, dy = tf.constant([1.5]), tf.constant([1.0])
    first, second = (trace_own_vjp(op.program.forward_trace, device="cpu:0").trace(x, dy) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    _, gradients = op.program.vjp([x.numpy()], [dy.numpy()])
    np.testing.assert_array_equal(gradients, [[1000.0]])
