"""An op that branches in Python on an input."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32), "strength": tf.TensorSpec([], tf.float32)})
@tf.custom_gradient
def branching_on_input(x, strength):
    return (x if strength > 0 else -x) * 1.0, lambda dy: (dy, None)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
