"""An op whose rule forgets a parameter that keeps its default, but stands before an input."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32), "y": tf.TensorSpec(None, tf.float32)})
@tf.custom_gradient
def two_gradients_of_three(x, scale=2.0, y=0.0):
    return x * scale + y, lambda dz: (dz * scale, dz)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
