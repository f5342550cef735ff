"""An op that makes a variable in each call."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def new_variable(x):
    factor = tf.Variable(3.0)
    return x * factor, lambda dy: dy * 3.0


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
