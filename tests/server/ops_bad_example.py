"""An op that fails on its own example, one that fails on drawn inputs alone, and one that is well."""

import tensorflow as tf

from gradserve_server import op

TABLE = tf.constant([1.0, 2.0])


@op(inputs={"index": tf.TensorSpec([], tf.int32)}, example={"index": 9})
def beyond(index):
    return tf.gather(TABLE, index)


@op(inputs={"index": tf.TensorSpec([], tf.int32)})
def before(index):
    return tf.gather(TABLE, index - 1)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def well(x):
    return 2.0 * x
