"""Ops whose faults show only when they are called, and one with nested inputs."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)


@op(inputs={"x": ANY})
@tf.custom_gradient
def negative_row(x):
    def grad(dy):
        row = tf.cast(-tf.ones_like(tf.reshape(dy, [-1])[:1]), tf.int32)
        return tf.IndexedSlices(dy[:1], row, tf.shape(x))

    return tf.identity(x), grad


@op(inputs={"x": ANY})
@tf.custom_gradient
def reshaping_rule(x):
    return tf.identity(x), lambda dy: tf.reshape(dy, [7])


@op(inputs={"x": ANY})
def promises_five(x):
    y = tf.identity(x)
    y.set_shape([5])
    return y


@op(inputs={"x": ANY, "y": ANY, "z": ANY})
def product_of_three(x, y, z):
    return x * y * z


@op(inputs={"x": ANY})
def cube_of_pairs(x):
    return x[:, None, None] * x[None, :, None] * x[None, None, :]


@op(inputs={"x": ANY})
def doubled(x):
    return 2.0 * x


@op(inputs={"size": tf.TensorSpec([], tf.int32)})
def zeros(size):
    return tf.zeros([size])


@op(inputs={"x": ANY, "state": {"h": ANY, "c": [ANY, ANY]}})
def nested(x, state):
    return x * state["h"] + 10.0 * state["c"][0] + 100.0 * state["c"][1]
