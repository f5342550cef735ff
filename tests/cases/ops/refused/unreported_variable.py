"""An op that reads a variable by its handle, inside a function of its own, so that TensorFlow reports none."""

import tensorflow as tf

from gradserve_server import op

weight = tf.Variable([2.0, 3.0])


@tf.function
def read():
    return tf.raw_ops.ReadVariableOp(resource=weight.handle, dtype=tf.float32)


@op(inputs={"x": tf.TensorSpec([2], tf.float32)})
def unreported_variable(x):
    return x * read()


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
