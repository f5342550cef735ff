"""An op of a ragged tensor."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"rows": tf.RaggedTensorSpec([None, None], tf.float32)})
@tf.custom_gradient
def ragged_input(rows):
    return rows * 2.0, lambda dy: dy * 3.0


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
