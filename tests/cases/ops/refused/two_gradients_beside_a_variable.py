"""An op with a variable whose rule returns two gradients for its one input."""

import tensorflow as tf

from gradserve_server import op

FACTOR = tf.Variable(2.0)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def two_gradients_beside_a_variable(x):
    def grad(dy, variables=None):
        return (dy * FACTOR, dy), [tf.reduce_sum(dy * x) for _ in variables]

    return x * FACTOR, grad


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
