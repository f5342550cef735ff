"""An op that reads a trainable variable and gives no rule for it."""

import tensorflow as tf

from gradserve_server import op

weight = tf.Variable(2.0)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def variable_without_rule(x):
    return x * weight, lambda dy: dy * weight


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
