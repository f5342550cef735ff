"""An op whose rule returns float32 for a float16 input."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float16)})
@tf.custom_gradient
def wider_gradient(x):
    return tf.identity(x), lambda dy: tf.cast(dy, tf.float32)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
