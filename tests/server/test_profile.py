"""Profiles of ops along a line."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import ANY, SCALAR, VECTOR, trace_one

from gradserve.errors import InvalidRequest
from gradserve.gradient_check import Line, Profile
from gradserve_server.checking.profile import profile

LINE = Line(low=-2.0, high=2.0, points=21)


@tf.custom_gradient
def clipped_square(x):
    return tf.square(x), lambda dy: dy * tf.clip_by_value(2 * x, -1.0, 1.0)


def draw(function, line: Line = LINE, **declared) -> Profile:
    op = trace_one(function, **declared)
    return profile(op, line, op.program.own_vjp)


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("spec", [VECTOR, ANY], ids=["vector", "any"])
def test_profile_of_a_surrogate_shows_all_derivatives(spec, elementwise: bool) -> None:
    drawn = draw(clipped_square, inputs={"x": spec}, elementwise=elementwise)
    x = np.linspace(-2, 2, 21)
    np.testing.assert_allclose(drawn.outputs, x**2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(drawn.rule, np.clip(2 * x, -1, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(drawn.own_derivative, 2 * x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(drawn.differences, 2 * x, atol=1e-2)


def test_profile_moves_the_input_that_the_line_names() -> None:
    drawn = draw(lambda x, y: x * y**2, Line(input="y", low=1, high=3, points=3), inputs={"x": SCALAR, "y": SCALAR})
    assert drawn.input == "y"
    np.testing.assert_allclose(drawn.rule, [2, 4, 6])


def test_profile_of_a_forward_pass_in_python_has_no_own_derivative() -> None:
    @tf.custom_gradient
    def square(x):
        return tf.ensure_shape(tf.numpy_function(np.square, [x], tf.float32), x.shape), lambda dy: dy * 2 * x

    drawn = draw(square, inputs={"x": VECTOR})
    assert drawn.own_derivative is None
    np.testing.assert_allclose(drawn.rule, 2 * drawn.positions, atol=1e-5)


def test_profile_outside_of_the_domain_is_not_a_number() -> None:
    drawn = draw(tf.linalg.cholesky, inputs={"input": tf.TensorSpec([1, 1], tf.float32)})
    assert np.isnan(drawn.outputs).tolist() == (drawn.positions <= 0).tolist()


def test_profile_of_an_integer_input_is_refused() -> None:
    op = trace_one(tf.gather, inputs={"params": VECTOR, "indices": tf.TensorSpec([], tf.int32)})
    with pytest.raises(InvalidRequest, match="'indices'"):
        profile(op, Line(input="indices", low=0, high=1, points=2), op.program.own_vjp)
