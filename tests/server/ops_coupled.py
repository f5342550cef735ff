"""An op that claims a batch axis and couples rows, beside one that keeps what it claims."""

import tensorflow as tf

from gradserve_server import op

ROWS = {"x": tf.TensorSpec([None, 3], tf.float32)}


@op(inputs=ROWS, batch_axis=0)
def softmax_over_batch(x):
    return tf.nn.softmax(x, axis=0)


@op(inputs=ROWS, batch_axis=0)
def softmax_over_classes(x):
    return tf.nn.softmax(x, axis=1)
