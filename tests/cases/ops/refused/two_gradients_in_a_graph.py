"""An op in a ``tf.function`` of its own whose rule returns two gradients for its one input."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.function
def two_gradients_in_a_graph(x):
    @tf.custom_gradient
    def identity(inner):
        return tf.identity(inner), lambda dy: [dy, dy]

    return identity(x)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
