"""An op of a sparse tensor."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"cells": tf.SparseTensorSpec([None, None], tf.float32)})
def sparse_input(cells):
    return tf.sparse.to_dense(cells) * 2.0


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
