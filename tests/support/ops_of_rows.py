"""Ops whose calls are joined; two of them refuse some values, and so fail every batch that has one."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
CLASSES = 8


@op(inputs={"x": ANY, "y": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def weigh(x, y):
    """x sin(y), with gradients that are clipped for x, and straight through for y."""
    return x * tf.sin(y), lambda dy: (tf.clip_by_value(dy * tf.sin(y), -0.5, 0.5), dy * x)


@op(inputs={"x": ANY}, elementwise=True, example={"x": [0.5, 2.0]})
@tf.custom_gradient
def log(x):
    """The logarithm, of positive numbers alone, whose rule takes finite numbers alone."""

    def rule(dy):
        return tf.debugging.check_numerics(dy, "dy") / x

    with tf.control_dependencies([tf.debugging.assert_positive(x, message="x must be positive")]):
        return tf.math.log(x), rule


@op(
    inputs={"x": tf.TensorSpec([None, 16], tf.float32), "weight": tf.TensorSpec([16, 8], tf.float32)},
    batch_axis={"x": 0, "output": 0},
)
def layer(x, weight):
    """A dense layer; all rows share the weight."""
    return tf.tanh(x @ weight)


@op(
    inputs={"x": tf.TensorSpec([None, 3], tf.float32), "chosen": tf.TensorSpec([None], tf.int32)},
    batch_axis=0,
    example={"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "chosen": [0, 1]},
)
def scale(x, chosen):
    """Rows times the factor that each chooses; there are so many classes, and no others."""
    factors = tf.reshape(tf.range(1.0, 3.0 * CLASSES + 1.0), [CLASSES, 3])
    return x * tf.gather(factors, chosen)
