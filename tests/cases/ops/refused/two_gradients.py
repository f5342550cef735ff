"""An op whose rule returns two gradients for its one input."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def two_gradients(x):
    return tf.identity(x), lambda dy: [dy, dy]


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
