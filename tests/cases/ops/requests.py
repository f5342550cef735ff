"""Ops that requests are checked against: how inputs are bound, and what TensorFlow would let pass."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
THREE = tf.TensorSpec([3], tf.float32)
SCALAR = tf.TensorSpec([], tf.float32)


@op(inputs={"y": ANY, "x": ANY})  # on purpose in another order than the parameters
@tf.custom_gradient
def twice_x_plus_y(x, y=0.0):
    return 2.0 * x + y, lambda dz: (2.0 * dz, dz)


def scale_by(factor):
    """Returns a function that scales by an option which it closes over."""

    @tf.custom_gradient
    def scaled(x):
        return x * factor, lambda dy: dy * factor

    return scaled


doubled_by_closure = op("doubled_by_closure", inputs={"x": ANY})(scale_by(2.0))


@op(inputs={"x": ANY})
@tf.custom_gradient
def scaled_by_default(x, scale=2.0):
    return x * scale, lambda dy: dy * scale


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def branching_on_default(x, strength=0.5):
    """The default stays a Python number, so that a branch on it is a branch in Python."""
    return (x if strength > 0 else -x) * 1.0, lambda dy: dy * strength


@op(inputs={"x": ANY, "strength": SCALAR}, gradient="surrogate")
@tf.custom_gradient
def selecting_on_input(x, strength):
    """The input is a tensor, whatever number the caller wrote."""
    return tf.where(strength > 0, x, -x), lambda dy: (dy * strength, None)


@op(inputs={"x": ANY})
@tf.custom_gradient
def pair_of_any(x):
    """The rule fails on an output gradient of None, and on one that is not in its output's shape."""

    def grad(first, second):
        tf.debugging.assert_equal(tf.shape(second), tf.shape(x))
        return first + 10.0 * second

    return (x * 1.0, x * 10.0), grad


@op(inputs={"x": ANY})
@tf.custom_gradient
def doubled_any(x):
    return x * 2.0, lambda dy: dy * 2.0


@op(inputs={"x": THREE})
@tf.custom_gradient
def doubled_three(x):
    return x * 2.0, lambda dy: dy * 2.0


@op(inputs={"x": tf.TensorSpec([None], tf.float32)}, outputs=["doubled"])
@tf.custom_gradient
def doubled_vector(x):
    return x * 2.0, lambda dy: dy * 2.0


@op(inputs={"x": ANY})
def squared_by_tensorflow(x):
    return tf.square(x)


@op(inputs={"x": ANY})
def plain_pair(x):
    """Two outputs by TensorFlow's own rules, which read out of bounds if given too few output gradients."""
    return [x * 2.0, x * 3.0]


@op(inputs={"x": ANY, "slope": ANY}, gradient="unchecked")
@tf.custom_gradient
def number_for_a_gradient(x, slope):
    """Breaks its contract: its second gradient is of rank 0, whatever the input's shape."""
    return x * slope, lambda dy: (dy * slope, 0.0)


@op(inputs={"x": ANY, "beta": ANY})
def silu_of_tensorflow(x, beta):
    """TensorFlow's own rule sums the gradient of ``beta`` to rank 0."""
    return tf.nn.silu(x, beta)
