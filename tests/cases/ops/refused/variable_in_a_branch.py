"""An op in a branch that reads a variable itself, which its rule's author expects to be in the rule's reach."""

import tensorflow as tf

from gradserve_server import op

weight = tf.Variable(2.0, trainable=False)


@tf.custom_gradient
def _times_weight(x):
    return weight * x, lambda dy: dy * weight


@op(inputs={"x": tf.TensorSpec([], tf.float32), "on": tf.TensorSpec([], tf.bool)})
def variable_in_a_branch(x, on):
    return tf.cond(on, lambda: _times_weight(x), lambda: x)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
