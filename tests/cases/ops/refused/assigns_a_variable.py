"""An op that changes a variable by every call, and does not say so."""

import tensorflow as tf

from gradserve_server import op

count = tf.Variable(0.0)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def assigns_a_variable(x):
    count.assign_add(1.0)
    return x * count


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
