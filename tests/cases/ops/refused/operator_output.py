"""An op that returns a linear operator, whose gradient crashes TensorFlow."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"u": tf.TensorSpec([3, 3], tf.float32)})
def operator_output(u):
    return tf.linalg.LinearOperatorLowRankUpdate(tf.linalg.LinearOperatorIdentity(3), u, u)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
