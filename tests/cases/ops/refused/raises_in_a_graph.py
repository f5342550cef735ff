"""An op whose own code fails under autograph, which tells the path of the file."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
@tf.function
def raises_in_a_graph(x):
    return x.no_such_attribute


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
