"""An op whose rule returns two gradients for one input, beside an output that takes no output gradient."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def two_gradients_beside_an_integer(x):
    return (tf.identity(x), tf.cast(x, tf.int32)), lambda dy, _: [dy, dy]


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
