"""An op whose rule returns no gradient for its one input."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def no_gradients(x):
    return tf.identity(x), lambda _: []


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
