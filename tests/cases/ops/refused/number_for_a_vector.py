"""An op whose rule returns a Python number for an input that is known to be a vector."""

import tensorflow as tf

from gradserve_server import op

PAIR = tf.TensorSpec([2], tf.float32)


@op(inputs={"x": PAIR, "slope": PAIR})
@tf.custom_gradient
def number_for_a_vector(x, slope):
    return x * slope, lambda dy: (dy * slope, 0.0)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
