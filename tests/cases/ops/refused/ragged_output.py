"""An op that returns a ragged tensor."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec([None, None], tf.float32)})
def ragged_output(x):
    return tf.RaggedTensor.from_tensor(x, padding=0.0)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
