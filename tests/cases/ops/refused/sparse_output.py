"""An op that returns a sparse tensor."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec([None, None], tf.float32)})
def sparse_output(x):
    return tf.sparse.from_dense(x)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
