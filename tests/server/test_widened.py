"""Widened traces: values against the same functions in float64, and the graphs that have no form for it."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import calling_itself, chosen, looped, nested, python
from tests.server.helpers import trace_one

from gradserve.errors import Unsupported
from gradserve_server.autodiff.widened import NoWiderForm, widened

HALF = tf.TensorSpec([2], tf.float16)
NARROW = tf.Variable(tf.constant([1.5, 2.5], tf.float16))
WIDE = tf.Variable([1.25, -0.75])
TABLE = tf.constant([0.1, 0.3], tf.float16)
X, DY = np.array([0.3, 0.4]), np.array([1.0, -2.0])


def cast_sum(x):
    return tf.exp(tf.complex(tf.cast(x, tf.float32), tf.cast(x, tf.float32)))


FUNCTIONS = {
    "plain": lambda x: tf.sin(x) / 3.0,
    "narrow constant": lambda x: x * tf.cast(TABLE, x.dtype),
    "narrow variable": lambda x: x**2 * tf.cast(NARROW, x.dtype),
    "variable of float32": lambda x: x**2 * tf.cast(WIDE, x.dtype),
    "gathered variable": lambda x: x * tf.cast(tf.gather(NARROW, [1, 1]), x.dtype),
    "loop": looped(lambda x: tf.sin(x) * tf.cast(NARROW, x.dtype)),
    "branch": chosen(lambda x: x * tf.cast(NARROW, x.dtype) * tf.cast(TABLE, x.dtype)),
    "nested call": nested(lambda x: tf.exp(x) * tf.cast(WIDE, x.dtype)),
    "compiled call": tf.function(tf.tanh, jit_compile=True),
    "integers between": lambda x: x * tf.cast(tf.cast(10.0 * x, tf.int32), x.dtype),
}
DETOURS = {
    "float32": (lambda x: tf.cast(tf.sqrt(1.0 + tf.cast(x, tf.float32)), x.dtype), lambda x: tf.sqrt(1.0 + x)),
    "complex64": (lambda x: tf.cast(tf.math.real(cast_sum(x)), x.dtype), lambda x: tf.exp(x) * tf.cos(x)),
}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("function", "in_float64"),
    [*((function, function) for function in FUNCTIONS.values()), *DETOURS.values()],
    ids=[*FUNCTIONS, *DETOURS],
)
def test_wide_values_and_gradients_are_those_of_float64(function, in_float64, dtype) -> None:
    op = trace_one(function, inputs={"x": tf.TensorSpec([2], dtype)})
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = in_float64(x)
    outputs, gradients = op.program.wide_vjp([X], [DY])
    np.testing.assert_allclose(op.program.wide_forward([X]), [y.numpy()], rtol=1e-13)
    np.testing.assert_allclose(outputs, [y.numpy()], rtol=1e-13)
    expected = tape.gradient(y, x, output_gradients=tf.constant(DY))
    np.testing.assert_allclose(gradients, [expected.numpy()], rtol=1e-13)


def test_wide_gradient_is_that_of_the_rule() -> None:
    @tf.custom_gradient
    def surrogate(x):
        return tf.round(x), lambda dy: dy / 3

    op = trace_one(looped(surrogate), inputs={"x": HALF})
    (_, (gradient,)) = op.program.wide_vjp([X], [DY])
    np.testing.assert_allclose(gradient, DY / 27, rtol=1e-13)


def test_nudged_constants_show_what_their_rounding_may_do_and_exact_ones_stay() -> None:
    op = trace_one(lambda x: x * tf.constant([0.1, 0.5], x.dtype), inputs={"x": HALF})
    (_, (plain,)), (_, (nudged,)) = (op.program.wide_vjp([X], [DY], nudged=nudged) for nudged in (False, True))
    assert abs(nudged[0] / plain[0] - 1) == pytest.approx(2.0**-11)
    assert nudged[1] == plain[1] == -1.0


def test_wide_form_leaves_the_trace_as_it_was() -> None:
    op = trace_one(FUNCTIONS["loop"], inputs={"x": HALF})
    before = op.program.vjp([np.float16(X)], [np.float16(DY)])
    op.program.wide_vjp([X], [DY])
    np.testing.assert_array_equal(op.program.vjp([np.float16(X)], [np.float16(DY)])[1], before[1])


def test_same_function_is_widened_for_two_ops() -> None:
    ops = [trace_one(FUNCTIONS["branch"], inputs={"x": HALF}) for _ in range(2)]
    first, second = (op.program.wide_forward([X]) for op in ops)
    np.testing.assert_array_equal(first, second)


def batch_norm(x):
    ones = tf.ones([1])
    y = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, [1, 2, 1, 1]), scale=ones, offset=ones, mean=ones, variance=ones, is_training=False
    ).y
    return tf.reshape(y, [2])


@pytest.mark.parametrize(
    ("function", "reason"), [(python(np.square), "Python code"), (batch_norm, "float64")], ids=["python", "kernel"]
)
def test_graph_without_a_wide_form_says_why(function, reason: str) -> None:
    op = trace_one(function, inputs={"x": HALF})
    with pytest.raises(Unsupported, match=reason) as caught:
        op.program.wide_forward([X])
    assert caught.value.reason == "NO_WIDER_FORM"


def test_loop_that_ends_by_rounding_has_no_wide_form() -> None:
    def saturated(x):
        (end,) = tf.while_loop(lambda a: a + 1 != a, lambda a: (a + 1,), (tf.constant(0.0, tf.float16),))
        return x * end

    op = trace_one(saturated, inputs={"x": HALF})
    with pytest.raises(Unsupported, match="comparison of floats"):
        op.program.wide_forward([X])


def test_function_that_calls_itself_has_no_wide_form() -> None:
    trace = trace_one(nested(tf.square), inputs={"x": HALF}).program.forward_trace
    with pytest.raises(NoWiderForm, match="calls itself"):
        widened(calling_itself(trace), device="cpu:0")
